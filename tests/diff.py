# SPDX-License-Identifier: Apache-2.0
"""The differential test's other half: thinks up sequences of operations (the seed is all they depend on), has diff_worker.py do
them on several file systems, and compares what each told.

ext4 is the measure. Where JuiceFS is known to differ it is named in LEFT_OUT and DEVIATIONS, with the reason; Stoke has none."""
import errno
import fcntl
import os
import pickle
import random
import stat
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
CHUNK = 64 << 20
NAMES = ["a", "b", "c", "d", "e f\n", "\u00fc"]
MODES = [0o644, 0o600, 0o755, 0o700, 0o666, 0o777, 0o444, 0o000, 0o4755, 0o2755, 0o6777, 0o1777, 0o2775, 0o640]
ALL = frozenset({"open", "acl", "xattr", "locks", "tmpfile", "chattr", "old times", "whiteout", "others' acl", "ofd"})


def acl_bytes(rnd):
    """a POSIX ACL as the kernel takes it, now and then one that is not valid"""
    import struct
    users = sorted(rnd.sample([0, 1001, 1002, 7], rnd.choice([0, 1, 2])))
    groups = sorted(rnd.sample([0, 1001, 2002, 9], rnd.choice([0, 0, 1, 2])))
    p = lambda: rnd.choice([7, 7, 6, 5, 4, 0, 1, 3])  # noqa: E731
    entries = [(1, p(), 0xFFFFFFFF), *((2, p(), u) for u in users), (4, p(), 0xFFFFFFFF), *((8, p(), g) for g in groups)]
    if users or groups or rnd.random() < 0.3:
        entries.append((16, p(), 0xFFFFFFFF))
    entries.append((32, p(), 0xFFFFFFFF))
    if rnd.random() < 0.05:
        entries.pop(rnd.randrange(len(entries)))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)


class Thinker:
    """Operations over a small tree. What is there is taken from the last snapshot and guessed since, so that most operations
    meet something."""

    def __init__(self, seed, features=ALL, watch=True):
        self.rnd = random.Random(seed)
        self.features, self.watch = features, watch
        self.paths = {".": "d"}
        self.seeds = 0
        self.kinds = [(weight, fn) for weight, feature, fn in (
            (4, None, self.mkdir), (2, None, self.mknod), (3, None, self.symlink), (4, None, self.link), (6, None, self.put),
            (5, None, self.unlink), (3, None, self.rmdir), (8, None, self.rename), (2, None, self.readlink), (3, None, self.readdir),
            (2, None, self.access), (2, None, self.stat), (1, None, self.statvfs), (2, None, self.truncate), (4, None, self.chmod),
            (4, None, self.chown), (3, None, self.utimens),
            (5, "open", self.create), (9, "open", self.open), (3, "open", self.close), (2, "open", self.fstat), (5, "open", self.write),
            (7, "open", self.pwrite), (1, "open", self.pwritev), (3, "open", self.read), (4, "open", self.pread), (2, "open", self.lseek),
            (3, "open", self.ftruncate), (1, "open", self.fsync), (1, "open", self.mwrite), (1, "open", self.mread),
            (1, "open", self.fchmod),
            (1, "open", self.fchown), (1, "open", self.futimens), (4, "open", self.fallocate), (2, "open", self.seek_hole),
            (3, "open", self.copy),
            (3, "xattr", self.setxattr), (1, "xattr", self.getxattr), (1, "xattr", self.listxattr), (1, "xattr", self.removexattr),
            (4, "acl", self.setfacl), (1, "acl", self.getfacl), (1, "acl", self.removefacl),
            (2, "tmpfile", self.tmpfile), (1, "tmpfile", self.linkfd), (1, "chattr", self.chattr),
            (2, "locks", self.flock), (3, "locks", self.setlk), (2, "locks", self.getlk)) if not feature or feature in features]

    # --- choosing ---
    def some(self, *kinds):
        have = [p for p, k in self.paths.items() if not kinds or k in kinds]
        return self.rnd.choice(have) if have else "."

    def a_new_path(self):
        return os.path.normpath(os.path.join(self.some("d"), self.rnd.choice(NAMES)))

    def a_path(self, *kinds):
        """mostly one that is there and of the kind wanted"""
        x = self.rnd.random()
        if x < 0.75:
            p = self.some(*kinds)
        elif x < 0.87:
            p = self.some()
        else:
            p = self.a_new_path()
        if p == ".":  # the worker's own directory stays as it is
            p = self.a_new_path()
        return p + "/" if self.rnd.random() < 0.01 else p

    def slot(self):
        return self.rnd.randrange(5)

    def offset(self):
        r = self.rnd
        x = r.random()
        if x < 0.35:
            return r.randrange(0, 9000)
        if x < 0.6:
            return r.choice([0, 1, 4095, 4096, 65535, 65536, 65537, 131072])
        if x < 0.96:
            return r.randrange(0, 300_000)
        return CHUNK + r.randrange(-70_000, 70_000)

    def length(self):
        r = self.rnd
        x = r.random()
        return r.randrange(0, 200) if x < 0.4 else r.randrange(0, 10_000) if x < 0.8 else \
            r.choice([4096, 65536, 70_000, r.randrange(200_000)])

    def data(self):
        self.seeds += 1
        return self.seeds if self.rnd.random() < 0.93 else 0

    def mode(self):
        return self.rnd.choice(MODES) if self.rnd.random() < 0.8 else self.rnd.randrange(0o10000)

    def someone(self):
        return self.rnd.choice([0, 0, 1001, 1001, 1002, 2002, -1])

    def a_time(self):
        """before 2020, so that it can be told from now"""
        r = self.rnd
        x = r.random()
        if x < 0.2:
            return 0, UTIME_NOW
        if x < 0.4:
            return 0, UTIME_OMIT
        if x < 0.5 and "old times" in self.features:
            return -r.randrange(1, 2_000_000_000), r.randrange(1_000_000_000)
        return r.choice([0, 1, 1_000_000_000, r.randrange(1_500_000_000)]), r.choice([0, 1, 999_999_999, r.randrange(1_000_000_000)])

    def op(self, name, *args, watch=(), **more):
        """watch: paths whose times are looked at before and after, with their directories"""
        out = {"op": name, "args": args, "actor": self.rnd.choice([0, 0, 0, 1, 1, 2]), **more}
        if watch and self.watch and self.rnd.random() < 0.4:
            out["watch"] = sorted({q for p in watch for q in (p.rstrip("/"), os.path.dirname(p.rstrip("/")) or ".")})
        return out

    # --- names ---
    def create(self):
        p = self.a_new_path()
        self.paths.setdefault(p, "f")
        return self.op("open", self.slot(), p, os.O_CREAT | os.O_RDWR | self.rnd.choice([0, os.O_EXCL]), self.mode(), watch=[p],
                       umask=self.rnd.choice([0o022, 0, 0o077, 0o027]))

    def mkdir(self):
        p = self.a_new_path()
        if p.count("/") < 5:
            self.paths.setdefault(p, "d")
        return self.op("mkdir", p, self.mode() | self.rnd.choice([0, 0o700]), watch=[p], umask=self.rnd.choice([0o022, 0, 0o077]))

    def mknod(self):
        p = self.a_new_path()
        what, major, minor = self.rnd.choice([(stat.S_IFIFO, 0, 0), (stat.S_IFSOCK, 0, 0), (stat.S_IFREG, 0, 0),
                                              (stat.S_IFCHR, 200, 70_000),
                                              (stat.S_IFBLK, 259, 3)])
        self.paths.setdefault(p, "o")
        return self.op("mknod", p, what | self.mode() & 0o7777, major, minor, watch=[p], umask=self.rnd.choice([0o022, 0]))

    def symlink(self):
        p = self.a_new_path()
        self.paths.setdefault(p, "l")
        target = self.rnd.choice([*NAMES[:4], "../" + self.rnd.choice(NAMES[:4]), self.rnd.choice("abcd") + "/" + self.rnd.choice("abcd"),
                                  "nowhere", "x" * self.rnd.choice([1, 300, 4000])])
        return self.op("symlink", target, p, watch=[p])

    def link(self):
        old, new = self.a_path("f", "o", "l"), self.a_new_path()
        self.paths.setdefault(new, self.paths.get(old, "f"))
        return self.op("link", old, new, self.rnd.random() < 0.2, watch=[old, new])

    def unlink(self):
        p = self.a_path("f", "l", "o")
        self.paths.pop(p, None)
        return self.op("unlink", p, watch=[p])

    def rmdir(self):
        return self.op("rmdir", self.a_path("d"), watch=[])

    def rename(self):
        old = self.a_path()
        new = self.a_new_path() if self.rnd.random() < 0.5 else self.a_path()
        flags = self.rnd.choice([0, 0, 0, 0, 1, 2, 2])
        if "whiteout" in self.features and self.rnd.random() < 0.04:
            flags = 4
        if old in self.paths and flags != 2:
            self.paths[new] = self.paths.pop(old)
        return self.op("rename", old, new, flags, watch=[] if flags == 4 else [old, new])  # ext4 touches directories when it fails

    def readlink(self):
        return self.op("readlink", self.a_path("l"))

    def readdir(self):
        return self.op("readdir", self.some("d"))

    def access(self):
        return self.op("access", self.a_path(), self.rnd.choice([os.F_OK, os.R_OK, os.W_OK, os.X_OK, os.R_OK | os.W_OK]))

    def stat(self):
        return self.op("stat", self.a_path(), self.rnd.random() < 0.5)

    def statvfs(self):
        return self.op("statvfs", self.a_path())

    # --- open files ---
    def open(self):
        p = self.a_path("f", "f", "f")
        r = self.rnd
        flags = r.choice([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR])
        for f, chance in ((os.O_CREAT, 0.3), (os.O_EXCL, 0.03), (os.O_TRUNC, 0.15), (os.O_APPEND, 0.2), (os.O_NOFOLLOW, 0.1),
                          (os.O_DIRECTORY, 0.02), (os.O_SYNC, 0.05)):
            if r.random() < chance:
                flags |= f
        if flags & os.O_DIRECTORY and flags & os.O_CREAT:
            flags &= ~os.O_DIRECTORY  # the kernel's answer to both together has changed over the years
        return self.op("open", self.slot(), p, flags, self.mode(), watch=[p])

    def put(self):
        p = self.a_path("f", "f", "f") if self.rnd.random() < 0.5 else self.a_new_path()
        self.paths.setdefault(p, "f")
        flags = os.O_WRONLY | os.O_CREAT | self.rnd.choice([0, os.O_TRUNC, os.O_APPEND, os.O_EXCL])
        return self.op("put", p, flags, self.mode() | 0o600, self.offset(), self.data(), self.length(), watch=[p],
                       umask=self.rnd.choice([0o022, 0, 0o077]))

    def close(self):
        return self.op("close", self.slot())

    def fstat(self):
        return self.op("fstat", self.slot())

    def write(self):
        return self.op("write", self.slot(), self.data(), self.length())

    def pwrite(self):
        return self.op("pwrite", self.slot(), self.offset(), self.data(), self.length())

    def pwritev(self):
        return self.op("pwritev", self.slot(), self.offset(), self.data(), self.length())

    def read(self):
        return self.op("read", self.slot(), self.length())

    def pread(self):
        return self.op("pread", self.slot(), self.offset(), self.length())

    def lseek(self):
        return self.op("lseek", self.slot(), self.rnd.choice([0, self.offset(), -1]),
                       self.rnd.choice([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END]))

    def seek_hole(self):
        return self.op("lseek", self.slot(), self.offset(), self.rnd.choice([os.SEEK_DATA, os.SEEK_HOLE]))

    def ftruncate(self):
        return self.op("ftruncate", self.slot(), self.rnd.choice([0, self.offset(), self.offset(), self.length()]))

    def truncate(self):
        p = self.a_path("f")
        return self.op("truncate", p, self.rnd.choice([0, self.offset(), self.length(), -1]), watch=[p])

    def fallocate(self):
        mode = self.rnd.choice([0, 0, 1, 3, 3, 16, 17, 2])
        return self.op("fallocate", self.slot(), mode, self.offset(), self.rnd.choice([self.length(), self.length(), 0, 4096]))

    def copy(self):
        return self.op("copy", self.slot(), self.offset(), self.slot(), self.offset(), self.length())

    def fsync(self):
        return self.op("fsync", self.slot(), self.rnd.random() < 0.5)

    def mwrite(self):
        return self.op("mwrite", self.slot(), self.offset(), self.data(), self.length() + 1)

    def mread(self):
        return self.op("mread", self.slot())

    def tmpfile(self):
        return self.op("tmpfile", self.slot(), self.some("d"), self.mode())

    def linkfd(self):
        p = self.a_new_path()
        return self.op("linkfd", self.slot(), p, watch=[p])

    # --- attributes ---
    def chmod(self):
        p = self.a_path()
        return self.op("chmod", p, self.mode(), watch=[p])

    def fchmod(self):
        return self.op("fchmod", self.slot(), self.mode())

    def chown(self):
        p = self.a_path()
        uid = self.someone()
        return self.op("chown", p, uid, self.rnd.choice([0, 1001, 2002]) if uid == -1 else self.someone(),
                       self.rnd.random() < 0.5, watch=[p])

    def fchown(self):
        return self.op("fchown", self.slot(), self.someone(), self.someone())

    def utimens(self):
        p = self.a_path()
        return self.op("utimens", p, self.a_time(), self.a_time(), self.rnd.random() < 0.5, watch=[p])

    def futimens(self):
        return self.op("futimens", self.slot(), self.a_time(), self.a_time())

    def xname(self):
        return self.rnd.choice(["user.a", "user.b", "user." + "n" * 250, "trusted.t"])

    def setxattr(self):
        value = self.rnd.choice([b"", b"v", b"two\0parts", b"long" * 300])
        return self.op("setxattr", self.a_path("f", "d"), self.xname(), value, self.rnd.choice([0, 0, 1, 2]), self.rnd.random() < 0.7)

    def getxattr(self):
        return self.op("getxattr", self.a_path("f", "d"), self.xname(), self.rnd.random() < 0.7)

    def listxattr(self):
        return self.op("listxattr", self.a_path("f", "d"), self.rnd.random() < 0.7)

    def removexattr(self):
        return self.op("removexattr", self.a_path("f", "d"), self.xname(), self.rnd.random() < 0.7)

    def aclname(self):
        return "system.posix_acl_" + self.rnd.choice(["access", "access", "default"])

    def setfacl(self):
        p = self.a_path("f", "d", "d")
        op = self.op("setxattr", p, self.aclname(), acl_bytes(self.rnd), 0, True, watch=[p])
        if "others' acl" not in self.features:
            op["actor"] = 0
        return op

    def getfacl(self):
        return self.op("getxattr", self.a_path("f", "d"), self.aclname(), True)

    def removefacl(self):
        return self.op("removexattr", self.a_path("f", "d"), self.aclname(), True)

    def chattr(self):
        """Immutable and append-only, taken off again soon: they would freeze the tree otherwise. What is done meanwhile is root's
        and by name: to others the kernel says EACCES where ext4 says EPERM, and descriptors that are open stay writable. Which
        error is told is not compared: the kernel, which does not know the flags of a FUSE file, tells ENOTDIR before EPERM."""
        p = self.a_path("f", "d")
        some = [self.rnd.choice([self.create, self.mkdir, self.link, self.unlink, self.rmdir, self.rename, self.open, self.truncate,
                                 self.chmod,
                                 self.chown, self.utimens, self.setxattr, self.removexattr]) for _ in range(3)]
        self.after = [self.op("freeze", p, self.rnd.choice([0x10, 0x20])), *(fn() for fn in some), self.op("thaw")]
        for op in self.after:
            op["actor"], op["frozen"] = 0, True
        return self.op("nothing")

    # --- locks ---
    def flock(self):
        return self.op("flock", self.slot(), self.rnd.choice([fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN]))

    def lock_args(self):
        start = self.rnd.choice([0, 5, 10, 100, self.rnd.randrange(200)])
        return self.rnd.choice([fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_WRLCK]), start, \
            self.rnd.choice([0, 1, 5, 10, self.rnd.randrange(200)])

    def setlk(self):
        kind, start, n = self.lock_args()
        return self.op("setlk", self.slot(), self.rnd.random() < 0.3 and "ofd" in self.features,
                       self.rnd.choice([kind, kind, fcntl.F_UNLCK]), start, n)

    def getlk(self):
        return self.op("getlk", self.slot(), self.rnd.random() < 0.3, *self.lock_args())

    # --- batches ---
    def one(self):
        return self.rnd.choices([fn for _, fn in self.kinds], [w for w, _ in self.kinds])[0]()

    def batch(self, n):
        out = []
        while len(out) < n:
            self.after = []
            first = self.one()
            after, self.after = self.after, []
            out += [o for o in [first, *after] if o["op"] != "nothing"]
        return out

    def seen(self, snapshot):
        kinds = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l"}
        self.paths = {p: kinds.get(stat.S_IFMT(int(e["mode"], 8)), "o") for p, e in snapshot.items() if p != "statvfs"}
        self.paths = {os.path.normpath(p): k for p, k in self.paths.items()}


class Worker:
    def __init__(self, name, folder):
        self.name, self.folder, self.spent = name, folder, 0.0
        self.p = subprocess.Popen([sys.executable, f"{HERE}/diff_worker.py", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, what):
        self.t0 = time.monotonic()
        pickle.dump(what, self.p.stdin)
        self.p.stdin.flush()

    def receive(self):
        out = pickle.load(self.p.stdout)
        self.spent += time.monotonic() - self.t0
        return out

    def stop(self):
        self.p.stdin.close()
        self.p.wait(60)


class Ext4:
    """a directory of ext4 without atime updates: a bind mount of one that is there, or an image"""

    def __init__(self, folder):
        self.dir = f"{folder}/ext4"
        os.makedirs(self.dir)
        kind = subprocess.run(["stat", "-f", "-c", "%T", folder], text=True, capture_output=True, check=True).stdout.strip()
        if kind.startswith("ext2"):
            self.run("mount", "--bind", self.dir, self.dir)
            self.run("mount", "-o", "remount,bind,noatime", self.dir)
        else:
            self.run("truncate", "-s", "1G", f"{folder}/ext4.img")
            self.run("mkfs.ext4", "-q", f"{folder}/ext4.img")
            self.run("mount", "-o", "loop,noatime", f"{folder}/ext4.img", self.dir)
        os.chmod(self.dir, 0o777)

    def run(self, *argv):
        subprocess.run(argv, check=True, capture_output=True)

    def fine_times(self):
        """kernels before 6.13 keep times in steps of some milliseconds: what moved cannot be told then"""
        p = f"{self.dir}/.times"
        open(p, "w").close()
        seen = set()
        for mode in (0o600, 0o644, 0o640):
            os.chmod(p, mode)
            seen.add(os.stat(p).st_ctime_ns)
        os.unlink(p)
        return len(seen) == 3

    def stop(self):
        self.run("umount", "-l", self.dir)


class Different(AssertionError):
    pass


# Where JuiceFS 1.4.2 is known to tell something else than ext4. What is named here is not compared on its side, everything else
# has to be equal; Stoke has no such list. Operations whose effects would differ (LEFT_OUT) are played without JuiceFS.
LEFT_OUT = {
    "old times": "a time before 1970 becomes now",
    "whiteout": "RENAME_WHITEOUT is refused",
    "tmpfile": "a name comes and goes, which moves the directory's times; linked later, the file is lost at its last close",
    "locks": "a record lock can stay when a descriptor of its file is closed",
    "ofd": "a lock of an open file (OFD) stays when that is closed",
    "others' acl": "a directory loses setgid though its group is one of the caller's",
    "chattr": "descriptors opened before stay writable; EPERM comes after other errors",
}
LEFT_OUT_WITH_TRASH = {
    "open": "an open file that went to the trash cannot be changed any more: mode, owner, times, and writes that have to clear suid",
}
DEVIATIONS = {  # operation -> (what is blanked, why)
    "chown": ("watch", "an owner that is the same already moves no ctime"),
    "chmod": ("watch", "a mode that is the same already moves no ctime"),
    "truncate": ("watch", "the same length moves no times"),
    "open": ("watch", "O_TRUNC of an empty file moves no times, and leaves suid"),
    "setxattr": ("watch", "ACLs: an equal one moves no ctime"),
    "put": ("watch", "as open"),
    "utimens": ("watch", "times that are the same already move no ctime"),
    "listxattr": ("value", "trusted.* is told to everybody"),
}


def blank(op, r):
    what, _ = DEVIATIONS.get(op["op"], ("", ""))
    if what == "watch" and len(r) == 3:
        r = r[:2]
    if what == "value" and r[0] == "ok":
        r = ("ok", [n for n in r[1] if not n.startswith("trusted.")])
    if isinstance(r[1], dict) and r[1]["mode"].startswith("0o10") and len(r[1]["mode"]) == 8:
        r = (r[0], {**r[1], "mtime": None}, *r[2:])  # the time of a write shows when it is flushed
    return r


def compare_results(batch, want, got, juicefs):
    """[(number in the batch, operation, what ext4 told, what this one told)]"""
    return [(i, op, w, g) for i, (op, w, g) in enumerate(zip(batch, want, got))
            if w != g and not (juicefs and blank(op, w) == blank(op, g)) and not ("frozen" in op and w[0] == g[0] == "error")]


def compare_trees(want, got, ignore, juicefs=False):
    out = []
    for path in sorted(set(want) | set(got)):
        if path == "statvfs":
            continue
        if path not in want or path not in got:
            out.append(f"{path}: {'there is no such' if path not in got else 'should not be there'}")
            continue
        out += [f"{path}: {k} is {got[path].get(k)!r}, should be {want[path].get(k)!r}" for k in sorted(set(want[path]) | set(got[path]))
                if k not in ignore and want[path].get(k) != got[path].get(k)
                and not (juicefs and k == "mtime" and stat.S_ISREG(int(want[path]["mode"], 8)))]
    return out


def without_links(r):
    return (r[0], {**r[1], "nlink": None}, *r[2:]) if isinstance(r[1], dict) else r


def play(measure, others, thinker, total, each=250, trash=False):
    """measure: the worker that is right; others: [(worker, may it deviate as JuiceFS does)]. Stops at the first difference.
    trash: the others have one, in which a deleted file keeps its links."""
    everyone = [measure, *(w for w, _ in others)]

    def ask(what):
        for w in everyone:
            w.send(what)
        return [w.receive() for w in everyone]
    done, kinds, lately = 0, {}, []
    while done < total:
        batch = thinker.batch(min(each, total - done))
        results = ask(batch)
        if trash:
            results = [[without_links(r) for r in rs] for rs in results]
        wrong = []
        for (w, excuse), got in zip(others, results[1:]):
            wrong += [f"operation {done + i} on {w.name}: {show(op)}\n    {w.name}: {g}\n    {measure.name}: {want}"
                      for i, op, want, g in compare_results(batch, results[0], got, excuse)]
        for op, r in zip(batch, results[0]):
            key = op["op"], r[0] if r[0] == "ok" else r[1]
            kinds[key] = kinds.get(key, 0) + 1
        if wrong:
            first = int(wrong[0].split()[1]) - done
            lately = (lately + [(o, r) for o, r in zip(batch, results[0])])
            at = len(lately) - len(batch) + first
            raise Different("\n".join([f"{len(wrong)} differences, the first:", *wrong[:3], "before it:",
                                       *related(lately[:at + 1])]))
        trees = ask("snapshot")
        for (w, excuse), tree in zip(others, trees[1:]):
            bad = compare_trees(trees[0], tree, {"blocks", "nlink"} if trash else {"blocks"}, excuse)
            if bad:
                paths = {os.path.normpath(b.split(":")[0]) for b in bad}
                raise Different("\n".join([f"after operation {done + len(batch)} on {w.name}:", *bad[:8], "the batch:",
                                           *(f"{show(o)} -> {r}" for o, r in zip(batch, results[0])
                                             if r[0] == "ok" and (o["op"] in FD_OPS or any(p in paths for p in spelled(o))))]))
        for (w, _), tree in list(zip(others, trees[1:]))[1:]:
            bad = compare_trees(trees[1], tree, {"mtime"})
            if tree["statvfs"] != trees[1]["statvfs"]:
                bad.append(f"statvfs: {tree['statvfs']} on {w.name}, {trees[1]['statvfs']} on {others[0][0].name}")
            if bad:
                raise Different("\n".join([f"after operation {done + len(batch)}, {w.name} and {others[0][0].name}:", *bad[:8]]))
        thinker.seen(trees[0])
        lately = (lately + list(zip(batch, results[0])))[-2000:]
        done += len(batch)
    return kinds


FD_OPS = {"open", "close", "write", "pwrite", "pwritev", "ftruncate", "fallocate", "copy", "fsync", "mwrite", "fchmod", "fchown",
          "futimens",
          "linkfd", "tmpfile", "lseek"}


def spelled(op):
    return [os.path.normpath(a) for a in op["args"] if isinstance(a, str)]


def show(op):
    args = ", ".join(repr(a)[:60] for a in op["args"])
    return f"actor {op['actor']} {op['op']}({args})" + (f" umask {op['umask']:o}" if "umask" in op else "")


def related(lately):
    """of what was done lately, what may have to do with the last one"""
    op = lately[-1][0]
    paths = {q for p in spelled(op) for q in (p, os.path.dirname(p))} - {"", "."}
    slots = {op["args"][0]} if op["args"] and isinstance(op["args"][0], int) else set()
    out = []
    for o, r in lately:
        mine = o["args"] and isinstance(o["args"][0], int) and o["args"][0] in slots and o["actor"] == op["actor"]
        if r[0] == "ok" and (mine or paths & set(spelled(o))):
            out.append(f"    {show(o)} -> {r}")
    return out[-25:]
