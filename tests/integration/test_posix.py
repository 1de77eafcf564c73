# SPDX-License-Identifier: Apache-2.0
"""What a program may ask of a file system beyond reading and writing, on a Stoke mount and, where both must be the same,
on a JuiceFS mount beside it."""
import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import stat
import struct
import subprocess
import time

import lab as L
import pytest

libc = ctypes.CDLL(None, use_errno=True)
KEEP_SIZE, PUNCH, COLLAPSE, ZERO = 1, 2, 8, 16
IMMUTABLE, APPEND = 0x10, 0x20
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR = 0x80086601, 0x40086602, 0x801C581F, 0x401C5820
LONG = ["--attr-cache", "60", "--entry-cache", "60", "--dir-entry-cache", "60"]
DIRECTORY_CACHES_OFF = ["--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0"]


def call(fn, *args):
    """the value, or -errno"""
    try:
        return fn(*args)
    except OSError as e:
        return -e.errno


def fallocate(fd, mode, off, length):
    r = libc.fallocate(fd, mode, ctypes.c_long(off), ctypes.c_long(length))
    return -ctypes.get_errno() if r else 0


def linkat(fd, path):
    r = libc.linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, path.encode(), 0x400)
    return -ctypes.get_errno() if r else 0


def holes(path):
    """[(offset of data, offset of the hole behind)…]"""
    out, at = [], 0
    with open(path, "rb") as f:
        size = os.fstat(f.fileno()).st_size
        while at < size:
            at = call(os.lseek, f.fileno(), at, os.SEEK_DATA)
            if at < 0:
                assert at == -errno.ENXIO
                break
            end = os.lseek(f.fileno(), at, os.SEEK_HOLE)
            out.append((at, end))
            at = end
    return out


@pytest.fixture
def both(lab, juicefs, redis):
    """a Stoke mount and a JuiceFS mount, of a volume each"""
    flags = ["--enable-xattr", "--enable-ioctl"]
    lab.format(redis.url(1), "mine", bucket=f"{lab.folder}/o1")
    lab.format(redis.url(2), "theirs", bucket=f"{lab.folder}/o2")
    return lab.mount(redis.url(1), "m1", flags), lab.juice_mount(juicefs, redis.url(2), "j1", ["--enable-ioctl"])


# --- ranges ---

def ranges_in(folder):
    """the same calls; everything seen"""
    out, path = [], f"{folder}/f"
    L.write_file(path, b"x" * 200000)
    with open(path, "r+b") as f:
        fd = f.fileno()
        steps = [(PUNCH | KEEP_SIZE, 5000, 9000), (ZERO, 190000, 20000), (ZERO | KEEP_SIZE, 209000, 5000), (0, 0, 300000),
                 (KEEP_SIZE, 0, 400000), (PUNCH, 0, 100), (COLLAPSE, 0, 4096), (PUNCH | KEEP_SIZE, 310000, 10), (0, 1 << 57, 1)]
        for mode, off, length in steps:
            out.append((mode, off, fallocate(fd, mode, off, length), os.fstat(fd).st_size))
            out.append(os.pread(fd, 400000, 0))
    return out


def test_fallocate_is_as_in_juicefs(both):
    mine, theirs = (ranges_in(m.dir) for m in both)
    assert mine == theirs
    assert [r for r in mine if isinstance(r, tuple)][0][2] == 0


def test_data_and_holes_are_found_where_they_are(lab, file_volume):
    m = lab.mount(file_volume)
    path = m.path("f")
    with open(path, "wb", buffering=0) as f:
        f.write(b"a" * 10000)
        os.pwrite(f.fileno(), b"b" * 10, (64 << 20) * 3 + 5)
        os.ftruncate(f.fileno(), (64 << 20) * 5)
        # not flushed yet: seen all the same
        assert os.lseek(f.fileno(), 0, os.SEEK_HOLE) == 10000
    assert holes(path) == [(0, 10000), ((64 << 20) * 3 + 5, (64 << 20) * 3 + 15)]
    with open(path, "rb") as f:
        end = (64 << 20) * 5
        assert call(os.lseek, f.fileno(), end, os.SEEK_HOLE) == -errno.ENXIO
        assert call(os.lseek, f.fileno(), end - 1, os.SEEK_HOLE) == end - 1
        assert call(os.lseek, f.fileno(), end - 1, os.SEEK_DATA) == -errno.ENXIO


def test_a_huge_hole_is_not_walked(lab, redis, file_volume):
    m = lab.mount(file_volume)
    c = redis.client(1)

    def scripts():
        return c.info("commandstats")["cmdstat_evalsha"]["calls"]

    far = 1 << 50
    with open(m.path("f"), "wb+", buffering=0) as f:
        os.pwrite(f.fileno(), b"x" * 10, far)
        os.pwrite(f.fileno(), b"y" * 10, 1 << 40)
        os.ftruncate(f.fileno(), far * 2)
        os.fsync(f.fileno())
        before = scripts()
        assert os.lseek(f.fileno(), 0, os.SEEK_DATA) == 1 << 40
        assert os.lseek(f.fileno(), (1 << 40) + 10, os.SEEK_DATA) == far
        assert os.lseek(f.fileno(), 0, os.SEEK_HOLE) == 0
        assert call(os.lseek, f.fileno(), far + 10, os.SEEK_DATA) == -errno.ENXIO
        assert scripts() - before < 100


def test_a_punched_hole_is_seen_by_those_who_mapped_the_file(lab, file_volume):
    import mmap
    m = lab.mount(file_volume)
    L.write_file(m.path("f"), b"x" * 20000)
    with open(m.path("f"), "r+b") as f, mmap.mmap(f.fileno(), 20000) as mem:
        assert mem[4096:4100] == b"xxxx"
        mem[8192:8196] = b"yyyy"
        assert fallocate(f.fileno(), PUNCH | KEEP_SIZE, 4096, 4096) == 0
        assert mem[4096:4100] == b"\0\0\0\0" and mem[8192:8196] == b"yyyy" and mem[4095:4096] == b"x"


def copies_in(folder):
    out = []
    L.write_file(f"{folder}/from", bytes(range(256)) * 1000)
    with open(f"{folder}/from", "r+b") as a, open(f"{folder}/to", "w+b") as b:
        b.write(b"-" * 1000)
        b.flush()
        steps = [(1000, 10, 500), (200000, 255000, 3), (5000, 255990, 100), (100, 256000, 0), (100000, 0, 70000)]
        for n, off_in, off_out in steps:
            out.append(call(os.copy_file_range, a.fileno(), b.fileno(), n, off_in, off_out))
            out.append(os.pread(b.fileno(), 400000, 0))
        a.seek(0)
        a.write(b"!" * 5000)
        a.flush()
        # what is not committed yet is copied too, and the copy does not change with its source
        out.append(call(os.copy_file_range, a.fileno(), b.fileno(), 5000, 0, 0))
        out.append(call(os.copy_file_range, a.fileno(), a.fileno(), 1000, 0, 500))
        out.append(call(os.copy_file_range, a.fileno(), a.fileno(), 500, 0, 600))
    with open(f"{folder}/from", "rb") as a, open(f"{folder}/to", "rb") as b:
        return [*out, a.read(), b.read()]


def test_ranges_are_copied_as_in_juicefs(both):
    mine, theirs = (copies_in(m.dir) for m in both)
    assert mine == theirs and mine[0] == 1000


def test_F06_direct_and_mapped(lab, file_volume):
    import mmap
    import random
    m = lab.mount(file_volume)
    data = L.noise(1 << 20)
    L.write_file(m.path("f"), data)
    fd = os.open(m.path("f"), os.O_RDWR | os.O_DIRECT)
    mem = mmap.mmap(-1, 1 << 16)
    for off, n in ((0, 4096), (4096, 1 << 16), (512, 512), (1, 7), (12345, 5000), ((1 << 20) - 100, 4096)):
        r = call(os.preadv, fd, [memoryview(mem)[:n]], off)
        # right bytes, or EINVAL as open(2) says
        assert r == -errno.EINVAL or mem[:r] == data[off:off + n]
    mem[:8192] = b"d" * 8192
    assert os.pwritev(fd, [memoryview(mem)[:8192]], 8192) == 8192
    os.close(fd)
    data = data[:8192] + b"d" * 8192 + data[16384:]
    assert reads(m.path("f"))() == data
    pids = []
    for n in range(8):
        pid = os.fork()
        if pid == 0:
            rnd, ok = random.Random(n), True
            with open(m.path("f"), "r+b") as f, mmap.mmap(f.fileno(), 1 << 20) as mine:
                for _ in range(200):
                    at = rnd.randrange((1 << 19) - 3000)
                    ok = ok and mine[at:at + 3000] == data[at:at + 3000]
                at = (1 << 19) + n * 5000
                mine[at:at + 5000] = bytes([65 + n]) * 5000
                mine.flush()
            os._exit(not ok)
        pids.append(pid)
    assert [os.waitpid(p, 0)[1] for p in pids] == [0] * 8
    m.drop_caches()
    want = data[:1 << 19] + b"".join(bytes([65 + n]) * 5000 for n in range(8)) + data[(1 << 19) + 40000:]
    assert reads(m.path("f"))() == want


# --- files without names ---

def test_a_file_without_a_name_gets_one_or_is_gone(lab, redis, file_volume):
    m = lab.mount(file_volume)
    before = {k for k in redis.client(1).keys("i*")}
    fd = os.open(m.dir, os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"kept")
    assert os.fstat(fd).st_nlink == 0 and stat.S_IMODE(os.fstat(fd).st_mode) == 0o640
    assert linkat(fd, m.path("kept")) == 0
    assert os.fstat(fd).st_nlink == 1
    os.close(fd)
    with open(m.path("kept")) as f:
        assert f.read() == "kept"
    fd = os.open(m.dir, os.O_TMPFILE | os.O_WRONLY, 0)
    os.write(fd, b"gone" * 10000)
    os.close(fd)
    fd = os.open(m.dir, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    assert linkat(fd, m.path("not")) == -errno.ENOENT
    os.close(fd)
    L.wait_for("end of the files without names", lambda: len({k for k in redis.client(1).keys("i*")} - before) == 1)
    assert set(os.listdir(m.dir)) - L.INTERNAL == {"kept"}


# --- flags ---

def flags_of(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return struct.unpack("i", fcntl.ioctl(fd, FS_IOC_GETFLAGS, struct.pack("i", 0)))[0]
    finally:
        os.close(fd)


def set_flags(path, flags):
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("i", flags))
    finally:
        os.close(fd)


def flags_in(folder):
    out, f, d = [], f"{folder}/f", f"{folder}/d"
    L.write_file(f, b"1234")
    os.mkdir(d)
    L.write_file(f"{d}/in", b"")

    def tries():
        def appended():
            with open(f, "ab", buffering=0) as file:
                return file.write(b"5")

        def made():
            with open(f"{d}/new", "xb"):
                pass
        out.extend([call(os.open, f, os.O_WRONLY), call(appended), call(os.truncate, f, 1), call(os.rename, f, f),
                    call(os.link, f, f"{folder}/l"), call(os.unlink, f"{folder}/l"), call(made), call(os.unlink, f"{d}/in"),
                    call(os.rename, f, f"{folder}/g"), call(os.rename, f"{folder}/g", f)])
        for n, r in enumerate(out):
            if isinstance(r, int) and r > 100:
                os.close(r)
                out[n] = "fd"
    for flags in (IMMUTABLE, APPEND):
        set_flags(f, flags)
        set_flags(d, flags)
        out.append((flags_of(f), flags_of(d)))
        tries()
        set_flags(f, 0)
        set_flags(d, 0)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{d}/new")
        L.write_file(f"{d}/in", b"")
    out.append(call(set_flags, f, 0x40))
    return [o if not isinstance(o, int) or o <= 0 else "some" for o in out]


def test_immutable_and_append_only_are_as_in_juicefs(both):
    mine, theirs = (flags_in(m.dir) for m in both)
    assert mine == theirs
    assert mine[0] == (IMMUTABLE, IMMUTABLE)
    # here JuiceFS is more generous than ext4 is
    path = both[0].path("f")
    set_flags(path, IMMUTABLE)
    assert call(os.chmod, path, 0o600) == -errno.EPERM
    set_flags(path, 0)


def test_the_other_ioctl_for_flags(lab, file_volume):
    m = lab.mount(file_volume, flags=["--enable-ioctl", *LONG])
    L.write_file(m.path("f"), b"")
    fd = os.open(m.path("f"), os.O_RDONLY)
    before = os.fstat(fd).st_ctime_ns
    fcntl.ioctl(fd, FS_IOC_FSSETXATTR, struct.pack("IIIII8x", 0x10, 0, 0, 0, 0))
    assert struct.unpack("IIIII8x", fcntl.ioctl(fd, FS_IOC_FSGETXATTR, bytes(28)))[0] == 0x10
    assert flags_of(m.path("f")) == APPEND and os.fstat(fd).st_ctime_ns > before
    os.close(fd)
    set_flags(m.path("f"), 0)


def test_flags_are_set_only_where_that_was_asked_for(lab, file_volume):
    m = lab.mount(file_volume)
    L.write_file(m.path("f"), b"")
    assert flags_of(m.path("f")) == 0
    assert call(set_flags, m.path("f"), IMMUTABLE) == -errno.ENOTTY


# --- who asks ---

def as_user(m, uid, gid, fn, groups=()):
    """fn's value, or -errno, from a process of that user in the mount (which he could not walk to)"""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.chdir(m.dir)
        os.setgroups(list(groups))
        os.setgid(gid)
        os.setuid(uid)
        os.write(w, repr(call(fn)).encode())
        os._exit(0)
    os.close(w)
    os.waitpid(pid, 0)
    with os.fdopen(r, "rb") as f:
        return eval(f.read() or b"None", {})


def reads(path):
    def fn():
        with open(path, "rb") as f:
            return f.read()
    return fn


def creates(path):
    def fn():
        with open(path, "wb") as f:
            f.write(b"mine")
        return os.stat(path).st_uid, os.stat(path).st_gid
    return fn


@pytest.fixture
def squash_volume(lab, file_volume):
    m = lab.mount(file_volume, "plain")
    os.chmod(m.dir, 0o777)
    for name, uid, gid, mode in (("secret", 1001, 1001, 0o600), ("group", 1001, 2000, 0o640), ("open", 1001, 1001, 0o644)):
        L.write_file(m.path(name), name.encode())
        os.chown(m.path(name), uid, gid)
        os.chmod(m.path(name), mode)
    os.mkdir(m.path("closed"), 0o700)
    L.write_file(m.path("closed/in"), b"in")
    m.stop()
    return file_volume


def test_root_is_taken_for_somebody_else(lab, squash_volume):
    m = lab.mount(squash_volume, flags=["--root-squash", "1234:1235"])
    assert creates(m.path("new"))() == (1234, 1235)
    assert call(reads(m.path("secret"))) == -errno.EACCES
    assert reads(m.path("open"))() == b"open"
    assert call(os.listdir, m.path("closed")) == -errno.EACCES
    assert call(reads(m.path("closed/in"))) == -errno.EACCES
    assert call(os.chown, m.path("open"), 0, 0) == -errno.EPERM
    assert call(os.chmod, m.path("open"), 0o777) == -errno.EPERM
    assert not os.access(m.path("secret"), os.R_OK) and os.access(m.path("open"), os.R_OK)
    assert as_user(m, 1001, 1001, reads("secret")) == b"secret"


def test_everybody_is_taken_for_one(lab, squash_volume):
    m = lab.mount(squash_volume, flags=["--all-squash", "1001:1001"])
    assert as_user(m, 5000, 5000, creates("new")) == (1001, 1001)
    assert as_user(m, 5000, 5000, reads("secret")) == b"secret"
    assert reads(m.path("secret"))() == b"secret"


@pytest.mark.parametrize("flags", [[], ["--non-default-permission"]])
def test_permissions_are_the_same_whoever_checks_them(lab, squash_volume, flags):
    m = lab.mount(squash_volume, flags=flags)
    assert as_user(m, 1002, 1002, reads("secret")) == -errno.EACCES
    assert as_user(m, 1002, 1002, reads("group")) == -errno.EACCES
    assert as_user(m, 1002, 1002, reads("group"), [3000, 2000]) == b"group"
    assert as_user(m, 1002, 1002, lambda: os.listdir("closed")) == -errno.EACCES
    assert as_user(m, 1002, 1002, lambda: os.chmod("open", 0o777)) == -errno.EPERM
    assert as_user(m, 1002, 1002, creates("own")) == (1002, 1002)
    # who makes a file that he may not write has it open for writing all the same
    assert as_user(m, 1002, 1002, lambda: os.write(os.open("odd", os.O_CREAT | os.O_WRONLY, 0o444), b"x")) == 1
    assert as_user(m, 1003, 1003, lambda: os.unlink("own")) is None
    assert as_user(m, 1002, 1002, lambda: os.access("secret", os.R_OK)) is False


@pytest.mark.parametrize("flags", [[], ["--non-default-permission"]])
def test_f08_what_is_cached_is_for_its_owner_alone(lab, squash_volume, flags):
    """on each mount the owner has read it, so attributes, pages and blocks are there"""
    ours = [lab.mount(squash_volume, f"m{i}", [*LONG, *flags]) for i in range(2)]
    for m in ours:
        assert as_user(m, 1001, 1001, reads("secret")) == b"secret"
        assert as_user(m, 1002, 1002, reads("secret")) == -errno.EACCES
        assert as_user(m, 1002, 1002, lambda: os.open("secret", os.O_WRONLY)) == -errno.EACCES
        assert as_user(m, 1002, 1002, lambda: os.truncate("secret", 1)) == -errno.EACCES
    os.chmod(ours[0].path("open"), 0o600)
    assert as_user(ours[0], 1002, 1002, reads("open")) == -errno.EACCES
    late = lab.mount(squash_volume, "m2", flags)
    assert as_user(late, 1002, 1002, reads("open")) == -errno.EACCES


def test_a_umask_of_the_mounts_own(lab, file_volume):
    m = lab.mount(file_volume, flags=["--umask", "027"])
    old = os.umask(0)
    try:
        os.mkdir(m.path("d"), 0o777)
        os.close(os.open(m.path("f"), os.O_CREAT | os.O_WRONLY, 0o666))
    finally:
        os.umask(old)
    assert [stat.S_IMODE(os.stat(m.path(n)).st_mode) for n in "df"] == [0o750, 0o640]


@pytest.mark.parametrize("flags,word", [(["--root-squash", "nobody"], "UID:GID"), (["--atime-mode", "never"], "relatime"),
                                        (["--opn-cache", "1"], "--open-cache"), (["--umask", "999"], "octal"),
                                        (["--all-squash", "1:1", "-o", "default_permissions"], "default_permissions")])
def test_options_that_make_no_sense_are_refused(lab, file_volume, flags, word):
    os.makedirs(f"{lab.folder}/p", exist_ok=True)
    r = lab.stoke("mount", file_volume, f"{lab.folder}/p", *flags, check=False)
    assert r.returncode == 2 and word in r.stderr


def test_what_the_kernel_knows_is_passed_on(lab, file_volume):
    m = lab.mount(file_volume, flags=["-o", "noexec,nodev,noatime"])
    with open("/proc/self/mounts") as f:
        kind, options = next(line.split()[2:4] for line in f if line.split()[1] == m.dir)
    assert {"noexec", "nodev", "noatime"} <= set(options.split(",")) and kind.startswith("fuse")
    L.write_file(m.path("x"), b"#!/bin/sh\n")
    os.chmod(m.path("x"), 0o755)
    with pytest.raises(PermissionError):
        subprocess.run([m.path("x")], check=True)


def test_without_jobs_of_its_own_a_mount_leaves_the_dead_alone(lab, redis, file_volume):
    c = redis.client(1)
    c.zadd("allSessions", {"4711": 1000})
    c.hset("sessionInfos", "4711", "{}")
    m = lab.mount(file_volume, "m0", ["--no-bgjob", "--heartbeat", "1"])
    own = next(s for s in c.zrange("allSessions", 0, -1) if s != b"4711")
    for _ in range(3):
        seen = c.zscore("allSessions", own)
        L.wait_for("a sign of life", lambda seen=seen: c.zscore("allSessions", own) != seen)
    assert c.zscore("allSessions", "4711") == 1000
    m.stop()
    lab.mount(file_volume, "m1", ["--heartbeat", "1"])
    L.wait_for("its end", lambda: c.zscore("allSessions", "4711") is None)
    assert not c.hexists("sessionInfos", "4711")


# --- a part of the volume ---

def test_a_directory_is_mounted_as_the_root(lab, file_volume):
    whole = lab.mount(file_volume, "whole")
    part = lab.mount(file_volume, "part", ["--subdir", "/a/b"])
    L.write_file(part.path("f"), b"below")
    os.mkdir(part.path("d"))
    with open(whole.path("a/b/f")) as f:
        assert f.read() == "below"
    assert os.stat(part.dir).st_ino == 1
    assert os.stat(part.path("..")).st_dev != os.stat(part.dir).st_dev
    assert os.stat(part.path("d/..")).st_ino == 1
    # the trash of the volume is not in it
    assert ".trash" not in os.listdir(part.dir) and ".trash" in os.listdir(whole.dir)
    assert call(os.stat, part.path(".trash")) == -errno.ENOENT
    with os.scandir(part.path("d")) as it:
        assert list(it) == []


# --- access times ---

@pytest.mark.parametrize("mode", ["noatime", "relatime", "strictatime"])
def test_access_times_change_as_asked_for(lab, file_volume, mode):
    m = lab.mount(file_volume, flags=["--atime-mode", mode, *DIRECTORY_CACHES_OFF])
    f = m.path("f")
    L.write_file(f, b"12")

    now = time.time()
    os.utime(f, (now - 90000, now - 200000))
    reads(f)()
    first = os.stat(f).st_atime
    time.sleep(1.1)
    reads(f)()
    assert (first > now - 60) == (mode != "noatime")
    # it is newer than the last change now
    assert (os.stat(f).st_atime > first) == (mode == "strictatime")


# --- two mounts, and what the kernel keeps ---

def test_an_open_sees_what_was_closed_elsewhere_whatever_the_kernel_keeps(lab, file_volume):
    a, b = lab.mount(file_volume, "a", LONG), lab.mount(file_volume, "b", LONG)
    L.write_file(a.path("f"), b"1" * 10)
    assert reads(b.path("f"))() == b"1" * 10 and os.stat(b.path("f")).st_size == 10
    for n in (20, 5000, 3):
        L.write_file(a.path("f"), b"2" * n)
        assert reads(b.path("f"))() == b"2" * n
        assert os.stat(b.path("f")).st_size == n


def test_appends_of_two_mounts_follow_each_other(lab, file_volume):
    a, b = lab.mount(file_volume, "a", LONG), lab.mount(file_volume, "b", LONG)
    want = b""
    for n in range(10):
        with open((a, b)[n % 2].path("f"), "ab") as f:
            f.write(b"%d" % n * (n + 1))
        want += b"%d" % n * (n + 1)
    assert reads(a.path("f"))() == want and reads(b.path("f"))() == want


def test_a_name_that_is_another_files_now_is_looked_up_again(lab, file_volume):
    a, b = lab.mount(file_volume, "a", LONG), lab.mount(file_volume, "b", LONG)
    L.write_file(a.path("f"), b"old")
    assert reads(b.path("f"))() == b"old"
    L.write_file(a.path("g"), b"new")
    os.unlink(a.path("f"))
    os.rename(a.path("g"), a.path("f"))
    assert reads(b.path("f"))() == b"new"
    # one that is gone altogether, and made anew where it was known
    os.unlink(a.path("f"))
    L.write_file(b.path("f"), b"again")
    assert reads(a.path("f"))() == b"again"
    os.unlink(a.path("f"))
    L.write_file(a.path("f"), b"once more")
    os.chmod(b.path("f"), 0o640)
    assert stat.S_IMODE(os.stat(a.path("f")).st_mode) == 0o640


@pytest.mark.parametrize("how", ["flock", "record"])
def test_a_lock_brings_what_was_written_under_it(lab, file_volume, how):
    """two mounts count in one file that each keeps open"""
    a, b = lab.mount(file_volume, "a", LONG), lab.mount(file_volume, "b", LONG)
    L.write_file(a.path("n"), b"%08d" % 0)
    lock, unlock = (fcntl.flock, lambda f: fcntl.flock(f, fcntl.LOCK_UN)) if how == "flock" else (
        fcntl.lockf, lambda f: fcntl.lockf(f, fcntl.LOCK_UN))
    rounds, pids = 20, []
    for m in (a, b):
        pid = os.fork()
        if pid == 0:
            with open(m.path("n"), "r+b", buffering=0) as f:
                for _ in range(rounds):
                    lock(f, fcntl.LOCK_EX)
                    n = int(os.pread(f.fileno(), 8, 0))
                    os.pwrite(f.fileno(), b"%08d" % (n + 1), 0)
                    unlock(f)
            os._exit(0)
        pids.append(pid)
    assert [os.waitpid(p, 0)[1] for p in pids] == [0, 0]
    assert int(reads(a.path("n"))()) == 2 * rounds


def test_commands_change_what_the_kernel_shows(lab, file_volume):
    m = lab.mount(file_volume, flags=LONG)
    for d in ("d", "e"):
        os.makedirs(m.path(d, "sub"))
        L.write_file(m.path(d, "sub/f"), b"x")
        assert reads(m.path(d, "sub/f"))() == b"x"
    lab.stoke("rmr", m.path("d"))
    L.wait_for("the end of d", lambda: not os.path.exists(m.path("d")), 2)
    assert call(os.stat, m.path("new")) == -errno.ENOENT
    lab.stoke("clone", m.path("e"), m.path("new"))
    assert reads(m.path("new/sub/f"))() == b"x"
    assert set(os.listdir(m.dir)) - L.INTERNAL == {"e", "new"}


def test_an_unlinked_open_file_can_be_changed(lab, file_volume):
    """with the trash on, where it lies then"""
    m = lab.mount(file_volume)
    with open(m.path("f"), "w+b", buffering=0) as f:
        f.write(b"12345")
        os.unlink(m.path("f"))
        f.write(b"67")
        os.ftruncate(f.fileno(), 6)
        os.fchmod(f.fileno(), 0o640)
        os.utime(f.fileno(), (1, 2))
        s = os.fstat(f.fileno())
        assert (s.st_size, stat.S_IMODE(s.st_mode), s.st_mtime) == (6, 0o640, 2)
        assert os.pread(f.fileno(), 10, 0) == b"123456"
    os.mkdir(m.path("d"))
    fd = os.open(m.path("d"), os.O_RDONLY)
    os.rmdir(m.path("d"))
    assert call(os.open, m.path("d"), os.O_RDONLY) == -errno.ENOENT
    os.close(fd)


def test_times_show_the_last_write_before_it_is_committed(lab, file_volume):
    m = lab.mount(file_volume)
    with open(m.path("f"), "wb", buffering=0) as f:
        f.write(b"1")
        os.fsync(f.fileno())
        before = os.fstat(f.fileno())
        time.sleep(0.05)
        f.write(b"2")
        during = os.fstat(f.fileno())
        os.fsync(f.fileno())
        after = os.fstat(f.fileno())
    assert before.st_mtime_ns < during.st_mtime_ns == after.st_mtime_ns
    assert before.st_ctime_ns < during.st_ctime_ns <= after.st_ctime_ns


def test_opening_for_reading_may_truncate(lab, file_volume):
    m = lab.mount(file_volume)
    L.write_file(m.path("f"), b"123")
    os.close(os.open(m.path("f"), os.O_RDONLY | os.O_TRUNC))
    assert os.stat(m.path("f")).st_size == 0


def commands(redis, fn):
    """commands that Redis was asked while fn ran, without those of sessions and statistics"""
    def calls():
        stats = redis.client(1).info("commandstats")
        return sum(v["calls"] for k, v in stats.items() if k in ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_hscan", "cmdstat_mget"))
    before = calls()
    fn()
    return calls() - before


def test_what_is_known_is_not_asked_for_again(lab, redis, file_volume):
    m = lab.mount(file_volume, flags=[*LONG, "--heartbeat", "1h"])
    for n in range(50):
        L.write_file(m.path(f"f{n}"), b"x")

    def stats():
        for n in range(50):
            os.stat(m.path(f"f{n}"))
    stats()
    assert commands(redis, stats) <= 2


def test_a_long_listing_brings_all_attributes(lab, redis, file_volume):
    m = lab.mount(file_volume, flags=[*LONG, "--heartbeat", "1h"])
    os.mkdir(m.path("d"))
    for n in range(3000):
        os.close(os.open(m.path(f"d/{n:05}"), os.O_CREAT | os.O_WRONLY))
    m.drop_caches()

    def listing():
        with os.scandir(m.path("d")) as it:
            assert len([e.stat() for e in it]) == 3000
    assert commands(redis, listing) < 20


def test_a_file_is_opened_again_without_asking(lab, redis, file_volume):
    a = lab.mount(file_volume, "a", [*LONG, "--open-cache", "2", "--heartbeat", "1h"])
    b = lab.mount(file_volume, "b", [*LONG, "--heartbeat", "1h"])
    for n in range(20):
        L.write_file(b.path(f"f{n}"), b"x" * 100)

    def read_all():
        for n in range(20):
            with open(a.path(f"f{n}"), "rb") as f:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert len(f.read()) == 100
    read_all()
    assert commands(redis, read_all) <= 3
    # what this mount changed itself is asked for
    L.write_file(a.path("f1"), b"own")
    assert reads(a.path("f1"))() == b"own"
    # and what others changed, after that time
    L.write_file(b.path("f2"), b"theirs")
    L.wait_for("the new bytes", lambda: reads(a.path("f2"))() == b"theirs", 5, 0.2)


def test_listings_are_kept_and_right(lab, redis, file_volume):
    a = lab.mount(file_volume, "a", [*LONG, "--readdir-cache", "--heartbeat", "1h"])
    b = lab.mount(file_volume, "b", [*LONG, "--heartbeat", "1h"])
    os.mkdir(b.path("d"))
    names = {f"n{n}" for n in range(100)}
    for n in names:
        L.write_file(b.path("d", n), b"")
    time.sleep(2.2)

    def listing():
        assert set(os.listdir(a.path("d"))) == names
    for _ in range(3):
        listing()
    # one question, of the directory alone
    assert commands(redis, listing) <= 1
    for m in (b, a, b, b):
        name = f"new{len(names)}"
        L.write_file(m.path("d", name), b"")
        names.add(name)
        listing()
        os.unlink(m.path("d", name))
        names.remove(name)
        listing()


def test_memory_does_not_grow_with_the_inodes_looked_up(lab, redis, file_volume):
    """bench-sized (1 000 000 inodes take the same: what is remembered is bounded)"""
    m = lab.mount(file_volume, "m0")
    os.mkdir(m.path("d"))
    L.write_file(m.path("d/f"), b"")
    d, f = (os.stat(m.path(p)).st_ino for p in ("d", "d/f"))
    m.stop()
    c = redis.client(1)
    records, per, dirs = (c.get(f"i{d}"), c.get(f"i{f}")), 10000, 15
    for k in range(dirs):
        p = c.pipeline(transaction=False)
        p.set(f"i{500 + k}", records[0])
        p.hset("d1", f"d{k}", struct.pack(">BQ", 2, 500 + k))
        p.mset({f"i{1000 + k * per + n}": records[1] for n in range(per)})
        p.hset(f"d{500 + k}", mapping={f"f{n}": struct.pack(">BQ", 1, 1000 + k * per + n) for n in range(per)})
        p.execute()
    m = lab.mount(file_volume, "m1", LONG)
    before, top = m.rss_mib(), []
    for _ in range(2):
        for k in range(dirs):
            with os.scandir(m.path(f"d{k}")) as it:
                assert sum(1 for e in it if e.stat().st_ino >= 1000) == per
        top.append(m.rss_mib())
        L.run(["mount", "-i", "-o", "remount", m.dir])  # the kernel forgets all names of this mount
    assert top[0] - before < 100
    assert top[1] - top[0] < 20, top  # 130 bytes for each that was forgotten and is looked up again


# --- waiting for a Redis that hangs ---

def test_whoever_is_killed_while_he_waits_is_gone(lab, redis, file_volume):
    m = lab.mount(file_volume, flags=[*DIRECTORY_CACHES_OFF, "--heartbeat", "1h"])
    os.mkdir(m.path("d"))
    L.write_file(m.path("d/f"), b"x")
    acts = [lambda: os.stat(m.path("d/f")), lambda: os.open(m.path("d/f"), os.O_RDONLY), lambda: os.mkdir(m.path("d/new")),
            lambda: os.unlink(m.path("d/f")), lambda: os.listdir(m.path("d"))] * 6
    pids = []
    redis.signal(signal.SIGSTOP)
    try:
        for act in acts:
            pid = os.fork()
            if pid == 0:
                call(act)
                os._exit(0)
            pids.append(pid)
        time.sleep(0.5)
        for pid in pids:
            assert os.waitpid(pid, os.WNOHANG) == (0, 0)
            os.kill(pid, signal.SIGKILL)
        start = time.monotonic()
        for pid in pids:
            os.waitpid(pid, 0)
        assert time.monotonic() - start < 1
    finally:
        redis.signal(signal.SIGCONT)
    # the mount lives, and nothing stays open
    L.wait_for("end of handles", lambda: m.stats().get("stoke_open_handles", 0) <= 1)
    assert os.path.isdir(m.path("d"))


# --- access lists ---

def test_access_lists_are_applied(lab, juicefs, redis):
    meta = redis.url(1)
    os.makedirs(f"{lab.folder}/objects")
    L.run([juicefs, "format", meta, "vol", "--storage", "file", "--bucket", f"{lab.folder}/objects/", "--enable-acl", "--no-update"],
          env=lab.env)
    m = lab.mount(meta)
    L.write_file(m.path("f"), b"read")
    os.chmod(m.path("f"), 0o600)
    os.mkdir(m.path("d"))
    assert as_user(m, 1001, 1001, reads("f")) == -errno.EACCES

    def acl(*entries):
        return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)
    none = 0xffffffff
    one = acl((1, 6, none), (2, 4, 1001), (4, 0, none), (0x10, 4, none), (0x20, 0, none))
    os.setxattr(m.path("f"), "system.posix_acl_access", one)
    assert os.getxattr(m.path("f"), "system.posix_acl_access") == one
    assert "system.posix_acl_access" in os.listxattr(m.path("f"))
    assert as_user(m, 1001, 1001, reads("f")) == b"read"
    assert as_user(m, 1002, 1002, reads("f")) == -errno.EACCES
    assert stat.S_IMODE(os.stat(m.path("f")).st_mode) == 0o640
    # what is made in a directory with a default list has it, and no umask
    os.setxattr(m.path("d"), "system.posix_acl_default", acl((1, 7, none), (2, 6, 1001), (4, 5, none), (0x10, 7, none), (0x20, 0, none)))
    os.close(os.open(m.path("d/new"), os.O_CREAT | os.O_WRONLY, 0o666))
    assert stat.S_IMODE(os.stat(m.path("d/new")).st_mode) == 0o660
    assert as_user(m, 1001, 1001, lambda: os.access("d", os.X_OK)) is True
    os.removexattr(m.path("f"), "system.posix_acl_access")
    assert call(os.getxattr, m.path("f"), "system.posix_acl_access") == -errno.ENODATA
    j = lab.juice_mount(juicefs, meta)
    assert os.getxattr(j.path("d/new"), "system.posix_acl_access") == os.getxattr(m.path("d/new"), "system.posix_acl_access")
