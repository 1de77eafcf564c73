# SPDX-License-Identifier: Apache-2.0
"""No wrong byte is ever delivered: damaged, cut, emptied and misplaced cache files, short objects, sizes around every edge."""
import errno
import os
import shutil
import signal
import threading
import time

import pytest
from lab import BLOCK, noise, sha256, wait_for, write_file

MIB = 1 << 20


@pytest.fixture
def one(lab, s3_volume):
    """one daemon, a mount beside it and a consumer"""
    d = lab.daemon(s3_volume, 1)
    return d, lab.group_mount(s3_volume, "m1", socket=d.socket), lab.group_mount(s3_volume, "m2")


def damaged_count(d):
    return sum(v for k, v in d.metrics().items() if k.startswith("stoke_cached_blocks_damaged_total"))


@pytest.mark.parametrize("reader", ["local", "peer"])
def test_B01_flipped_bit_is_never_delivered(lab, one, reader):
    d, m1, m2 = one
    data = noise(3 * BLOCK)
    write_file(m1.path("f"), data)
    lab.stoke("warmup", m1.path("f"))
    files = d.block_files()
    assert len(files) == 3
    for path in files:
        with open(path, "r+b") as f:
            f.seek(1234567)
            byte = f.read(1)
            f.seek(1234567)
            f.write(bytes([byte[0] ^ 4]))
    m = m1 if reader == "local" else m2
    m.drop_caches()
    with open(m.path("f"), "rb") as f:
        assert f.read() == data
    wait_for("count of damage", lambda: damaged_count(d) >= 3)
    # fetched again, and right this time
    lab.stoke("warmup", m1.path("f"))
    for path in d.block_files():
        with open(path, "rb") as f:
            assert f.read(BLOCK) in (data[:BLOCK], data[BLOCK:2 * BLOCK], data[2 * BLOCK:])


@pytest.mark.parametrize("reader", ["local", "peer"])
def test_B03_cut_files_are_misses(lab, one, reader):
    d, m1, m2 = one
    data = noise(4 * BLOCK)
    write_file(m1.path("f"), data)
    lab.stoke("warmup", m1.path("f"))
    for path, n in zip(d.block_files(), (0, 1, BLOCK - 1, BLOCK)):
        os.truncate(path, n)
    m = m1 if reader == "local" else m2
    m.drop_caches()
    with open(m.path("f"), "rb") as f:
        assert f.read() == data


def test_B09_a_block_under_another_name_is_not_delivered(lab, one):
    d, m1, m2 = one
    data = noise(2 * BLOCK)
    write_file(m1.path("f"), data)
    lab.stoke("warmup", m1.path("f"))
    a, b = d.block_files()
    shutil.copyfile(a, a + ".x")
    shutil.copyfile(b, a)
    os.replace(a + ".x", b)
    for m in (m1, m2):
        m.drop_caches()
        with open(m.path("f"), "rb") as f:
            assert f.read() == data


def test_B10_zeroed_and_emptied_files_after_a_crash_are_misses(lab, one):
    d, m1, m2 = one
    data = noise(4 * BLOCK)
    write_file(m1.path("f"), data)
    lab.stoke("warmup", m1.path("f"))
    d.kill()
    for i, path in enumerate(d.block_files()):
        size = os.path.getsize(path)
        os.truncate(path, 0)
        if i % 2:
            os.truncate(path, size)
    d.again()
    m2.drop_caches()
    with open(m2.path("f"), "rb") as f:
        assert f.read() == data


SIZES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 64 * MIB - 1, 64 * MIB, 64 * MIB + 1]


def test_B04_sizes_around_every_edge(lab, one):
    d, m1, m2 = one
    data = noise(64 * MIB + 1)
    for n in SIZES:
        write_file(m1.path(f"f{n}"), data[:n])
    for m in (m1, m2):
        m.drop_caches()
        for n in SIZES:
            assert os.stat(m.path(f"f{n}")).st_size == n
            with open(m.path(f"f{n}"), "rb") as f:
                assert f.read() == data[:n]
                if n:
                    f.seek(n - 1)
                    assert f.read(10) == data[n - 1:n]
                f.seek(n)
                assert f.read(1) == b""
                f.seek(n + BLOCK)
                assert f.read(1) == b""
            fd = os.open(m.path(f"f{n}"), os.O_RDONLY)
            for edge in (32768, BLOCK, 64 * MIB):
                for off in (edge - 3, edge - 1, edge, edge + 1):
                    assert os.pread(fd, 7, off) == data[:n][off:off + 7]
            os.close(fd)


def test_B06_short_object_is_an_error_and_not_cached(lab, one, rgw, bucket):
    d, m1, m2 = one
    write_file(m1.path("f"), noise(BLOCK))
    lab.stoke("warmup", "--evict", m1.path("f"))
    c = rgw.client()
    key = next(o["Key"] for o in c.list_objects_v2(Bucket=bucket)["Contents"] if "/chunks/" in o["Key"])
    body = c.get_object(Bucket=bucket, Key=key)["Body"].read()
    c.put_object(Bucket=bucket, Key=key, Body=body[:-1])
    m2.drop_caches()
    with open(m2.path("f"), "rb") as f, pytest.raises(OSError) as e:
        f.read()
    assert e.value.errno == errno.EIO
    assert key in m2.text() + d.text()
    assert d.block_files() == []
    c.put_object(Bucket=bucket, Key=key, Body=body)
    with open(m2.path("f"), "rb") as f:
        assert f.read() == body


def test_missing_object_is_an_error_that_names_it(lab, one, rgw, bucket):
    d, m1, m2 = one
    write_file(m1.path("f"), noise(1000))
    lab.stoke("warmup", "--evict", m1.path("f"))
    c = rgw.client()
    key = next(o["Key"] for o in c.list_objects_v2(Bucket=bucket)["Contents"] if "/chunks/" in o["Key"])
    c.delete_object(Bucket=bucket, Key=key)
    t = time.monotonic()
    m2.drop_caches()
    with open(m2.path("f"), "rb") as f, pytest.raises(OSError) as e:
        f.read()
    assert e.value.errno == errno.EIO and key in m2.text() and time.monotonic() - t < 10


def test_D03_kill_during_fills_then_restart(lab, one):
    """kill -9 in the middle of admits and serves, three times: nothing partial is ever served"""
    d, m1, m2 = one
    files = {}
    for i in range(24):
        write_file(m1.path(f"f{i}"), noise(8 * MIB, i))
        files[f"f{i}"] = sha256(m1.path(f"f{i}"))
    for round_ in range(3):
        lab.stoke("warmup", "--evict", *(m1.path(f) for f in files))
        m2.drop_caches()
        errors, started = [], threading.Event()

        def read(names):
            for n in names:
                try:
                    if sha256(m2.path(n)) != files[n]:
                        errors.append(n)
                except OSError as e:
                    errors.append(f"{n}: {e}")
                started.set()
        names = list(files)
        pool = [threading.Thread(target=read, args=(names[i::4],)) for i in range(4)]
        for t in pool:
            t.start()
        started.wait(60)
        d.kill()
        d.again()
        for t in pool:
            t.join()
        assert errors == []
        m2.drop_caches()
        read(names)
        assert errors == []
        # what lies on the disk is whole: name and length agree
        for path in d.block_files():
            size = int(path.rsplit("_", 1)[1])
            assert os.path.getsize(path) == size + 4 * -(-size // 32768)


@pytest.mark.parametrize("how", ["dump-load", "destroy-format"])
def test_B08_an_old_volumes_blocks_are_never_served(lab, redis, rgw, bucket, juicefs, how):
    """slice numbers come back with other bytes: after dump and load into an empty database, and after a new format under the same name"""
    meta = redis.url(1)
    lab.format(meta, "vol", rgw, bucket)
    d = lab.daemon(meta, 1)
    m = lab.group_mount(meta, "m1", socket=d.socket)
    write_file(m.path("base"), b"base")
    dump = f"{lab.folder}/dump.json"
    env = dict(lab.env, ACCESS_KEY=rgw.ACCESS, SECRET_KEY=rgw.KEY)
    from lab import run
    run([juicefs, "dump", meta, dump, "--keep-secret-key"], env=env)
    old = noise(BLOCK, 1)
    write_file(m.path("f"), old)
    lab.stoke("warmup", m.path("f"))
    assert d.block_files()
    m.stop()
    d.stop()
    lab.started.remove(m)
    lab.started.remove(d)
    c = redis.client(1)
    c.flushdb()
    if how == "dump-load":
        run([juicefs, "load", meta, dump], env=env)
    else:
        s3 = rgw.client()
        for o in s3.list_objects_v2(Bucket=bucket).get("Contents", []):
            s3.delete_object(Bucket=bucket, Key=o["Key"])
        lab.format(meta, "vol", rgw, bucket)
    d = lab.add(d.again())
    m = lab.group_mount(meta, "m2", socket=d.socket)
    consumer = lab.group_mount(meta, "m3")
    c.set("nextchunk", 0 if how == "destroy-format" else 1)  # the same numbers again
    new = noise(BLOCK, 2)
    for i in range(3):
        write_file(m.path(f"g{i}"), new)
    for mount in (m, consumer):
        mount.drop_caches()
        for i in range(3):
            with open(mount.path(f"g{i}"), "rb") as f:
                assert f.read() == new


@pytest.mark.parametrize("how", ["dump-load", "destroy-format"])
def test_B08_old_bytes_are_never_read_by_who_stayed_up(lab, redis, rgw, bucket, juicefs, how):
    """the same under mounts and a daemon that live through it: inode and slice numbers come back with other bytes, as many, and what the
    kernel, the mounts and the daemon keep must not be taken for them"""
    from lab import run
    meta = redis.url(1)
    lab.format(meta, "vol", rgw, bucket)
    d = lab.daemon(meta, 1)
    flags = ["--heartbeat", "2"]
    stayed = [lab.group_mount(meta, "m1", socket=d.socket, flags=flags), lab.group_mount(meta, "m2", flags=flags),
              lab.mount(meta, "m3", flags)]
    write_file(stayed[0].path("base"), b"base")
    dump = f"{lab.folder}/dump.json"
    env = dict(lab.env, ACCESS_KEY=rgw.ACCESS, SECRET_KEY=rgw.KEY)
    run([juicefs, "dump", meta, dump, "--keep-secret-key"], env=env)
    names = [f"f{i}" for i in range(4)]
    old = {n: noise(BLOCK + 5, i) for i, n in enumerate(names)}
    for n in names:
        write_file(stayed[0].path(n), old[n])
    lab.stoke("warmup", *(stayed[0].path(n) for n in names))
    held = []
    for m in stayed:
        for n in names:
            f = open(m.path(n), "rb")
            assert f.read() == old[n]
            held.append(f)
    inodes = [os.stat(stayed[0].path(n)).st_ino for n in names]
    redis.client(1).flushdb()
    if how == "dump-load":
        run([juicefs, "load", meta, dump], env=env)
    else:
        s3 = rgw.client()
        for o in s3.list_objects_v2(Bucket=bucket).get("Contents", []):
            s3.delete_object(Bucket=bucket, Key=o["Key"])
        lab.format(meta, "vol", rgw, bucket)
        redis.client(1).set("nextInode", inodes[0] - 1)
    writer = lab.mount(meta, "m4")
    new = {n: noise(BLOCK + 5, 100 + i) for i, n in enumerate(names)}
    for n in names:
        write_file(writer.path(n), new[n])
    if how == "destroy-format":
        assert set(inodes) & {os.stat(writer.path(n)).st_ino for n in names}
    end, good, failed = time.monotonic() + 15, set(), 0
    while time.monotonic() < end and len(good) < len(stayed) * len(names):
        for m in stayed:
            for n in names:
                try:
                    with open(m.path(n), "rb") as f:
                        assert f.read() == new[n]
                    good.add((m, n))
                except OSError:
                    failed += 1
        time.sleep(0.2)
    print(f"{len(good)} good, {failed} failed")
    if how == "dump-load":
        assert len(good) == len(stayed) * len(names)
    for f in held:
        f.close()
    # mounts that are made again, with the same daemon where it is still of this volume
    for m in stayed:
        m.stop()
        lab.started.remove(m)
    if how == "destroy-format":
        d.stop()
        d.again()
    for m in (lab.group_mount(meta, "m5", socket=d.socket), lab.group_mount(meta, "m6")):
        for n in names:
            with open(m.path(n), "rb") as f:
                assert f.read() == new[n]


def test_signal_daemon_stops_cleanly(lab, one):
    d, m1, m2 = one
    write_file(m1.path("f"), noise(BLOCK))
    d.signal(signal.SIGTERM)
    assert d.p.wait(20) == 0
    with open(m2.path("f"), "rb") as f:
        assert f.read() == noise(BLOCK)
