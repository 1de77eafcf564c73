# SPDX-License-Identifier: Apache-2.0
"""Redis away, disks full: what goes on all the same."""
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from lab import BLOCK, noise, run, sha256, wait_for, write_file

MIB = 1 << 20


def test_reads_of_open_files_go_on_while_redis_is_stopped(lab, redis, s3_volume):
    d = lab.daemon(s3_volume, 1)
    m = lab.group_mount(s3_volume, "m1", socket=d.socket, flags=["--meta-timeout", "60", "--attr-cache", "0", "--entry-cache", "0"])
    data = noise(64 * MIB)
    write_file(m.path("f"), data)
    for i in range(64):
        write_file(m.path(f"s{i}"), b"")
    lab.stoke("warmup", m.path("f"))
    fd = os.open(m.path("f"), os.O_RDONLY)
    assert os.pread(fd, 10, 0) == data[:10]

    def pass_over():
        m.drop_caches()
        t = time.monotonic()
        for off in range(0, 64 * MIB, MIB):
            assert os.pread(fd, MIB, off) == data[off:off + MIB]
        return time.monotonic() - t
    pass_over()
    free = min(pass_over() for _ in range(3))
    redis.signal(signal.SIGSTOP)
    done = []
    stats = [threading.Thread(target=lambda i=i: done.append(os.stat(m.path(f"s{i}")).st_size)) for i in range(64)]
    try:
        for t in stats:
            t.start()
        time.sleep(0.5)
        assert len(done) < 64
        blocked = min(pass_over() for _ in range(3))
        assert len(done) < 64
    finally:
        redis.signal(signal.SIGCONT)
    for t in stats:
        t.join(60)
    assert len(done) == 64
    print(f"free {free:.3f} s, with 64 stats blocked {blocked:.3f} s")
    assert blocked < 2 * free + 0.1
    os.close(fd)


def test_G10_group_stays_while_redis_is_away(lab, redis, s3_volume, rgw, bucket):
    daemons = [lab.daemon(s3_volume, n) for n in (1, 2, 3)]
    m = lab.group_mount(s3_volume, "m1", flags=["--meta-timeout", "60"])
    data = noise(100 * MIB)
    write_file(m.path("f"), data)
    lab.stoke("warmup", m.path("f"))
    fd = os.open(m.path("f"), os.O_RDONLY)
    os.pread(fd, 1, 0)
    os.pread(fd, 1, 64 * MIB)
    mark = rgw.log_size()
    redis.signal(signal.SIGSTOP)
    try:
        end = time.monotonic() + 8  # longer than a heartbeat's lapse
        while time.monotonic() < end:
            m.drop_caches()
            for off in range(0, 100 * MIB, MIB):
                assert os.pread(fd, MIB, off) == data[off:off + MIB]
    finally:
        redis.signal(signal.SIGCONT)
    os.close(fd)
    assert rgw.gets(mark, bucket) == ([], [])
    time.sleep(2)
    assert sha256(m.path("f"))
    assert rgw.gets(mark, bucket) == ([], [])
    assert all(d.running() for d in daemons)


def test_D01_small_cache_disk_stays_below_its_ratio(lab, s3_volume):
    disk = f"{lab.folder}/disk"
    os.makedirs(disk)
    run(["mount", "-t", "tmpfs", "-o", "size=256m", "none", disk])
    try:
        d = lab.daemon(s3_volume, 1, cache_dirs=[f"{disk}/c"], cache_mib=100000, flags=["--free-space-ratio", "0.2"])
        m = lab.group_mount(s3_volume, "m1")
        files = {}
        for i in range(40):
            write_file(m.path(f"f{i}"), noise(8 * MIB, i))
            files[f"f{i}"] = noise(8 * MIB, i)
        for _ in range(2):
            m.drop_caches()
            for name, data in files.items():
                with open(m.path(name), "rb") as f:
                    assert f.read() == data
            st = os.statvfs(disk)
            assert 1 - st.f_bavail / st.f_blocks <= 0.82
        assert sum(v for k, v in d.metrics().items() if k.startswith("stoke_cached_evictions_total")) > 0
        m.stop()
        d.stop()
        for x in (m, d):
            lab.started.remove(x)
    finally:
        run(["umount", "-l", disk])


def test_D02_cache_disk_without_inodes(lab, s3_volume):
    disk = f"{lab.folder}/disk"
    os.makedirs(disk)
    run(["mount", "-t", "tmpfs", "-o", "size=256m,nr_inodes=500", "none", disk])
    try:
        d = lab.daemon(s3_volume, 1, cache_dirs=[f"{disk}/c"])
        m = lab.group_mount(s3_volume, "m1")
        for i in range(1000):
            with open(m.path(f"f{i}"), "wb") as f:
                f.write(b"%d" % i * 50)
        m.drop_caches()
        for i in range(1000):
            with open(m.path(f"f{i}"), "rb") as f:
                assert f.read() == b"%d" % i * 50
        m.stop()
        d.stop()
        for x in (m, d):
            lab.started.remove(x)
    finally:
        run(["umount", "-l", disk])


@pytest.mark.parametrize("what", ["mount", "daemon"])
def test_memory_stays_bounded_while_streaming(lab, s3_volume, what):
    d = lab.daemon(s3_volume, 1)
    m = lab.group_mount(s3_volume, "m1")
    for i in range(8):
        write_file(m.path(f"f{i}"), noise(64 * MIB, i))
    lab.stoke("warmup", m.dir)
    m.drop_caches()
    peak = 0
    pool = [threading.Thread(target=sha256, args=(m.path(f"f{i}"),)) for i in range(8)]
    for t in pool:
        t.start()
    while any(t.is_alive() for t in pool):
        peak = max(peak, (m if what == "mount" else d).rss_mib())
        time.sleep(0.05)
    assert BLOCK and peak < 400


def test_a_mount_ends_though_daemons_hang_in_the_middle_of_a_fetch(lab, s3_volume, rgw):
    """they said that they fetch, and were stopped: the read goes elsewhere, and who asked them waits for nobody at its end"""
    daemons = [lab.daemon(s3_volume, n) for n in (1, 2)]
    data = noise(BLOCK)
    m1 = lab.mount(s3_volume, "m1")
    write_file(m1.path("f"), data)
    m2 = lab.group_mount(s3_volume, "m2")
    got = []

    def read():
        with open(m2.path("f"), "rb") as f:
            got.append(f.read())
    t = threading.Thread(target=read)
    rgw.signal(signal.SIGSTOP)
    try:
        t.start()
        time.sleep(1)
        for d in daemons:
            d.signal(signal.SIGSTOP)
        time.sleep(0.3)
    finally:
        rgw.signal(signal.SIGCONT)
    t.join(60)
    assert got == [data]
    start = time.monotonic()
    assert m2.stop() == 0
    assert time.monotonic() - start < 5
    lab.started.remove(m2)
    for d in daemons:
        d.signal(signal.SIGCONT)


KILLED = {
    "fsync": "os.write(fd, b'a' * 5000000); print(1, flush=True); os.fsync(fd)",
    "close": "os.write(fd, b'a' * 5000000); print(1, flush=True); os.close(fd)",
    "write": "print(1, flush=True)\nwhile True: os.write(fd, b'a' * (1 << 20))",
    "exit": "os.write(fd, b'a' * 5000000); print(1, flush=True); time.sleep(60)",
}


@pytest.mark.parametrize("where", KILLED)
def test_a_killed_process_ends_while_the_object_store_hangs(lab, s3_volume, rgw, where):
    """and what it wrote is stored when the store comes back"""
    m = lab.mount(s3_volume, "m1", ["--buffer-size", "64"])
    code = f"import os, time; fd = os.open({m.path('x')!r}, os.O_CREAT | os.O_WRONLY)\n{KILLED[where]}"
    rgw.signal(signal.SIGSTOP)
    try:
        p = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        p.stdout.readline()
        time.sleep(2)
        assert p.poll() is None
        p.send_signal(signal.SIGKILL)
        t = time.monotonic()
        assert p.wait(5) == -signal.SIGKILL
        assert time.monotonic() - t < 1
    finally:
        rgw.signal(signal.SIGCONT)
    p.stdout.close()
    assert m.stop() == 0
    lab.started.remove(m)
    m = lab.mount(s3_volume, "m2")
    with open(m.path("x"), "rb") as f:
        data = f.read()
    assert len(data) >= 5000000 and data == b"a" * len(data)


def test_own_files_are_readable_while_redis_hangs(lab, redis, s3_volume):
    m = lab.mount(s3_volume, "m1", ["--meta-timeout", "60", "--attr-cache", "0"])
    before = os.stat(m.dir)
    redis.signal(signal.SIGSTOP)
    try:
        for _ in range(3):
            t = time.monotonic()
            assert len(m.stats()) > 10
            assert time.monotonic() - t < 2
        assert os.stat(m.dir).st_mode == before.st_mode
    finally:
        redis.signal(signal.SIGCONT)


def leave_with_dirty_data(lab, redis, end):
    """a mount whose Redis is away is told to end while data is not stored; returns it and when it was told"""
    m = lab.mount(redis.url(1), "m1", flags=["--meta-timeout", "2"])
    with open(m.path("stored"), "wb") as f:
        f.write(b"s" * 1000)
    os.mkdir(m.path("dir"))
    fds = [os.open(m.path(n), os.O_WRONLY | os.O_CREAT) for n in ("dir/checkpoint.tmp", "dir/other")]
    os.rename(m.path("dir/checkpoint.tmp"), m.path("dir/checkpoint"))
    inodes = [os.fstat(fd).st_ino for fd in fds]
    redis.signal(signal.SIGSTOP)
    for fd in fds:
        os.write(fd, b"x" * 5000)
    end(m)
    return m, fds, inodes


def test_a_mount_that_cannot_store_says_what_it_waits_for_and_ends_when_told_twice(lab, redis, file_volume):
    m, fds, inodes = leave_with_dirty_data(lab, redis, lambda m: m.signal(signal.SIGTERM))
    try:
        wait_for("a word on what it waits for", lambda: "9.8 KiB of 2 files are not stored yet" in m.text(), 10)
        assert m.running() and "given up in 3" in m.text()
        t = time.monotonic()
        m.signal(signal.SIGHUP)  # no request of its own
        m.signal(signal.SIGTERM)
        m.p.wait(15)
        assert time.monotonic() - t < 10
    finally:
        redis.signal(signal.SIGCONT)
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
    assert m.p.returncode == 1 and not os.path.ismount(m.dir)
    lost = {line.split(": ", 1)[-1].split("lost ", 1)[1] for line in m.text().splitlines() if "lost name=" in line or "lost inode=" in line}
    assert any("name=checkpoint directory=" in x and f"inode={inodes[0]} size=4.9 KiB" in x for x in lost) and len(lost) == 2, m.text()
    assert "given up: what was written to 2 files" in m.text()
    m = lab.mount(redis.url(1), "m2")
    # a record that Redis was asked for before may come all the same when it wakes up
    assert os.stat(m.path("stored")).st_size == 1000
    assert {os.stat(m.path(n)).st_size for n in ("dir/checkpoint", "dir/other")} <= {0, 5000}


def test_a_mount_that_cannot_store_at_once_stores_when_redis_is_back(lab, redis, file_volume):
    m, fds, _ = leave_with_dirty_data(lab, redis, lambda m: m.signal(signal.SIGTERM))
    wait_for("a word on what it waits for", lambda: "2 files are not stored yet" in m.text(), 10)
    redis.signal(signal.SIGCONT)
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
    m.p.wait(30)
    assert m.stop() == 0 and "lost inode" not in m.text() and "given up:" not in m.text()
    m = lab.mount(redis.url(1), "m2")
    assert [os.stat(m.path(n)).st_size for n in ("stored", "dir/checkpoint", "dir/other")] == [1000, 5000, 5000]
