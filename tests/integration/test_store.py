# SPDX-License-Identifier: Apache-2.0
"""The daemon's store at its edges: a key that S3 refuses, a small cache with a mount beside it, another generation of the volume."""
import errno
import glob
import os
import re
import socket
import struct
import subprocess
import time

import pytest
from lab import BLOCK, noise, wait_for, write_file
from test_strangers import frame, hello, read_frame

MIB = 1 << 20


def object_gets(d):
    """GETs of the object store that went well"""
    return sum(v for k, v in d.metrics().items() if k.startswith("stoke_object_requests_total") and 'op="get"' in k and 'result="ok"' in k)


def volume_ids(d):
    return {n for c in d.cache for n in os.listdir(glob.glob(f"{c}/*-*")[0]) if re.fullmatch("[0-9a-f]{32}", n)}


def test_D07_a_refused_key_is_an_error_at_once_with_the_way_out(lab, s3_volume, rgw, bucket):
    m1 = lab.mount(s3_volume, "m1")
    for name in ("f", "g"):
        write_file(m1.path(name), noise(3 * BLOCK))
    lab.env.update(ACCESS_KEY=rgw.ACCESS, SECRET_KEY="not the one any more")
    for n in (1, 2):
        lab.daemon(s3_volume, n)
    m2 = lab.group_mount(s3_volume, "m2")
    mark, start = rgw.log_size(), time.monotonic()
    r = lab.stoke("warmup", m2.path("g"), check=False)
    assert r.returncode == 1 and "403" in r.stderr and "ACCESS_KEY" in r.stderr, r.stderr
    # whole blocks: one attempt for each, by whoever it was
    whole, ranges = rgw.gets(mark, bucket)
    assert len(whole) == len(set(whole)) == 3 and ranges == []
    mark = rgw.log_size()
    with open(m2.path("f"), "rb") as f, pytest.raises(OSError) as e:
        os.pread(f.fileno(), 4096, 0)
    assert e.value.errno == errno.EIO and time.monotonic() - start < 10
    # a piece, the whole block that a second one asks for, blocks read ahead: none of them again
    asked = [(r[2], r[4]) for r in rgw.requests(mark, bucket) if r[0] == "GET"]
    assert asked and len(asked) == len(set(asked)), asked
    lines = [line for line in m2.text().splitlines() if "read failed" in line]
    assert len(lines) == 1 and "HTTP 403" in lines[0] and "renew ACCESS_KEY and SECRET_KEY" in lines[0], lines


@pytest.fixture
def small_disk(tmp_path):
    """600 MiB, of which blocks may use 90 %"""
    where = str(tmp_path / "small")
    os.makedirs(where)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600m", "tmpfs", where], check=True)
    yield where
    subprocess.run(["umount", "-l", where], check=True)


def test_a_mounts_descriptors_do_not_empty_a_small_cache(small_disk, lab, file_volume):
    d = lab.daemon(file_volume, 1, cache_dirs=[f"{small_disk}/c"])
    m = lab.group_mount(file_volume, "m1", ["--buffer-size", "64", "--max-readahead", "8"], socket=d.socket)
    for name, seed in (("a", 1), ("b", 2)):
        write_file(m.path(name), noise(440 * MIB, seed))

    def read(name):
        """GETs that it took"""
        m.drop_caches()
        before = object_gets(d)
        with open(m.path(name), "rb") as f:
            while f.read(MIB):
                pass
        return object_gets(d) - before

    blocks = 440 * MIB // BLOCK
    assert read("a") == blocks
    assert read("a") == 0
    assert d.metrics()["stoke_cached_descriptors_out"] > blocks // 2
    # the mount holds descriptors of what leaves; at no time is the cache emptied for it, and b comes in
    assert read("b") == blocks
    for _ in range(30):
        last = read("b")
        assert d.metrics()["stoke_cached_blocks"] > 0.8 * blocks
        if last == 0:
            break
    assert last < blocks // 4

    def deleted():
        return sum("(deleted)" in os.readlink(p) for p in glob.glob(f"/proc/{m.pid}/fd/*") if os.path.lexists(p))
    wait_for("end of what was removed", lambda: deleted() == 0)


def ask(d, volume, keys):
    """one block after the other from a daemon, as a mount of its node asks"""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(30)
        s.connect(d.socket)
        s.sendall(frame(1, hello(volume=volume)))
        assert read_frame(s)[:2] == (1, 0)
        for i, (slice_id, index, size) in enumerate(keys):
            s.sendall(frame(3, volume + struct.pack(">QIIII", slice_id, index, size, 0, size), rid=i + 2))
            while (answer := read_frame(s))[1] == 1:  # FILLING
                pass
            assert answer[1] == 0 and len(answer[2]) > size


def test_daemons_talk_to_each_other_after_a_change_of_generation(lab, redis, file_volume):
    daemons = [lab.daemon(file_volume, n) for n in (1, 2)]
    m = lab.group_mount(file_volume, "m1")
    write_file(m.path("f"), noise(64 * MIB))
    before = volume_ids(daemons[0])
    redis.client(1).set("_gen", b"another1")
    wait_for("the move", lambda: all(len(volume_ids(d)) == 1 and not volume_ids(d) & before for d in daemons))
    m.stop()
    lab.started.remove(m)
    m = lab.group_mount(file_volume, "m2")
    lab.stoke("warmup", m.path("f"))
    volume = bytes.fromhex(volume_ids(daemons[0]).pop())
    keys = [{tuple(map(int, os.path.basename(p).split("_"))) for p in d.block_files()} for d in daemons]
    gets = [object_gets(d) for d in daemons]
    # what the other one holds comes from him, not from the object store
    for me, other in ((0, 1), (1, 0)):
        theirs = sorted(keys[other] - keys[me])[:4]
        assert theirs
        ask(daemons[me], volume, theirs)
    assert gets == [object_gets(d) for d in daemons]
