# SPDX-License-Identifier: Apache-2.0
"""A volume's database, read by volume-format.md alone: what is wrong with it in itself (faults), and a description that does not
depend on inode numbers, slice numbers and times (describe), so that two volumes can be compared.

Nothing may be mounted meanwhile, or what is flushed later is missing."""
import struct
from collections import Counter, namedtuple

TRASH = 0x7FFFFFFF10000000
CHUNK = 64 << 20
Attr = namedtuple("Attr", "flags type mode uid gid atime mtime ctime nlink length rdev parent access default tier")
STAMPS = {"lastCleanupSessions", "lastCleanupFiles", "nextCleanupSlices", "lastCleanupTrash", "lastCleanupChangelog"}
COUNTERS = {"nextinode", "nextchunk", "nextsession", "nextTrash", "aclMaxId", "usedSpace", "totalInodes"}


def attr(b):
    flags, tm, uid, gid, at, an, mt, mn, ct, cn, nlink, length, rdev, parent = struct.unpack(">BHIIqIqIqIIQIQ", b[:71])
    rest = b[71:]
    access = default = tier = 0
    if len(rest) >= 8:
        access, default = struct.unpack(">II", rest[:8])
        rest = rest[8:]
    if rest:
        tier = rest[0]
    return Attr(flags, tm >> 12, tm & 0xFFF, uid, gid, (at, an), (mt, mn), (ct, cn), nlink, length, rdev, parent, access, default, tier)


def right_size(b, a):
    return len(b) == 72 + (8 if a.access or a.default else 0) + (1 if a.tier else 0)


def align(n):
    return max(1, -(-n // 4096)) * 4096


def view(records):
    """[(start, end, slice or 0)] without gaps between: later records win"""
    marks = sorted({0, CHUNK, *(r[0] for r in records), *(r[0] + r[4] for r in records)})
    out = []
    for a, b in zip(marks, marks[1:]):
        hit = next((r for r in reversed(records) if r[0] <= a and b <= r[0] + r[4]), None)
        out.append((a, b, hit[1] if hit else 0))
    return out


class Volume:
    def __init__(self, client, prefix=""):
        self.bad = []
        keys = sorted(client.scan_iter("*", count=10000))
        types = client.pipeline(transaction=False)
        for k in keys:
            types.type(k)
        types = types.execute()
        values = client.pipeline(transaction=False)
        there = [(k, t) for k, t in zip(keys, types) if t != b"none"]  # some end by themselves
        keys, types = [k for k, _ in there], [t for _, t in there]
        for k, t in zip(keys, types):
            {b"string": values.get, b"hash": values.hgetall, b"set": values.smembers, b"list": lambda k: values.lrange(k, 0, -1),
             b"zset": lambda k: values.zrange(k, 0, -1, withscores=True)}[t](k)
        self.keys = {k.decode()[len(prefix):]: v for k, v in zip(keys, values.execute())}
        self.attrs, self.dirs, self.chunks, self.links, self.parents, self.xattrs = {}, {}, {}, {}, {}, {}
        self.other = {}
        for k, v in self.keys.items():
            kind, rest = k[0], k[1:]
            if kind == "i" and rest.isdigit():
                self.attrs[int(rest)] = attr(v)
                if not right_size(v, attr(v)):
                    self.bad.append(f"{k}: {len(v)} bytes for {attr(v)}")
            elif kind == "d" and rest.isdigit():
                self.dirs[int(rest)] = {n: struct.unpack(">BQ", e) for n, e in v.items()}
            elif kind == "c" and rest.replace("_", "", 1).isdigit():
                inode, index = map(int, rest.split("_"))
                self.chunks[inode, index] = [struct.unpack(">IQIII", r) for r in v]
            elif kind == "s" and rest.isdigit():
                self.links[int(rest)] = v
            elif kind == "p" and rest.isdigit():
                self.parents[int(rest)] = {int(p): int(n) for p, n in v.items() if int(n) > 0}
            elif kind == "x" and rest.isdigit():
                self.xattrs[int(rest)] = v
            elif kind != "_" and k not in ("setting", *STAMPS):
                self.other[k] = v

    def hash(self, name):
        return {f.decode(): v for f, v in self.other.get(name, {}).items()}

    def counter(self, name):
        return int(self.other.get(name, 0))

    def acl(self, n):
        return self.other.get("acl", {}).get(str(n).encode(), b"missing").hex() if n else ""

    def names(self):
        """inode -> [(directory, name, type)]"""
        out = {}
        for d, entries in self.dirs.items():
            for n, (kind, inode) in entries.items():
                out.setdefault(inode, []).append((d, n, kind))
        return out

    def reached(self):
        """inodes to which names lead from the root or the trash: two directories moved into each other have names, and are lost"""
        out, todo = {1, TRASH}, [1, TRASH]
        while todo:
            new = {inode for _, inode in self.dirs.get(todo.pop(), {}).values()} - out
            out |= new
            todo += new
        return out

    def faults(self, dir_stats=True, trash=True):
        """What contradicts itself. Whoever was here has unmounted, so no session, lock, or open file may be left."""
        bad, where = list(self.bad), self.names()
        for inode, a in self.attrs.items():
            entries = where.get(inode, [])
            if inode in (1, TRASH):
                continue
            if not entries:
                bad.append(f"i{inode}: no name: {a}")
                continue
            bad += [f"d{d}/{n!r}: type {kind}, but i{inode} has {a.type}" for d, n, kind in entries if kind != a.type]
            if a.type == 2:
                if a.parent != entries[0][0] or len(entries) > 1:
                    bad.append(f"i{inode}: parent {a.parent}, names in {entries}")
                subs = sum(kind == 2 for kind, _ in self.dirs.get(inode, {}).values())
                if a.nlink != 2 + subs and inode < TRASH:
                    bad.append(f"i{inode}: nlink {a.nlink}, {subs} directories in it")
            else:
                if a.nlink != len(entries) and not any(d >= TRASH for d, _, _ in entries):
                    bad.append(f"i{inode}: nlink {a.nlink}, names {entries}")
                want = dict(Counter(d for d, _, _ in entries))
                if a.parent == 0 and self.parents.get(inode, {}) != want:
                    bad.append(f"p{inode}: {self.parents.get(inode)}, names in {want}")
                if a.parent and list(want) != [a.parent]:
                    bad.append(f"i{inode}: parent {a.parent}, names in {want}")
            if a.type == 3 and (len(self.links.get(inode, b"")) != a.length or not a.length):
                bad.append(f"s{inode}: {self.links.get(inode)!r}, length {a.length}")
        for inode, entries in where.items():
            if inode not in self.attrs:
                bad.append(f"{entries}: no i{inode}")
        reached = self.reached()
        bad += [f"i{i}: named, but there is no way to it from the root or the trash" for i in self.attrs if i in where and i not in reached]
        for what, have in (("s", self.links), ("p", self.parents), ("x", self.xattrs), ("d", self.dirs)):
            bad += [f"{what}{i}: no such inode" for i in have if i not in self.attrs and not (what == "d" and i == TRASH)]
        pending = {tuple(map(int, m.decode().split(":"))) for m, _ in self.other.get("delfiles", [])}
        for (inode, index), records in self.chunks.items():
            if inode not in self.attrs:
                if inode not in {i for i, _ in pending}:
                    bad.append(f"c{inode}_{index}: no such inode")
                continue
            length = self.attrs[inode].length - index * CHUNK
            for a, b, hit in view(records):
                if hit and b > length:
                    bad.append(f"c{inode}_{index}: slice {hit} at [{a}, {b}) beyond the length {length}")
            bad += [f"c{inode}_{index}: {r}" for r in records if r[1] and (r[3] + r[4] > r[2] or r[0] + r[4] > CHUNK)]
        refs = Counter((r[1], r[2]) for records in self.chunks.values() for r in records if r[1])
        for value in self.other.get("delSlices", {}).values():
            refs.update(struct.unpack(">QI", value[i:i + 12]) for i in range(0, len(value), 12))
        for field, n in self.hash("sliceRef").items():
            slice_, size = map(int, field[1:].split("_"))
            if refs[slice_, size] != int(n) + 1:
                bad.append(f"sliceRef {field}: {int(n) + 1} references, {refs[slice_, size]} seen")
        bad += [f"sliceRef k{s}_{size}: 1 reference, {n} seen" for (s, size), n in refs.items()
                if n > 1 and f"k{s}_{size}" not in self.hash("sliceRef")]
        counted = [(i, a) for i, a in self.attrs.items() if i not in (1, TRASH)]
        used = sum(align(a.length) if a.type == 1 else 4096 for _, a in counted)
        if self.counter("usedSpace") != used:
            bad.append(f"usedSpace {self.counter('usedSpace')}, counted {used}")
        if self.counter("totalInodes") != len(counted):
            bad.append(f"totalInodes {self.counter('totalInodes')}, counted {len(counted)}")
        if dir_stats:
            bad += self.stat_faults()
        for k in self.other:
            if k.startswith(("session", "locked", "lockf", "lockp")) and k != "sessionInfos" or k in ("allSessions", "detachedNodes"):
                bad.append(f"{k} is left: {self.other[k]}")
        bad += [f"delfiles: {m} waits" for m in pending]
        return bad

    def stat_faults(self):
        bad = []
        stats = [self.hash(n) for n in ("dirDataLength", "dirUsedSpace", "dirUsedInodes")]
        for d in [i for i, a in self.attrs.items() if a.type == 2 and i < TRASH]:
            kids = [self.attrs[i] for _, i in self.dirs.get(d, {}).values() if i in self.attrs]
            want = (sum(a.length for a in kids if a.type == 1), sum(align(a.length) if a.type == 1 else 4096 for a in kids), len(kids))
            have = tuple(int(s[str(d)]) if str(d) in s else None for s in stats)
            if have != want and have != (None, None, None) and self.attrs[d].parent < TRASH:
                bad.append(f"statistics of directory {d}: (length, space, inodes) {have}, counted {want}")
        return bad

    def describe(self):
        """{path: what is there}, the trash as a multiset of what was deleted"""
        out, paths = {}, {1: ["/"]}
        todo = [(1, "")]
        while todo:
            d, path = todo.pop()
            for n, (_, inode) in sorted(self.dirs.get(d, {}).items()):
                p = f"{path}/{n.decode(errors='backslashreplace')}"
                paths.setdefault(inode, []).append(p)
                if inode in self.attrs and self.attrs[inode].type == 2:
                    todo.append((inode, p))
        for inode, ps in paths.items():
            out[" = ".join(sorted(ps))] = self.what(inode, paths)
        gone = Counter()
        for d, entries in self.dirs.items():
            if d > TRASH:
                for n, (kind, inode) in entries.items():
                    a = self.attrs.get(inode)
                    name = n.split(b"-", 2)[-1].decode(errors="backslashreplace")
                    gone[name, kind, a and (a.type, oct(a.mode), a.uid, a.gid, a.length, a.nlink)] += 1
        return out, gone

    def what(self, inode, paths):
        a = self.attrs.get(inode)
        if not a:
            return None
        e = {k: getattr(a, k) for k in ("flags", "type", "uid", "gid", "nlink", "length", "rdev", "tier")}
        e["mode"] = oct(a.mode)
        e["acl"] = self.acl(a.access), self.acl(a.default)
        if a.type != 2:
            e["linked"] = a.parent == 0
        if inode in self.links:
            e["target"] = self.links[inode]
        if inode in self.xattrs:
            e["xattrs"] = self.xattrs[inode]
        return e

    def shape(self):
        """which keys there are, inode and slice numbers left out, and what depends on when somebody compacted and deleted"""
        return sorted(set(self.other) - {"sliceRef", "delSlices"})


def differences(want, got):
    """between two Volumes that were treated alike"""
    (a, trash_a), (b, trash_b) = want.describe(), got.describe()
    out = [f"{p}: {b.get(p)}, should be {a.get(p)}" for p in sorted(set(a) | set(b)) if a.get(p) != b.get(p)]
    if trash_a != trash_b:
        out.append(f"trash: too many {dict(trash_b - trash_a)}, missing {dict(trash_a - trash_b)}")
    if want.shape() != got.shape():
        out.append(f"keys {got.shape()}, should be {want.shape()}")
    return out
