#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Dump a JuiceFS volume's Redis database in the form load.py reads.

    dump.py redis://host[:port][/db] OUT.txt[.gz] [--hide OLD=NEW]...

One JSON object a line, sorted by key: {"key": text, "type": ..., "value": ...}. Keys of JuiceFS are ASCII.
Values, fields and members are base64: string "v"; list ["v", ...]; set ["m", ...] sorted;
hash [["f", "v"], ...] sorted by field; zset [["m", "score"], ...] sorted by member.
--hide replaces text inside `setting`, `sessionInfos` and `txnLog` only (bucket folder, mount point).
"""
import argparse
import base64
import gzip
import json

from load import Redis

SCAN_STEP = 1000


def b64(b):
    return base64.b64encode(b).decode()


def pairs(flat):
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]


def scan(r, command, *key):
    cursor, seen = b"0", []
    while True:
        cursor, part = r.call(command, *key, cursor, "COUNT", SCAN_STEP)
        seen += part
        if cursor == b"0":
            return seen


def dump(url, hide=()):
    r = Redis(url)
    rows = []
    for key in sorted(set(scan(r, "SCAN"))):
        t = r.call("TYPE", key).decode()
        if t == "string":
            v = r.call("GET", key)
        elif t == "list":
            v = r.call("LRANGE", key, 0, -1)
        elif t == "set":
            v = sorted(r.call("SMEMBERS", key))
        elif t == "hash":
            v = sorted(dict(pairs(r.call("HGETALL", key))).items())
        elif t == "zset":
            v = sorted(pairs(r.call("ZRANGE", key, 0, -1, "WITHSCORES")))
        else:
            raise SystemExit("type %s of key %r is not handled" % (t, key))
        if r.call("TTL", key) != -1:
            raise SystemExit("key %r has a TTL" % key)
        if key == b"setting":
            for old, new in hide:
                v = v.replace(old.encode(), new.encode())
        if key == b"sessionInfos":
            for old, new in hide:
                v = [(f, x.replace(old.encode(), new.encode())) for f, x in v]
        if key == b"txnLog":
            for old, new in hide:
                v = [x.replace(old.encode(), new.encode()) for x in v]
        if t == "string":
            out = b64(v)
        elif t in ("list", "set"):
            out = [b64(x) for x in v]
        elif t == "hash":
            out = [[b64(f), b64(x)] for f, x in v]
        else:
            out = [[b64(m), s.decode()] for m, s in v]
        rows.append(json.dumps({"key": key.decode("ascii"), "type": t, "value": out}))
    return rows


def write(path, rows):
    text = ("\n".join(rows) + "\n").encode()
    if path.endswith(".gz"):
        with open(path, "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
            z.write(text)
    else:
        with open(path, "wb") as f:
            f.write(text)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url")
    p.add_argument("out")
    p.add_argument("--hide", action="append", default=[], metavar="OLD=NEW")
    args = p.parse_args()
    rows = dump(args.url, [h.split("=", 1) for h in args.hide])
    write(args.out, rows)
    print("%d keys" % len(rows))


if __name__ == "__main__":
    main()
