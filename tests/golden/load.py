#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Load a golden volume into an empty Redis database.

    load.py VARIANT redis://[user:pass@]host[:port][/db] [--bucket DIR | --s3 URL]
    load.py VARIANT --print            show the database in readable form

VARIANT is a folder beside this script (or any path) that holds redis.txt or redis.txt.gz.
The database must be empty: nothing is ever flushed.

--bucket DIR   objects/ is copied to DIR/<volume name>/ and `setting` gets Storage "file", Bucket "DIR/".
--s3 URL       only `setting` changes: Storage "s3", Bucket URL (uploading objects/ is the caller's job);
               --access-key and --secret-key are stored in plain text, KeyEncrypted and SessionToken dropped
               (refused for volumes with an EncryptKey, whose secrets must be sealed).
--dump FILE    another dump of the same variant (for example redis-alive.txt.gz).
--keep-times   keep the objects' own mtimes; without it they are set two hours back, because `juicefs gc`
               leaves objects younger than an hour alone.

Standard library only. The RESP client below is also used by dump.py.
"""
import argparse
import base64
import gzip
import json
import os
import re
import shutil
import socket
import sys
import time
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))


class RespError(Exception):
    pass


class Redis:
    """A blocking RESP2 client: call() for one command, pipeline() for many."""

    def __init__(self, url):
        u = urllib.parse.urlsplit(url)
        if u.scheme != "redis":
            raise SystemExit("only redis:// URLs are handled: " + url)
        self.sock = socket.create_connection((u.hostname or "127.0.0.1", u.port or 6379))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.sock.makefile("rb", 1 << 20)
        if u.password:
            user = [urllib.parse.unquote(u.username)] if u.username else []
            self.call("AUTH", *user, urllib.parse.unquote(u.password))
        db = u.path.strip("/")
        if db and int(db):
            self.call("SELECT", db)

    @staticmethod
    def encode(args):
        out = [b"*%d\r\n" % len(args)]
        for a in args:
            if isinstance(a, str):
                a = a.encode()
            elif isinstance(a, int):
                a = b"%d" % a
            out.append(b"$%d\r\n%s\r\n" % (len(a), a))
        return b"".join(out)

    def reply(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise RespError("connection closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return RespError(rest.decode("utf-8", "replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            n = int(rest)
            return None if n < 0 else self.file.read(n + 2)[:-2]
        if kind == b"*":
            n = int(rest)
            return None if n < 0 else [self.reply() for _ in range(n)]
        raise RespError("bad reply: %r" % line)

    def call(self, *args):
        self.sock.sendall(self.encode(args))
        r = self.reply()
        if isinstance(r, RespError):
            raise r
        return r

    def pipeline(self, commands):
        out = []
        for i in range(0, len(commands), 500):
            part = commands[i:i + 500]
            self.sock.sendall(b"".join(self.encode(c) for c in part))
            replies = [self.reply() for _ in part]
            for r in replies:
                if isinstance(r, RespError):
                    raise r
            out += replies
        return out


def find_variant(name):
    for d in (name, os.path.join(HERE, name)):
        if os.path.isdir(d):
            return d
    raise SystemExit("no such variant: " + name)


def read_dump(folder, name=None):
    """All keys of a dump: a list of dicts with key, type and value, binary parts as bytes."""
    names = [name] if name else ["redis.txt", "redis.txt.gz"]
    for n in names:
        path = os.path.join(folder, n)
        if os.path.exists(path):
            break
    else:
        raise SystemExit("no %s in %s" % (" or ".join(names), folder))
    opener = gzip.open if path.endswith(".gz") else open
    keys = []
    unb = base64.b64decode
    with opener(path, "rt", encoding="ascii") as f:
        for line in f:
            e = json.loads(line)
            v = e["value"]
            if e["type"] == "string":
                e["value"] = unb(v)
            elif e["type"] in ("list", "set"):
                e["value"] = [unb(x) for x in v]
            elif e["type"] == "hash":
                e["value"] = [(unb(a), unb(b)) for a, b in v]
            elif e["type"] == "zset":
                e["value"] = [(unb(m), s) for m, s in v]
            else:
                raise SystemExit("unknown type " + e["type"])
            keys.append(e)
    return keys


def readable(b):
    return "".join(chr(c) if 0x20 <= c < 0x7f and c != 0x5c else "\\x%02x" % c for c in b)


def print_dump(keys):
    for e in keys:
        t, v = e["type"], e["value"]
        if t == "string":
            print(e["key"], t, readable(v) if not e["key"].startswith("i") else v.hex())
        elif t in ("list", "set"):
            print(e["key"], t, len(v))
            for x in v:
                print("    ", x.hex() if e["key"].startswith("c") else readable(x))
        else:
            print(e["key"], t, len(v))
            for a, b in v:
                print("    ", readable(a), "=", readable(b) if isinstance(b, bytes) else b)


def set_field(text, name, value):
    """Replace one string field of the setting JSON, every other byte unchanged; add it after Bucket if absent."""
    pat = re.compile(r'(?m)^(\s*"%s": )"(?:[^"\\]|\\.)*"' % name)
    new, n = pat.subn(lambda m: m.group(1) + json.dumps(value), text, count=1)
    if n:
        return new
    pat = re.compile(r'(?m)^((\s*)"Bucket": "(?:[^"\\]|\\.)*",\n)')
    return pat.sub(lambda m: m.group(1) + '%s"%s": %s,\n' % (m.group(2), name, json.dumps(value)), text, count=1)


def rewrite_setting(raw, args):
    text = raw.decode()
    if args.bucket:
        text = set_field(text, "Storage", "file")
        text = set_field(text, "Bucket", os.path.abspath(args.bucket).rstrip("/") + "/")
    elif args.s3:
        text = set_field(text, "Storage", "s3")
        text = set_field(text, "Bucket", args.s3)
        if args.secret_key:
            if json.loads(text).get("EncryptKey"):
                raise SystemExit("this volume seals its secrets with AES-GCM, a plain SecretKey would not be read: "
                                 "give the keys to the client by other means")
            text = re.sub(r'(?m)^\s*"(KeyEncrypted": true|SessionToken": "[^"]*"),\n', "", text)
            text = set_field(text, "SecretKey", args.secret_key)
        if args.access_key:
            text = set_field(text, "AccessKey", args.access_key)
    json.loads(text)
    return text.encode()


def commands(keys):
    for e in keys:
        k, t, v = e["key"], e["type"], e["value"]
        if t == "string":
            yield ("SET", k, v)
            continue
        word = {"list": "RPUSH", "set": "SADD", "hash": "HSET", "zset": "ZADD"}[t]
        for i in range(0, len(v), 500):
            flat = []
            for x in v[i:i + 500]:
                if t == "hash":
                    flat += x
                elif t == "zset":
                    flat += (x[1], x[0])
                else:
                    flat.append(x)
            yield (word, k, *flat)


def copy_objects(src, dst, keep_times):
    old = time.time() - 7200
    for base, _, files in os.walk(src):
        to = os.path.join(dst, os.path.relpath(base, src))
        os.makedirs(to, exist_ok=True)
        for f in files:
            shutil.copy2(os.path.join(base, f), os.path.join(to, f))
            if not keep_times:
                os.utime(os.path.join(to, f), (old, old))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("variant")
    p.add_argument("url", nargs="?")
    p.add_argument("--bucket", metavar="DIR")
    p.add_argument("--s3", metavar="URL")
    p.add_argument("--access-key")
    p.add_argument("--secret-key")
    p.add_argument("--dump", metavar="FILE")
    p.add_argument("--keep-times", action="store_true")
    p.add_argument("--print", action="store_true", dest="show")
    args = p.parse_args()
    folder = find_variant(args.variant)
    keys = read_dump(folder, args.dump)
    if args.show:
        try:
            print_dump(keys)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return
    if not args.url:
        p.error("a redis:// URL is needed")
    if args.bucket and args.s3:
        p.error("--bucket and --s3 exclude each other")
    r = Redis(args.url)
    if r.call("DBSIZE"):
        raise SystemExit("the database is not empty: " + args.url)
    name = None
    for e in keys:
        if e["key"] == "setting":
            e["value"] = rewrite_setting(e["value"], args)
            name = json.loads(e["value"])["Name"]
    if args.bucket and os.path.isdir(os.path.join(folder, "objects")):
        copy_objects(os.path.join(folder, "objects"), os.path.join(args.bucket, name), args.keep_times)
    r.pipeline(list(commands(keys)))
    print("%s: %d keys, volume %s" % (args.variant, len(keys), name))


if __name__ == "__main__":
    main()
