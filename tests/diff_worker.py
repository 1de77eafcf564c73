#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Does what tests/diff.py thinks up in one directory, by several processes ("actors") of different users, one operation at a time.

Batches come as pickles on stdin, results go to stdout. A result tells what a program can see: a value or an errno, and which
of the times of the files involved moved. Only what every file system must agree on is told: a result that is free within
bounds (SEEK_HOLE) is checked against the bounds here and told as "fits"."""
import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import pickle
import random
import socket
import stat
import struct
import sys

ACTORS = [(0, 0, []), (1001, 1001, [1001, 2002]), (0, 0, [])]  # uid, gid, groups
LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS = 0x80086601, 0x40086602
F_OFD_GETLK, F_OFD_SETLK = 36, 37
FLOCK = "hhqqi4x"
BIG = 32 << 20
WRITES = {"write", "pwrite", "pwritev", "mwrite", "freeze", "thaw"}  # a change of flags shows late, too


def data_of(seed, n):
    return bytes(n) if seed == 0 else random.Random(seed).randbytes(n)


def syscall(fn, *args):
    if fn(*args) < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))


def kind(path, follow=True):
    try:
        return stat.S_IFMT((os.stat if follow else os.lstat)(path).st_mode)
    except OSError:
        return 0


def device(path):
    """opening one asks its driver, not the file system"""
    return kind(path) in (stat.S_IFCHR, stat.S_IFBLK)


def set_flags(fd, flag):
    have = struct.unpack("Q", fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(8)))[0] & 0xFFFFFFFF
    fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("Q", have & ~0x30 | flag))


def zeros(fd, a, b):
    """are [a, b) of fd all zeros?"""
    while a < b:
        d = os.pread(fd, min(b - a, 1 << 20), a)
        if not d:
            return True
        if d.count(0) != len(d):
            return False
        a += len(d)
    return True


class Actor:
    def __init__(self):
        self.fds, self.special = {}, set()
        self.frozen, self.thawed = None, []

    def fd(self, slot):
        if slot not in self.fds:
            raise OSError(errno.EBADF, "")
        return self.fds[slot]

    def file(self, slot):
        """A descriptor whose attributes the file system keeps. The kernel tells a FUSE file system nothing of open fifos and
        sockets: theirs go with the last name."""
        fd = self.fd(slot)
        if fd in self.special:
            raise OSError(errno.ENOTSUP, "")
        return fd

    # --- names ---
    def do_mkdir(self, path, mode):
        os.mkdir(path, mode)

    def do_mknod(self, path, mode, major, minor):
        os.mknod(path, mode, os.makedev(major, minor))

    def do_symlink(self, target, path):
        os.symlink(target, path)

    def do_link(self, old, new, follow):
        syscall(LIBC.linkat, AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), 0x400 if follow else 0)

    def do_unlink(self, path):
        os.unlink(path)

    def do_rmdir(self, path):
        os.rmdir(path)

    def do_rename(self, old, new, flags):
        syscall(LIBC.renameat2, AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags)

    def do_readlink(self, path):
        return os.readlink(path)

    def do_readdir(self, path):
        return sorted((e.name, stat.S_IFMT(e.stat(follow_symlinks=False).st_mode)) for e in os.scandir(path))

    def do_access(self, path, mode):
        return os.access(path, mode)

    def do_stat(self, path, follow):
        return told((os.stat if follow else os.lstat)(path))

    def do_statvfs(self, path):
        v = os.statvfs(path)
        return v.f_namemax, v.f_bsize

    # --- open files ---
    def do_open(self, slot, path, flags, mode):
        if device(path):
            return "a device"
        fd = os.open(path, flags | os.O_NONBLOCK, mode)
        self.fds[slot] = fd
        st = os.fstat(fd)
        if not stat.S_ISREG(st.st_mode) and not stat.S_ISDIR(st.st_mode):
            self.special.add(fd)
        return told(st)

    def do_put(self, path, flags, mode, off, seed, n):
        """a file written and closed"""
        if device(path):
            return "a device"
        fd = os.open(path, flags | os.O_NONBLOCK, mode)
        try:
            return os.pwrite(fd, data_of(seed, n), off) if kind(f"/proc/self/fd/{fd}") == stat.S_IFREG else "not a file"
        finally:
            os.close(fd)

    def do_tmpfile(self, slot, path, mode):
        fd = os.open(path, os.O_TMPFILE | os.O_RDWR, mode)
        self.fds[slot] = fd
        return told(os.fstat(fd))

    def do_linkfd(self, slot, path):
        syscall(LIBC.linkat, AT_FDCWD, f"/proc/self/fd/{self.fd(slot)}".encode(), AT_FDCWD, os.fsencode(path), 0x400)

    def close(self, slot):
        if slot in self.fds:
            fd = self.fds.pop(slot)
            self.special.discard(fd)
            os.close(fd)

    def do_close(self, slot):
        self.fd(slot)
        self.close(slot)

    def do_fstat(self, slot):
        return told(os.fstat(self.file(slot)))

    def do_write(self, slot, seed, n):
        return os.write(self.file(slot), data_of(seed, n))

    def do_pwrite(self, slot, off, seed, n):
        return os.pwrite(self.file(slot), data_of(seed, n), off)

    def do_pwritev(self, slot, off, seed, n):
        d = data_of(seed, n)
        return os.pwritev(self.file(slot), [d[:n // 3], d[n // 3:n // 2], d[n // 2:]], off)

    def do_read(self, slot, n):
        return digest(os.read(self.file(slot), n))

    def do_pread(self, slot, off, n):
        return digest(os.pread(self.file(slot), n, off))

    def do_lseek(self, slot, off, whence):
        fd = self.file(slot)
        if kind(f"/proc/self/fd/{fd}") != stat.S_IFREG:
            return "not a file"  # places in a directory are each file system's own
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            return os.lseek(fd, off, whence)
        size, here = os.fstat(fd).st_size, os.lseek(fd, 0, os.SEEK_CUR)
        if off >= size:
            return "past the end"  # ext4 finds what was allocated there
        if not readable(fd):
            return "not to be told"
        try:
            at = os.lseek(fd, off, whence)
        except OSError as e:
            if e.errno == errno.ENXIO and whence == os.SEEK_DATA and zeros(fd, off, size):
                return "fits"
            raise
        finally:
            os.lseek(fd, here, os.SEEK_SET)
        if not off <= at <= size:
            return f"{at} is outside of [{off}, {size}]"
        if whence == os.SEEK_DATA and not zeros(fd, off, at):
            return f"data before {at}"
        if whence == os.SEEK_HOLE and at < size and not zeros(fd, at, at + 1):
            return f"no hole at {at}"
        if whence == os.SEEK_DATA and at == size:
            return "data at the end"
        return "fits"

    def do_ftruncate(self, slot, n):
        os.ftruncate(self.file(slot), n)

    def do_truncate(self, path, n):
        os.truncate(path, n)

    def do_fallocate(self, slot, mode, off, n):
        syscall(LIBC.fallocate, self.file(slot), mode, ctypes.c_long(off), ctypes.c_long(n))

    def do_copy(self, slot_in, off_in, slot_out, off_out, n):
        return os.copy_file_range(self.fd(slot_in), self.fd(slot_out), n, off_in, off_out)

    def do_fsync(self, slot, only_data):
        (os.fdatasync if only_data else os.fsync)(self.file(slot))

    def do_mwrite(self, slot, off, seed, n):
        fd = self.file(slot)
        size = os.fstat(fd).st_size
        if kind(f"/proc/self/fd/{fd}") != stat.S_IFREG or not readable(fd) or off >= size:
            return "not mapped"
        n = min(n, size - off)
        page = off & ~4095
        with mmap.mmap(fd, off + n - page, offset=page) as m:
            m[off - page:off - page + n] = data_of(seed, n)
            m.flush()
        return n

    def do_mread(self, slot):
        fd = self.file(slot)
        size = os.fstat(fd).st_size
        if kind(f"/proc/self/fd/{fd}") != stat.S_IFREG or not 0 < size <= BIG:
            return "not mapped"
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as m:
            return digest(m[:])

    # --- attributes ---
    def do_chmod(self, path, mode):
        os.chmod(path, mode)

    def do_fchmod(self, slot, mode):
        os.fchmod(self.file(slot), mode)

    def do_chown(self, path, uid, gid, follow):
        os.chown(path, uid, gid, follow_symlinks=follow)

    def do_fchown(self, slot, uid, gid):
        os.fchown(self.file(slot), uid, gid)

    def do_utimens(self, path, atime, mtime, follow):
        """a time is (seconds, nanoseconds); nanoseconds may be UTIME_NOW, UTIME_OMIT"""
        ts = struct.pack("qqqq", *atime, *mtime)
        syscall(LIBC.utimensat, AT_FDCWD, os.fsencode(path), ts, 0 if follow else 0x100)

    def do_futimens(self, slot, atime, mtime):
        syscall(LIBC.futimens, self.file(slot), struct.pack("qqqq", *atime, *mtime))

    def do_setxattr(self, path, name, value, flags, follow):
        os.setxattr(path, name, value, flags, follow_symlinks=follow)

    def do_getxattr(self, path, name, follow):
        return os.getxattr(path, name, follow_symlinks=follow)

    def do_listxattr(self, path, follow):
        return sorted(os.listxattr(path, follow_symlinks=follow))

    def do_removexattr(self, path, name, follow):
        os.removexattr(path, name, follow_symlinks=follow)

    def do_freeze(self, path, flag):
        """until thaw, which finds it by the descriptor, wherever it is by then"""
        if self.frozen is not None or kind(path) not in (stat.S_IFREG, stat.S_IFDIR):
            return "not now"
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            set_flags(fd, flag)
        except OSError:
            os.close(fd)
            raise
        self.frozen = fd

    def do_thaw(self):
        if self.frozen is not None:
            fd, self.frozen = self.frozen, None
            self.thawed.append(fd)  # open until the next snapshot: its number is nobody else's so long
            set_flags(fd, 0)

    # --- locks ---
    def do_flock(self, slot, op):
        fcntl.flock(self.file(slot), op | (0 if op == fcntl.LOCK_UN else fcntl.LOCK_NB))

    def do_setlk(self, slot, ofd, kind_, start, n):
        fcntl.fcntl(self.file(slot), F_OFD_SETLK if ofd else fcntl.F_SETLK, struct.pack(FLOCK, kind_, 0, start, n, 0))

    def do_getlk(self, slot, ofd, kind_, start, n):
        """without the pid: to questions about OFD locks the kernel has its own for FUSE file systems"""
        ans = fcntl.fcntl(self.file(slot), F_OFD_GETLK if ofd else fcntl.F_GETLK, struct.pack(FLOCK, kind_, 0, start, n, 0))
        got, _, start, n, _ = struct.unpack(FLOCK, ans)
        if got == fcntl.F_UNLCK:
            return "free"
        return got, start, n

    def do_number(self, slot=None):
        return self.fds.get(slot, -1) if slot is not None else self.frozen or -1


def readable(fd):
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def digest(data):
    return len(data), hashlib.md5(data).hexdigest()


def told(st):
    """what of a stat all file systems agree on; a time that somebody set (they are all long past) is told, others are "now" """
    size = None if stat.S_ISDIR(st.st_mode) else st.st_size
    rdev = (os.major(st.st_rdev), os.minor(st.st_rdev)) if stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode) else None
    mode = st.st_mode
    if stat.S_ISREG(mode):
        mode &= ~stat.S_ISGID  # writing may clear it or not, where the group cannot execute; pjdfstest has the other cases
    return {"mode": oct(mode), "uid": st.st_uid, "gid": st.st_gid, "nlink": st.st_nlink, "size": size, "rdev": rdev,
            "mtime": "now" if st.st_mtime > 1.7e9 else st.st_mtime_ns}


def times_of(path):
    try:
        st = os.lstat(path)
    except OSError:
        return None
    return st.st_ino, st.st_mtime_ns, st.st_ctime_ns


def moved(before, after, written):
    if before is None or after is None:
        return f"{'' if before else 'no '}file, {'' if after else 'no '}file after"
    if before[0] != after[0]:
        return "another file"
    if before[0] in written:
        return "written"
    return ("mtime " if before[1] != after[1] else "") + ("ctime" if before[2] != after[2] else "")


def perform(actor, op):
    try:
        return "ok", getattr(actor, "do_" + op["op"])(*op["args"])
    except OSError as e:
        return "error", errno.errorcode.get(e.errno, e.errno)
    except ValueError as e:
        return "error", str(e)


def serve(actor, sock, who):
    uid, gid, groups = who
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    f = sock.makefile("rwb")
    while True:
        try:
            op = pickle.load(f)
        except EOFError:
            return
        if op["op"] == "flush all":
            for fd in set(actor.fds.values()) - actor.special:
                os.fsync(fd)
            while actor.thawed:
                os.close(actor.thawed.pop())
            answer = ("ok", None)
        else:
            os.umask(op.get("umask", 0o022))
            answer = perform(actor, op)
        pickle.dump(answer, f)
        f.flush()


class Team:
    """The actors, each a process of its own. A file written to and not yet flushed has times that move once more when it is:
    such a one is told as "written"."""

    def __init__(self, n):
        self.files, self.pids, self.written = [], [], set()
        for i in range(n):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                ours.close()
                for f in self.files:
                    f.close()
                os.close(0)
                serve(Actor(), theirs, ACTORS[i])
                os._exit(0)
            theirs.close()
            self.files.append(ours.makefile("rwb"))
            self.pids.append(pid)

    def ask(self, i, op):
        pickle.dump(op, self.files[i])
        self.files[i].flush()
        return pickle.load(self.files[i])

    def all(self, op):
        for i in range(len(self.files)):
            self.ask(i, op)

    def inode(self, op):
        """of the open file that the operation works on"""
        try:
            if op["op"] == "freeze":
                return os.stat(op["args"][0]).st_ino
            fd = self.ask(op["actor"], {"op": "number", "args": op["args"][:1]})[1]
            return os.stat(f"/proc/{self.pids[op['actor']]}/fd/{fd}").st_ino
        except OSError:
            return None

    def perform(self, op):
        if op["op"] in ("open", "tmpfile"):
            self.perform({"op": "close", "args": op["args"][:1], "actor": op["actor"]})
        inode = self.inode(op) if op["op"] in ("close", "fsync", *WRITES) else None
        before = [times_of(p) for p in op.get("watch", ())]
        result = self.ask(op["actor"], op)
        if before:
            result += ([moved(b, times_of(p), self.written) for b, p in zip(before, op["watch"])],)
        if op["op"] in WRITES:
            self.written.add(inode)
        elif inode is not None:
            self.written.discard(inode)
        return result


def look_into(path, mode, e):
    if stat.S_ISLNK(mode):
        e["target"] = os.readlink(path)
    elif stat.S_ISREG(mode):
        h = hashlib.md5()
        with open(path, "rb", buffering=0) as f:
            while data := f.read(1 << 20):
                h.update(data)
        e["content"] = h.hexdigest()
    if not stat.S_ISLNK(mode):
        e["xattrs"] = {n: os.getxattr(path, n, follow_symlinks=False) for n in sorted(os.listxattr(path, follow_symlinks=False))
                       if not n.startswith("security.")}


def snapshot(root="."):
    """the whole tree as it is seen: path -> told, target, content, xattrs"""
    out = {}

    def visit(path):
        st = os.lstat(path)
        e = told(st)
        e["blocks"] = st.st_blocks
        out[path] = e
        try:
            look_into(path, st.st_mode, e)
        except OSError as error:
            e["error"] = errno.errorcode.get(error.errno, error.errno)
        if stat.S_ISDIR(st.st_mode):
            names = os.listdir(path)
            if len(set(names)) != len(names):
                e["twice"] = sorted(names)
            for n in sorted(names):
                visit(os.path.join(path, n))
    visit(root)
    v = os.statvfs(root)
    out["statvfs"] = {"used": (v.f_blocks - v.f_bfree) * v.f_frsize, "inodes": v.f_files - v.f_ffree}
    return out


def main():
    os.chdir(sys.argv[1])
    team = Team(len(ACTORS))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = os.fdopen(0, "rb", closefd=False)
    while True:
        try:
            batch = pickle.load(source)
        except EOFError:
            return
        if batch == "snapshot":
            team.all({"op": "flush all"})
            team.written.clear()
            answer = snapshot()
        else:
            answer = [team.perform(op) for op in batch]
        pickle.dump(answer, out)
        out.flush()


if __name__ == "__main__":
    main()
