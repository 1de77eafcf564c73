# SPDX-License-Identifier: Apache-2.0
"""Locks: between processes of one mount, of two, and of a mount of the real JuiceFS; waiting, interrupts, ends; while Redis hangs."""
import contextlib
import errno
import fcntl
import os
import signal
import struct
import subprocess
import sys
import time

import pytest
from lab import wait_for, write_file

OFD_GETLK, OFD_SETLK, OFD_SETLKW = 36, 37, 38
ROUNDS, PROCESSES = 20, 8

# takes the lock on FILE, and in it reads, checks and writes a counter (in it, or apart): two at once would lose a count or see the
# other's mark. Any close of the file ends the process's record locks, so the counter is closed last.
WORKER = r"""
import fcntl, os, struct, sys, time
kind, apart, paths, rounds = sys.argv[1], sys.argv[2] == "apart", sys.argv[3:-1], int(sys.argv[-1])
me = os.getpid()
def flk(t, start=0, n=0):
    return struct.pack("hhqqi4x", t, 0, start, n, 0)
for i in range(rounds):
    fd = os.open(paths[i % len(paths)], os.O_RDWR)
    if kind == "flock":
        fcntl.flock(fd, fcntl.LOCK_EX)
    elif kind == "fcntl":
        fcntl.lockf(fd, fcntl.LOCK_EX)
    else:
        fcntl.fcntl(fd, 38, flk(fcntl.F_WRLCK))
    data = os.open(paths[i % len(paths)] + ".data", os.O_RDWR) if apart else os.dup(fd)
    n, owner = struct.unpack("<qq", os.pread(data, 16, 0))
    assert owner == 0, f"{owner} is inside too"
    os.pwrite(data, struct.pack("<qq", n, me), 0)
    os.fsync(data)
    assert os.pread(data, 16, 0) == struct.pack("<qq", n, me)
    os.pwrite(data, struct.pack("<qq", n + 1, 0), 0)
    os.fsync(data)
    if kind == "flock" and i % 2:
        fcntl.flock(fd, fcntl.LOCK_UN)
    elif kind == "fcntl" and i % 2:
        fcntl.lockf(fd, fcntl.LOCK_UN)
    elif kind == "ofd" and i % 2:
        fcntl.fcntl(fd, 37, flk(fcntl.F_UNLCK))
    os.close(fd)
    os.close(data)
"""

# tells "has it" once it has the lock, keeps it until its input ends; after EINTR it tells that
HOLDER = r"""
import fcntl, os, signal, struct, sys
kind, path, how = sys.argv[1:4]
signal.signal(signal.SIGUSR1, lambda *a: (_ for _ in ()).throw(InterruptedError()))
fd = os.open(path, os.O_RDWR)
print("asks", flush=True)
try:
    if kind == "flock":
        fcntl.flock(fd, fcntl.LOCK_EX if how == "W" else fcntl.LOCK_SH)
    elif kind == "fcntl":
        fcntl.lockf(fd, fcntl.LOCK_EX if how == "W" else fcntl.LOCK_SH)
    else:
        fcntl.fcntl(fd, 38, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    print("has it", flush=True)
except InterruptedError:
    print("interrupted", flush=True)
sys.stdin.read()
"""


class Process(subprocess.Popen):
    """one who asks for a lock"""

    def __init__(self, kind, path, how="W"):
        super().__init__([sys.executable, "-c", HOLDER, kind, path, how], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.word() == "asks"

    def word(self):
        return self.stdout.readline().strip()

    def end(self):
        self.stdin.close()
        assert self.wait(20) == 0


def lock_keys(redis):
    return sorted(k for k in redis.client(1).keys("lock*"))


def counted(kind, paths, apart=False):
    for p in (paths[0], paths[0] + ".data"):
        with open(p, "wb") as f:
            f.write(struct.pack("<qq", 0, 0))
    for p in paths:
        wait_for("the file", lambda p=p: os.path.getsize(p + ".data") == 16)
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, kind, "apart" if apart else "same",
                                 *(paths[i % len(paths):] + paths[:i % len(paths)]), str(ROUNDS)],
                                stderr=subprocess.PIPE, text=True) for i in range(PROCESSES)]
    for w in workers:
        assert w.wait(120) == 0, w.stderr.read()[-2000:]
    with open(paths[0] + (".data" if apart else ""), "rb") as f:
        return struct.unpack("<qq", f.read())


@pytest.mark.parametrize("kind", ["flock", "fcntl", "ofd"])
def test_f09_nobody_is_inside_together(lab, redis, file_volume, kind, tmp_path):
    """also on the file system beneath, which shows that the test is right"""
    local = [str(tmp_path / "counter")]
    assert counted(kind, local) == (PROCESSES * ROUNDS, 0)
    a, b = lab.mount(file_volume, "m1"), lab.mount(file_volume, "m2")
    assert counted(kind, [a.path("counter"), b.path("counter")]) == (PROCESSES * ROUNDS, 0)
    assert lock_keys(redis) == []


@pytest.mark.parametrize("kind", ["flock", "fcntl", "ofd"])
def test_f09_with_a_juicefs_client(lab, redis, juicefs, file_volume, kind):
    a, j = lab.mount(file_volume, "m1"), lab.juice_mount(juicefs, file_volume)
    # JuiceFS 1.4.2 forgets OFD locks at close (its handle keeps only what the closing process took): there they are given back
    if kind == "ofd":
        with open(a.path("f"), "w"):
            pass
        p = Process(kind, a.path("f"))
        assert p.word() == "has it"
        fd = os.open(j.path("f"), os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.fcntl(fd, OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
        p.end()
        fcntl.fcntl(fd, OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
        fcntl.fcntl(fd, OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_UNLCK, 0, 0, 0, 0))
        os.close(fd)
        return
    # JuiceFS reads what its kernel has of a file that was opened before the lock came
    assert counted(kind, [a.path("counter"), j.path("counter")], apart=True) == (PROCESSES * ROUNDS, 0)
    assert lock_keys(redis) == []


def test_records_are_those_of_juicefs(lab, redis, juicefs, file_volume):
    """the same calls leave the same keys and the same lines of the change log"""
    db, seen = redis.client(1), {}
    subprocess.run([juicefs, "config", file_volume, "--changelog", "--yes"], check=True, env=lab.env, capture_output=True)
    for name, mount in (("stoke", lab.mount(file_volume, "m1")), ("juicefs", lab.juice_mount(juicefs, file_volume))):
        with open(mount.path("f" + name), "w"):
            pass
        fd, since = os.open(mount.path("f" + name), os.O_RDWR), db.llen("txnLog")
        ino = os.fstat(fd).st_ino
        out = []

        def keys():
            plock = {k.split(b"_")[1]: v for k, v in db.hgetall(f"lockp{ino}").items()}
            flock = list(db.hgetall(f"lockf{ino}").values())
            sids = {k.split(b"_")[0] for k in [*db.hgetall(f"lockp{ino}"), *db.hgetall(f"lockf{ino}")]}
            locked = [sorted(m.replace(str(ino).encode(), b"N") for m in db.smembers(b"locked" + s)) for s in sids]
            return list(plock.values()), flock, locked
        steps = [(fcntl.LOCK_EX, 0, 100), (fcntl.LOCK_SH, 10, 20), (fcntl.LOCK_UN, 15, 5), (fcntl.LOCK_EX, 200, 0),
                 (fcntl.LOCK_EX, 100, 100), (fcntl.LOCK_UN, 0, 0)]
        for how, start, n in steps:
            fcntl.lockf(fd, how if how == fcntl.LOCK_UN else how | fcntl.LOCK_NB, n, start)
            out.append(keys())
        for how in (fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN):
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            out.append(keys())
        # owners are the kernel's and sessions differ
        lines = [line.decode().split("|")[1] for line in db.lrange("txnLog", since, -1) if b"LK(" in line or b"FLOCK(" in line]
        seen[name] = out, [(w.split("(")[0], *w.rstrip(")").split(",")[2:]) for w in lines]
        os.close(fd)
    joined = [bytes(r) for r in seen["stoke"][0][4][0]]
    for i, (ours, theirs) in enumerate(zip(seen["stoke"][0], seen["juicefs"][0])):
        if i == 4:  # a gap is filled: JuiceFS joins two of three neighbours, ours all three
            assert sum(map(len, joined)) <= sum(map(len, theirs[0]))
            continue
        assert ours == theirs, i
    assert seen["stoke"][1] == seen["juicefs"][1]


def test_ranges_and_getlk(lab, file_volume):
    a, b = lab.mount(file_volume, "m1"), lab.mount(file_volume, "m2")
    with open(a.path("f"), "w"):
        pass
    fa, fb = os.open(a.path("f"), os.O_RDWR), os.open(b.path("f"), os.O_RDWR)

    def get(fd, kind, start, n, cmd=fcntl.F_GETLK):
        t, _, s, length, pid = struct.unpack("hhqqi4x", fcntl.fcntl(fd, cmd, struct.pack("hhqqi4x", kind, 0, start, n, 0)))
        return t, s, length, pid
    fcntl.lockf(fa, fcntl.LOCK_EX, 10, 100)
    fcntl.lockf(fa, fcntl.LOCK_SH, 0, 1000)
    assert get(fb, fcntl.F_RDLCK, 0, 100)[0] == fcntl.F_UNLCK
    assert get(fb, fcntl.F_RDLCK, 0, 0) == (fcntl.F_WRLCK, 100, 10, 0)
    assert get(fb, fcntl.F_WRLCK, 500, 0) == (fcntl.F_RDLCK, 1000, 0, 0)
    assert get(fa, fcntl.F_WRLCK, 0, 0)[0] == fcntl.F_UNLCK, "one's own locks are in nobody's way"
    assert get(fa, fcntl.F_RDLCK, 0, 0, OFD_GETLK) == (fcntl.F_WRLCK, 100, 10, -1), "an OFD's owner is another one"
    with pytest.raises(BlockingIOError):
        fcntl.lockf(fb, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 105)
    fcntl.lockf(fb, fcntl.LOCK_EX | fcntl.LOCK_NB, 50, 110)
    fcntl.lockf(fb, fcntl.LOCK_SH | fcntl.LOCK_NB, 10, 2000)
    # any close of the file by the process ends its record locks
    os.close(os.open(a.path("f"), os.O_RDONLY))
    fcntl.lockf(fb, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fa)
    os.close(fb)


@pytest.mark.parametrize("kind", ["flock", "fcntl", "ofd"])
def test_a_waiter_is_interrupted_killed_and_served(lab, redis, file_volume, kind):
    m, other = lab.mount(file_volume, "m1"), lab.mount(file_volume, "m2")
    with open(m.path("f"), "w"):
        pass
    first = Process(kind, other.path("f"))
    assert first.word() == "has it"
    waiters = [Process(kind, m.path("f")) for _ in range(4)]
    time.sleep(0.2)
    begin = time.monotonic()
    waiters[0].send_signal(signal.SIGUSR1)
    assert waiters[0].word() == "interrupted"
    waiters[1].kill()
    waiters[1].wait(5)
    assert time.monotonic() - begin < 2
    first.end()
    words = {}
    for w in waiters[2:]:  # one of the two gets it, the other when that one is gone
        words[w] = None
    import selectors
    with selectors.DefaultSelector() as s:
        for w in words:
            s.register(w.stdout, selectors.EVENT_READ, w)
        for _ in range(2):
            (key, _), = s.select(10)[:1]
            w = key.data
            assert w.word() == "has it"
            s.unregister(w.stdout)
            w.end()
    waiters[0].end()
    wait_for("no locks", lambda: lock_keys(redis) == [])


def test_locks_end_with_the_mount_and_with_its_session(lab, redis, file_volume):
    a, b = lab.mount(file_volume, "m1"), lab.mount(file_volume, "m2", ["--heartbeat", "1"])
    with open(a.path("f"), "w"):
        pass
    holder = Process("flock", b.path("f"))
    assert holder.word() == "has it"
    fd = os.open(a.path("f"), os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    b.kill()
    holder.kill()
    holder.wait()
    c = lab.mount(file_volume, "m3", ["--heartbeat", "1"])
    wait_for("the lapsed session's end", lambda: lock_keys(redis) == [], 20)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    c.stop()


def test_a_file_without_locks_costs_nothing_to_close(lab, redis, file_volume):
    m, db = lab.mount(file_volume, "m1"), redis.client(1)
    with open(m.path("f"), "w"):
        pass
    fd = os.open(m.path("f"), os.O_RDONLY)
    time.sleep(1.5)  # what the create left to flush
    before = db.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    os.close(os.dup(fd))
    os.close(fd)
    time.sleep(0.2)
    assert db.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0) == before


def test_f14_waiters_are_in_nobodys_way(lab, redis, file_volume):
    m = lab.mount(file_volume, "m1")
    data = os.urandom(1 << 20)
    for name in ("f", "g"):
        with open(m.path(name), "wb") as f:
            f.write(data)
    for i in range(64):
        os.mkdir(m.path(f"d{i}"))
    holder = Process("fcntl", m.path("f"))
    assert holder.word() == "has it"
    waiters = [Process("fcntl", m.path("f")) for _ in range(64)]
    g = os.open(m.path("g"), os.O_RDONLY)
    assert os.pread(g, 4096, 0) == data[:4096]
    time.sleep(0.5)
    lookups = []
    redis.signal(signal.SIGSTOP)
    try:
        lookups = [subprocess.Popen([sys.executable, "-c", f"import os; os.stat({m.path(f'd{i}', 'x')!r})"], stderr=subprocess.DEVNULL)
                   for i in range(64)]
        time.sleep(0.5)
        begin = time.monotonic()
        assert os.pread(g, 1 << 20, 0) == data, "reads of open files go on"
        for w in waiters[:8]:
            w.send_signal(signal.SIGUSR1)
        for w in waiters[:8]:
            assert w.word() == "interrupted"
        for w in waiters[8:16]:
            w.kill()
        for w in waiters[8:16]:
            w.wait(5)
        assert time.monotonic() - begin < 3, "interrupts go on"
    finally:
        redis.signal(signal.SIGCONT)
    for p in lookups:
        p.wait(20)
    assert os.path.isdir(m.path("d7")) and os.pread(g, 100, 5000) == data[5000:5100]
    holder.end()
    rest, served = waiters[16:], 0
    for w in rest:
        os.set_blocking(w.stdout.fileno(), False)
    end = time.monotonic() + 30
    while rest and time.monotonic() < end:
        for w in list(rest):
            with contextlib.suppress(TypeError):
                if w.stdout.readline().strip() == "has it":
                    served += 1
                    rest.remove(w)
                    w.end()
        time.sleep(0.005)
    assert served == 48
    for w in waiters[:8]:
        w.end()
    os.close(g)
    wait_for("no locks", lambda: lock_keys(redis) == [])


def test_a_read_only_mount_locks_in_the_kernel(lab, file_volume):
    w = lab.mount(file_volume, "m1")
    with open(w.path("f"), "w"):
        pass
    r = lab.mount(file_volume, "m2", ["--read-only"])
    a, b = os.open(r.path("f"), os.O_RDONLY), os.open(r.path("f"), os.O_RDONLY)
    fcntl.flock(a, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(OSError) as e:
        fcntl.flock(b, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert e.value.errno == errno.EWOULDBLOCK
    os.close(a)
    fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(b)


@pytest.mark.parametrize("kind", ["flock", "fcntl"])
def test_a_mount_that_ends_tells_its_waiters_so(lab, file_volume, kind):
    m1, m2 = (lab.mount(file_volume, n) for n in ("m1", "m2"))
    write_file(m1.path("f"), b"x")
    holder = Process(kind, m1.path("f"))
    assert holder.word() == "has it"
    waiter = subprocess.Popen([sys.executable, "-c", HOLDER, kind, m2.path("f"), "W"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert waiter.stdout.readline().strip() == "asks"
    time.sleep(0.3)
    assert m2.stop() == 0
    # 512 is the kernel's own ERESTARTSYS, which no program knows
    assert "not connected" in waiter.communicate(timeout=20)[1]
    holder.end()
