# SPDX-License-Identifier: Apache-2.0
"""POSIX as programs see it, on one mount and between two."""
import errno
import os
import random
import stat

import pytest
from lab import BLOCK, noise, wait_for, write_file


@pytest.fixture
def two(lab, file_volume):
    return lab.mount(file_volume, "m1", flags=["--enable-xattr"]), lab.mount(file_volume, "m2", flags=["--enable-xattr"])


def read(path):
    with open(path, "rb") as f:
        return f.read()


def test_F01_rewritten_elsewhere_a_new_open_reads_new_bytes(two):
    m1, m2 = two
    for size in (1000, BLOCK + 5):
        old, new = noise(size, 1), noise(size // 2, 2)
        write_file(m1.path("f"), old)
        assert read(m1.path("f")) == old
        write_file(m2.path("f"), new)
        assert read(m1.path("f")) == new
        # same length, other bytes
        newer = noise(size // 2, 3)
        write_file(m2.path("f"), newer)
        assert read(m1.path("f")) == newer


def test_F11_mtime_put_back_is_noticed(two):
    m1, m2 = two
    write_file(m1.path("f"), b"A" * 5000)
    st = os.stat(m1.path("f"))
    assert read(m1.path("f")) == b"A" * 5000
    write_file(m2.path("f"), b"B" * 5000)
    os.utime(m2.path("f"), ns=(st.st_atime_ns, st.st_mtime_ns))
    assert read(m1.path("f")) == b"B" * 5000


def test_F03_rename_over_an_open_file(two):
    m1, m2 = two
    write_file(m1.path("old"), b"old" * 1000)
    write_file(m1.path("new"), b"new" * 2000)
    with open(m1.path("old"), "rb") as f:
        assert f.read(3) == b"old"
        os.rename(m1.path("new"), m1.path("old"))
        assert read(m1.path("old")) == b"new" * 2000
        f.seek(0)
        assert f.read() == b"old" * 1000
    assert not os.path.exists(m1.path("new"))


@pytest.mark.parametrize("trash", ["0", "1"])
def test_F04_unlinked_file_works_until_close(lab, redis, trash):
    meta = redis.url(1)
    lab.format(meta, "vol", flags=["--trash-days", trash])
    m = lab.mount(meta)
    with open(m.path("f"), "w+b") as f:
        f.write(b"a" * 10000)
        f.flush()
        os.unlink(m.path("f"))
        assert not os.path.exists(m.path("f"))
        f.seek(5000)
        f.write(b"b" * 10000)
        f.flush()
        os.fsync(f.fileno())
        f.seek(0)
        assert f.read() == b"a" * 5000 + b"b" * 10000
        f.truncate(7000)
        st = os.fstat(f.fileno())
        assert st.st_size == 7000 and st.st_nlink == (1 if trash == "1" else 0)
        f.seek(0)
        assert f.read() == b"a" * 5000 + b"b" * 2000
    if trash == "0":
        c = redis.client(1)
        # the kernel tells of the last close after close(2) has returned
        wait_for("the end of the file", lambda: int(c.get("totalInodes") or 0) == 0 and int(c.get("usedSpace") or 0) == 0)


def test_F07_odd_names(two):
    m1, m2 = two
    names = [b"x" * 255, bytes(range(1, 47)) + bytes(range(48, 127)), b"\xff\xfe\x80", b"new\nline", b"trailing ", b" ", "ünïcode".encode()]
    root = os.fsencode(m1.dir)
    for i, n in enumerate(names):
        write_file(os.path.join(root, n), b"%d" % i)
    assert set(names) <= set(os.listdir(os.fsencode(m2.dir)))
    for i, n in enumerate(names):
        assert read(os.path.join(os.fsencode(m2.dir), n)) == b"%d" % i
    with pytest.raises(OSError) as e:
        write_file(os.path.join(root, b"y" * 256), b"")
    assert e.value.errno == errno.ENAMETOOLONG


def test_namespace_errors_are_posix(two):
    m, _ = two

    def fails(want, fn, *args, **kw):
        with pytest.raises(OSError) as e:
            fn(*args, **kw)
        assert e.value.errno == want
    os.mkdir(m.path("d"))
    write_file(m.path("d/f"), b"1")
    write_file(m.path("g"), b"2")
    fails(errno.EEXIST, os.mkdir, m.path("d"))
    fails(errno.ENOTEMPTY, os.rmdir, m.path("d"))
    fails(errno.ENOENT, os.unlink, m.path("nothing"))
    fails(errno.EISDIR, os.unlink, m.path("d"))
    fails(errno.ENOTDIR, os.rmdir, m.path("g"))
    fails(errno.ENOTDIR, os.stat, m.path("g/x"))
    fails(errno.EISDIR, os.rename, m.path("g"), m.path("d"))
    fails(errno.ENOTDIR, os.rename, m.path("d"), m.path("g"))
    fails(errno.EINVAL, os.rename, m.path("d"), m.path("d/inside"))
    fails(errno.EEXIST, os.open, m.path("g"), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    fails(errno.EPERM, os.link, m.path("d"), m.path("l"))
    fails(errno.EEXIST, os.symlink, "x", m.path("g"))
    fails(errno.ENODATA, os.getxattr, m.path("g"), "user.none")
    fails(errno.EEXIST, os.mkdir, m.path(".trash"))
    fails(errno.EPERM, os.mkdir, m.path(".trash/x"))
    os.setxattr(m.path("g"), "user.a", b"1", os.XATTR_CREATE)
    fails(errno.EEXIST, os.setxattr, m.path("g"), "user.a", b"2", os.XATTR_CREATE)
    fails(errno.ENODATA, os.setxattr, m.path("g"), "user.b", b"2", os.XATTR_REPLACE)
    os.removexattr(m.path("g"), "user.a")
    assert os.listxattr(m.path("g")) == []


def renameat2(a, b, flags):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), flags) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def test_rename_flags(two):
    m1, m2 = two
    write_file(m1.path("a"), b"a")
    os.mkdir(m1.path("d"))
    with pytest.raises(OSError) as e:
        renameat2(m1.path("a"), m1.path("d"), 1)
    assert e.value.errno == errno.EEXIST
    renameat2(m1.path("a"), m1.path("d"), 2)
    assert os.path.isdir(m1.path("a")) and read(m1.path("d")) == b"a"
    os.mkdir(m1.path("sub"))
    renameat2(m1.path("d"), m1.path("sub/n"), 1)
    assert read(m2.path("sub/n")) == b"a"
    renameat2(m1.path("sub/n"), m1.path("sub/moved"), 4)
    assert read(m2.path("sub/moved")) == b"a"
    white = os.stat(m1.path("sub/n"))
    assert stat.S_ISCHR(white.st_mode) and white.st_rdev == 0
    with pytest.raises(OSError) as e:
        renameat2(m1.path("a"), m1.path("none"), 8)
    assert e.value.errno == errno.EINVAL


def test_random_writes_are_read_back_everywhere(two):
    """a file against a plain array: writes, truncates, fsyncs, reads on both mounts; the seed is printed"""
    m1, m2 = two
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rnd = random.Random(seed)
    model = bytearray()
    fd = os.open(m1.path("f"), os.O_RDWR | os.O_CREAT)
    for step in range(150):
        what = rnd.random()
        if what < 0.6:
            off, data = rnd.randrange(3 * BLOCK), rnd.randbytes(rnd.choice([1, 100, 4096, 70000, 1 << 20]))
            if off > len(model):
                model += bytes(off - len(model))
            model[off:off + len(data)] = data
            assert os.pwrite(fd, data, off) == len(data)
        elif what < 0.7:
            n = rnd.randrange(3 * BLOCK)
            os.ftruncate(fd, n)
            model = model[:n] + bytes(max(0, n - len(model)))
        elif what < 0.8:
            os.fsync(fd)
        else:
            off, n = rnd.randrange(3 * BLOCK), rnd.randrange(1 << 20)
            assert os.pread(fd, n, off) == model[off:off + n], step
        assert os.fstat(fd).st_size == len(model)
    os.close(fd)
    assert read(m1.path("f")) == model
    assert read(m2.path("f")) == model


def test_append_goes_to_the_end(two):
    m1, m2 = two
    for i in range(20):
        with open((m1 if i % 2 else m2).path("log"), "ab") as f:
            f.write(b"line %d\n" % i)
    assert read(m1.path("log")) == b"".join(b"line %d\n" % i for i in range(20))


def test_big_directory_is_listed_once_and_whole(two):
    m1, m2 = two
    os.mkdir(m1.path("big"))
    for i in range(3000):
        os.close(os.open(m1.path("big", f"n{i}"), os.O_CREAT | os.O_WRONLY))
    for m in (m1, m2):
        names = [e.name for e in os.scandir(m.path("big"))]
        assert len(names) == 3000 and len(set(names)) == 3000
    for i in range(0, 3000, 2):
        os.unlink(m2.path("big", f"n{i}"))
    assert len(os.listdir(m1.path("big"))) == 1500


def test_statfs_counts(two):
    m1, _ = two
    before = os.statvfs(m1.dir)
    write_file(m1.path("f"), noise(10 * BLOCK))
    after = os.statvfs(m1.dir)
    assert (before.f_bavail - after.f_bavail) * after.f_frsize == 10 * BLOCK
    assert (after.f_files - after.f_favail) - (before.f_files - before.f_favail) == 1 and after.f_namemax == 255


def test_umount_flushes(lab, file_volume):
    m = lab.mount(file_volume, "m1")
    f = open(m.path("f"), "wb", buffering=0)
    f.write(b"x" * 123456)
    # close reaches the mount, then SIGTERM at once
    f.close()
    assert m.stop() == 0
    lab.started.remove(m)
    m = lab.mount(file_volume, "m2")
    assert read(m.path("f")) == b"x" * 123456


def test_capacity_is_kept(lab, redis):
    meta = redis.url(1)
    lab.format(meta, "vol", flags=["--capacity", "1", "--inodes", "10"])
    m = lab.mount(meta)
    with pytest.raises(OSError) as e:
        for i in range(20):
            write_file(m.path(f"f{i}"), b"")
    assert e.value.errno == errno.ENOSPC and len([n for n in os.listdir(m.dir) if n.startswith("f")]) == 10
