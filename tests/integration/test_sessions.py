# SPDX-License-Identifier: Apache-2.0
"""A mount that others took for dead: it takes back what it can, and says what it lost."""
import errno
import fcntl
import os

import pytest
from lab import wait_for, write_file


def taken_for_dead(c, sid):
    """as a JuiceFS client cleans a session up"""
    for key in c.smembers(f"locked{sid}"):
        for field in c.hkeys(key):
            if field.startswith(f"{sid}_".encode()):
                c.hdel(key, field)
    c.delete(f"locked{sid}")
    c.delete(f"session{sid}")
    c.zrem("allSessions", sid)
    c.hdel("sessionInfos", sid)


def test_taken_for_dead(lab, redis):
    meta = redis.url(1)
    lab.format(meta, "vol", flags=["--trash-days", "0"])
    a = lab.mount(meta, "a", flags=["--heartbeat", "1"])
    b = lab.mount(meta, "b", flags=["--no-bgjob"])
    c = redis.client(1)
    sid = min(int(s) for s in c.zrange("allSessions", 0, -1))
    for name in ("whole", "part", "lost"):
        write_file(a.path(name), b"x" * 100)
    held = {name: os.open(a.path(name), os.O_RDWR) for name in ("whole", "part", "lost")}
    fcntl.flock(held["whole"], fcntl.LOCK_EX)
    fcntl.lockf(held["part"], fcntl.LOCK_EX, 10, 20)
    fcntl.flock(held["lost"], fcntl.LOCK_EX)
    nameless = os.open(a.path("nameless"), os.O_CREAT | os.O_RDWR)
    os.write(nameless, b"y" * 1000)
    os.fsync(nameless)
    os.unlink(a.path("nameless"))
    ino = os.fstat(nameless).st_ino
    assert c.sismember(f"session{sid}", ino)

    taken_for_dead(c, sid)
    other = os.open(b.path("lost"), os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)  # of another mount: got in between, or not at all
    wait_for("nameless file of the session", lambda: c.sismember(f"session{sid}", ino), 10)
    wait_for("locks of the session", lambda: len(c.smembers(f"locked{sid}")) == 2, 10)
    for name, lock in (("whole", lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)),
                       ("part", lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 25))):
        fd = os.open(b.path(name), os.O_RDWR)
        with pytest.raises(OSError) as e:
            lock(fd)
        assert e.value.errno in (errno.EAGAIN, errno.EACCES), name
        os.close(fd)
    assert os.pread(nameless, 1000, 0) == b"y" * 1000
    wait_for("word of the lost lock", lambda: "is lost: somebody else got it" in a.text(), 10)

    for fd in (*held.values(), other):
        os.close(fd)
    os.close(nameless)
    wait_for("end of the nameless file", lambda: not c.exists(f"i{ino}") and not c.exists(f"session{sid}"), 10)
    wait_for("end of the locks", lambda: not c.keys("lock*"), 10)
