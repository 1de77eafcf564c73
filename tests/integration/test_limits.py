# SPDX-License-Identifier: Apache-2.0
"""What a mount does at its limits: round trips of an operation, a Redis that does not answer, files that others removed, names that
are not there, entries that are damaged, requests without end."""
import errno
import os
import re
import signal
import time

import pytest
from lab import commands_of, wait_for, write_file

NO_CACHES = ("--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0", "--open-cache", "0")


def test_an_operation_is_one_round_trip(lab, redis, file_volume):
    client = redis.client(1)
    m = lab.mount(file_volume, flags=NO_CACHES)
    d = m.path("trips")
    os.mkdir(d)
    write_file(f"{d}/warm", b"numbers are reserved")
    write_file(f"{d}/data", b"")
    f = open(f"{d}/data", "r+b", buffering=0)

    def write():
        os.pwrite(f.fileno(), b"x" * 1000, 0)
        os.fsync(f.fileno())
    steps = {
        "look-up": lambda: os.stat(f"{d}/data"),
        "create": lambda: os.close(os.open(f"{d}/new", os.O_CREAT | os.O_WRONLY)),
        "open": lambda: os.close(os.open(f"{d}/warm", os.O_RDONLY)),
        "write commit": write,
        "setattr": lambda: os.chmod(f"{d}/data", 0o600),
        "rename": lambda: os.rename(f"{d}/new", f"{d}/newer"),
        "unlink": lambda: os.unlink(f"{d}/newer"),
    }
    for fn in steps.values():  # the server has the scripts
        fn()
    looks = set()
    for what, fn in steps.items():
        time.sleep(1.2)  # statistics are flushed
        os.stat(d)
        seen = commands_of(client, fn)
        if what == "look-up":
            looks = {s for s in seen if re.fullmatch(r"[0-9a-f]{40}", s)}
            # the file's once; the kernel asks for its folder besides
            assert len(looks) == 1 and len(seen) <= 5, seen
        else:
            assert len([s for s in seen if s not in looks and not s.startswith("MGET i")]) == 1, (what, seen)
    f.close()


def test_df_does_not_hang_with_redis(lab, redis, file_volume):
    m = lab.mount(file_volume)
    write_file(m.path("f"), b"x" * 100_000)
    time.sleep(1.5)
    before = os.statvfs(m.dir)
    redis.signal(signal.SIGSTOP)
    try:
        begin = time.monotonic()
        now = os.statvfs(m.dir)
        assert time.monotonic() - begin < 2
        assert now.f_bavail == before.f_bavail and now.f_files == before.f_files
    finally:
        redis.signal(signal.SIGCONT)
    assert m.stop() == 0


def test_a_file_that_another_mount_removed_is_stale(lab, redis):
    meta = redis.url(1)
    lab.format(meta, "vol", flags=["--trash-days", "0"])
    a, b = lab.mount(meta, "a"), lab.mount(meta, "b", flags=NO_CACHES)
    write_file(a.path("f"), b"x" * 1000)
    with open(b.path("f"), "rb", buffering=0) as f:
        os.unlink(a.path("f"))
        wait_for("the data's end", lambda: not any(files for _, _, files in os.walk(f"{lab.folder}/objects/vol/chunks")))
        with pytest.raises(OSError) as e:
            f.read(10)
        assert e.value.errno == errno.ESTALE


def test_names_that_are_not_there_are_remembered_when_asked_for(lab, redis, file_volume):
    client = redis.client(1)
    m = lab.mount(file_volume, flags=["--negative-entry-cache", "60"])
    n = lab.mount(file_volume, "n")

    def scripts(where):
        def look():
            for _ in range(5):
                assert not os.path.exists(where.path("nothing"))
        look()
        return len([c for c in commands_of(client, look) if re.fullmatch(r"[0-9a-f]{40}", c)])
    # beside what the mount's clocks ask, now and then
    assert min(scripts(m) for _ in range(3)) == 0 and min(scripts(n) for _ in range(3)) >= 5
    # what this mount makes is there at once
    write_file(m.path("nothing"), b"x")
    assert os.path.exists(m.path("nothing"))


def test_requests_have_an_end(lab, redis, file_volume):
    """Redis is away: what is asked through .control waits, and only so much of it"""
    m = lab.mount(file_volume)
    os.mkdir(m.path("d"))
    fds = [os.open(m.path(".control"), os.O_RDWR) for _ in range(17)]
    redis.signal(signal.SIGSTOP)
    try:
        for fd in fds[:16]:
            os.write(fd, b"summary 1 1 1\n")
        with pytest.raises(OSError) as e:
            os.write(fds[16], b"summary 1 1 1\n")
        assert e.value.errno == errno.EBUSY
    finally:
        redis.signal(signal.SIGCONT)
    for fd in fds[:16]:
        text = b""
        while b"done" not in text:
            more = os.read(fd, 4096)
            assert more, text
            text += more
    for fd in fds:
        os.close(fd)
    fd = os.open(m.path(".control"), os.O_RDWR)
    os.write(fd, b"summary 1 1 1\n")
    os.close(fd)
    assert m.stop() == 0


def test_a_damaged_entry_hides_no_others(lab, redis, file_volume):
    c = redis.client(1)
    m = lab.mount(file_volume, flags=["--dir-entry-cache", "0", "--entry-cache", "0"])
    os.makedirs(m.path("d/sub"))
    for i in range(20):
        write_file(m.path(f"d/f{i}"), b"x")
    d = os.stat(m.path("d")).st_ino
    c.hset(f"d{d}", "short", b"\1\0\0")
    c.hset(f"d{d}", "a/b", c.hget(f"d{d}", "f1"))
    names = sorted(["sub"] + [f"f{i}" for i in range(20)])
    assert sorted(os.listdir(m.path("d"))) == names and sorted(os.listdir(m.path("d"))) == names
    assert m.text().count("2 damaged entries are left out") == 1, m.text()
    with pytest.raises(OSError):
        os.stat(m.path("d/short"))
    r = lab.stoke("rmr", m.path("d"), check=False)
    assert r.returncode != 0 and os.listdir(m.path("d")) == []
    write_file(m.path("d/new"), b"y")
    assert m.stop() == 0
    before = c.hgetall(f"d{d}")
    r = lab.stoke("fsck", file_volume, "--path", "/d", check=False)
    assert r.returncode == 1 and "2 of its entries are damaged" in r.stdout and c.hgetall(f"d{d}") == before
    lab.stoke("fsck", file_volume, "--path", "/d", "--repair")
    assert set(before) - set(c.hgetall(f"d{d}")) == {b"short", b"a/b"}
    assert "damaged" not in lab.stoke("fsck", file_volume).stdout
    m = lab.mount(file_volume)
    lab.stoke("rmr", m.path("d"))
    assert not os.path.exists(m.path("d"))
