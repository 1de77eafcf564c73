#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Describe a mounted tree, or compare one with such a description.

    make_manifest.py MOUNT                       print the JSON
    make_manifest.py MOUNT --compare FILE        report differences, exit 1 if there are any
       --ignore ctime_ns,atime_ns,...            fields not compared (statfs is a field too; statfs.bavail one of its)
       --no-trash                                leave `.trash` out
       --ranges N                                random ranges recorded per file of 128 KiB or more (default 20)
       --seed S                                  their seed

Paths are relative to the mount; bytes outside 0x20..0x7e and % are written %XX. The root is "". Per entry:
type, mode (octal, 12 bits), uid, gid, nlink, ino, size, blocks, blksize, atime_ns, mtime_ns, ctime_ns, and where they
apply rdev "major:minor", target, sha256 (files up to 1 GiB), ranges [[offset, length, sha256], ...], names (sorted
listing), xattrs {name: base64} (POSIX ACLs are there as system.posix_acl_*), flags (FS_IOC_GETFLAGS, when not 0).
JuiceFS's internal files are skipped. `.trash` is looked up by name, as it may be absent from the listing.
"""
import argparse
import array
import base64
import errno
import fcntl
import gzip
import hashlib
import json
import os
import random
import stat
import sys

INTERNAL = {b".accesslog", b".config", b".stats", b".control",
            b".jfs.accesslog", b".jfs.config", b".jfs.stats", b".jfs.control"}
FS_IOC_GETFLAGS = 0x80086601
MAX_HASHED = 1 << 30
MIN_RANGED = 128 << 10
MAX_RANGE = 300 << 10
TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo",
         stat.S_IFBLK: "block", stat.S_IFCHR: "char", stat.S_IFSOCK: "socket"}


def show(b):
    return "".join(chr(c) if 0x20 <= c < 0x7f and c != 0x25 else "%%%02X" % c for c in b)


def unshow(s):
    out, i = bytearray(), 0
    while i < len(s):
        if s[i] == "%":
            out.append(int(s[i + 1:i + 3], 16))
            i += 3
        else:
            out += s[i].encode()
            i += 1
    return bytes(out)


def sha_file(path):
    h = hashlib.sha256()
    with open(path, "rb", buffering=0) as f:
        while True:
            b = f.read(1 << 20)
            if not b:
                return h.hexdigest()
            h.update(b)


def sha_range(fd, off, length):
    out = b""
    while len(out) < length:
        b = os.pread(fd, length - len(out), off + len(out))
        if not b:
            break
        out += b
    return hashlib.sha256(out).hexdigest()


def make_ranges(path, size, count, rng):
    out = []
    fd = os.open(path, os.O_RDONLY)
    try:
        for _ in range(count):
            length = rng.choice([1, 17, 4096, rng.randrange(1, 5000), rng.randrange(1, MAX_RANGE)])
            off = rng.randrange(0, size)
            length = min(length, size - off)
            out.append([off, length, sha_range(fd, off, length)])
    finally:
        os.close(fd)
    return out


def get_xattrs(path):
    out = {}
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as e:
        if e.errno in (errno.ENOTSUP, errno.ENOSYS, errno.EPERM, errno.ENODATA):
            return out
        raise
    for n in sorted(names):
        v = os.getxattr(path, n, follow_symlinks=False)
        out[show(os.fsencode(n))] = base64.b64encode(v).decode()
    return out


def get_flags(path):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        buf = array.array("L", [0])
        fcntl.ioctl(fd, FS_IOC_GETFLAGS, buf)
        return buf[0] & 0xffffffff
    except OSError:
        return 0
    finally:
        os.close(fd)


def describe(path, opts, rng):
    st = os.lstat(path)
    e = {"type": TYPES[stat.S_IFMT(st.st_mode)], "mode": "%04o" % stat.S_IMODE(st.st_mode),
         "uid": st.st_uid, "gid": st.st_gid, "nlink": st.st_nlink, "ino": st.st_ino, "size": st.st_size,
         "blocks": st.st_blocks, "blksize": st.st_blksize,
         "atime_ns": st.st_atime_ns, "mtime_ns": st.st_mtime_ns, "ctime_ns": st.st_ctime_ns}
    kind = e["type"]
    if kind in ("block", "char"):
        e["rdev"] = "%d:%d" % (os.major(st.st_rdev), os.minor(st.st_rdev))
    if kind == "symlink":
        e["target"] = show(os.readlink(path))
    if kind == "file":
        if st.st_size <= MAX_HASHED:
            e["sha256"] = sha_file(path)
        if opts.ranges and st.st_size >= MIN_RANGED:
            e["ranges"] = make_ranges(path, st.st_size, opts.ranges, rng)
    x = get_xattrs(path)
    if x:
        e["xattrs"] = x
    if kind in ("file", "dir"):
        f = get_flags(path)
        if f:
            e["flags"] = f
    return e


def walk(root, opts):
    entries, rng = {}, random.Random(opts.seed)

    def visit(path, rel):
        e = describe(path, opts, rng)
        entries[show(rel)] = e
        if e["type"] != "dir":
            return
        names = sorted(n for n in os.listdir(path) if not (rel == b"" and (n in INTERNAL or n == b".trash")))
        e["names"] = [show(n) for n in names]
        for n in names:
            visit(os.path.join(path, n), rel + b"/" + n if rel else n)
        if rel == b"" and not opts.no_trash and os.path.isdir(os.path.join(root, b".trash")):
            visit(os.path.join(root, b".trash"), b".trash")
            for k in ("atime_ns", "mtime_ns", "ctime_ns"):      # JuiceFS makes these up at mount
                del entries[".trash"][k]

    sys.setrecursionlimit(10000)
    v = os.statvfs(root)
    statfs = {"bsize": v.f_bsize, "frsize": v.f_frsize, "blocks": v.f_blocks, "bfree": v.f_bfree,
              "bavail": v.f_bavail, "files": v.f_files, "ffree": v.f_ffree, "favail": v.f_favail,
              "namemax": v.f_namemax}
    visit(root, b"")
    return {"statfs": statfs, "entries": entries}


def read_json(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as f:
        return json.load(f)


def check_ranges(root, name, ranges, report):
    fd = os.open(os.path.join(root, unshow(name)), os.O_RDONLY)
    try:
        for off, length, want in ranges:
            if sha_range(fd, off, length) != want:
                report("%s: bytes [%d, +%d) differ" % (name, off, length))
    finally:
        os.close(fd)


def compare(root, want, opts):
    diffs = []
    ignore = set(opts.ignore.split(",")) if opts.ignore else set()
    saved, opts.ranges = opts.ranges, 0
    got = walk(root, opts)
    opts.ranges = saved
    if "statfs" not in ignore:
        for k, v in want.get("statfs", {}).items():
            if got["statfs"][k] != v and "statfs." + k not in ignore:
                diffs.append("statfs.%s: %r, expected %r" % (k, got["statfs"][k], v))
    a, b = want["entries"], got["entries"]
    if opts.no_trash:
        a = {k: v for k, v in a.items() if k.split("/")[0] != ".trash"}
    for name in sorted(set(a) | set(b)):
        if name not in b:
            diffs.append("%s: missing" % name)
        elif name not in a:
            diffs.append("%s: not expected" % name)
        else:
            for k in sorted((set(a[name]) | set(b[name])) - ignore - {"ranges"}):
                if a[name].get(k) != b[name].get(k):
                    diffs.append("%s: %s is %s, expected %s" % (
                        name, k, str(b[name].get(k))[:200], str(a[name].get(k))[:200]))
            if "ranges" not in ignore and a[name].get("ranges") and b[name]["type"] == "file":
                check_ranges(root, name, a[name]["ranges"], diffs.append)
    return diffs, len(a)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mount")
    p.add_argument("--compare", metavar="FILE")
    p.add_argument("--ignore", default="")
    p.add_argument("--no-trash", action="store_true")
    p.add_argument("--ranges", type=int, default=20)
    p.add_argument("--seed", type=int, default=1)
    opts = p.parse_args()
    root = os.fsencode(os.path.abspath(opts.mount))
    if not opts.compare:
        json.dump(walk(root, opts), sys.stdout, indent=1, sort_keys=True)
        print()
        return
    diffs, n = compare(root, read_json(opts.compare), opts)
    for d in diffs:
        print(d)
    print("%d entries, %d differences" % (n, len(diffs)))
    sys.exit(1 if diffs else 0)


if __name__ == "__main__":
    main()
