# SPDX-License-Identifier: Apache-2.0
"""Compaction with the real JuiceFS beside: lists become short, both clients read right during and after, nothing is lost or left."""
import os
import threading
import time

import pytest
from lab import noise, run, wait_for
from test_interop import fsck_clean

CACHES = ["--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0"]


def lists(redis):
    c = redis.client(1)
    return {k.decode(): c.llen(k) for k in c.scan_iter("c[0-9]*", count=1000)}


def stored(lab):
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(f"{lab.folder}/objects/vol/chunks") for f in files)


def append(path, pieces):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for p in pieces:
        os.write(fd, p)
        os.fsync(fd)
    os.close(fd)


def read_on(path, want, done, errors):
    """reads it again and again from the start: whatever is there is a part of what is wanted"""
    while True:
        last = done.is_set()
        try:
            fd = os.open(path, os.O_RDONLY)
            try:
                data = b"".join(iter(lambda: os.read(fd, 1 << 20), b""))
            finally:
                os.close(fd)
            if data != want[:len(data)]:
                errors.append(f"{path}: {len(data)} bytes that were never written")
        except FileNotFoundError:
            pass
        except OSError as e:
            errors.append(f"{path}: {e}")
        if last:
            return
        time.sleep(0.02)


@pytest.mark.parametrize("trash", ["0", "1"], ids=["no-trash", "trash"])
def test_many_small_appends(lab, redis, juicefs, trash):
    meta = redis.url(1)
    lab.format(meta, "vol", flags=["--trash-days", trash])
    ours, theirs = lab.mount(meta, flags=CACHES), lab.juice_mount(juicefs, meta)
    pieces = [noise(500 + i, i) for i in range(600)]
    want = b"".join(pieces)
    done, errors = threading.Event(), []
    readers = [threading.Thread(target=read_on, args=(m.path("log"), want, done, errors)) for m in (ours, theirs)]
    for t in readers:
        t.start()
    append(ours.path("log"), pieces)
    done.set()
    for t in readers:
        t.join()
    assert not errors, errors[:3]
    for m in (ours, theirs):
        with open(m.path("log"), "rb") as f:
            assert f.read() == want
    wait_for("short lists", lambda: max(lists(redis).values()) < 99)
    theirs.stop()
    lab.started.remove(theirs)
    # only our own client
    append(ours.path("alone"), pieces)
    wait_for("short lists", lambda: max(lists(redis).values()) < 200)
    with open(ours.path("alone"), "rb") as f:
        assert f.read() == want
    time.sleep(1.5)
    assert ours.stop() == 0
    lab.started.remove(ours)
    if trash == "0":
        assert redis.client(1).hlen("sliceRef") == 0
        assert not redis.client(1).exists("delSlices")
    else:
        assert redis.client(1).hlen("delSlices") > 0
    fsck_clean(juicefs, lab, meta)
    theirs = lab.juice_mount(juicefs, meta, "j2")
    with open(theirs.path("alone"), "rb") as f:
        assert f.read() == want


def test_f10_a_list_compacted_by_juicefs_under_an_open_file(lab, redis, juicefs):
    """Without trash the old objects are gone at once: the reader looks at the list again."""
    meta = redis.url(1)
    lab.format(meta, "vol", flags=["--trash-days", "0"])
    ours, theirs = lab.mount(meta, flags=["--max-readahead", "0"]), lab.juice_mount(juicefs, meta)
    pieces = [noise(100_000, i) for i in range(4)]
    append(theirs.path("f"), pieces)
    fd = os.open(ours.path("f"), os.O_RDONLY)
    assert os.pread(fd, 1000, 0) == pieces[0][:1000]  # the list is known from here on
    assert list(lists(redis).values()) == [4]
    run([juicefs, "compact", theirs.dir], env=lab.env)
    wait_for("compaction", lambda: list(lists(redis).values()) == [1])
    wait_for("deletion", lambda: stored(lab) == 400_000)
    for i, p in enumerate(pieces[1:], 1):
        assert os.pread(fd, 100_000, i * 100_000) == p
    os.close(fd)


def test_holes_are_not_stored(lab, redis, juicefs):
    meta = redis.url(1)
    lab.format(meta, "vol", flags=["--trash-days", "0"])
    ours = lab.mount(meta, flags=CACHES)
    want = {}
    fd = os.open(ours.path("sparse"), os.O_RDWR | os.O_CREAT, 0o644)
    for i in range(12):
        at = (i % 6) * 10_000_000 + (i // 6) * 10
        want[at] = noise(10, i)
        os.pwrite(fd, want[at], at)
        os.fsync(fd)
    for _ in range(5):
        ours.drop_caches()
        with open(ours.path("sparse"), "rb") as f:
            for at, data in want.items():
                f.seek(at)
                assert f.read(10) == data
    os.close(fd)
    wait_for("compaction", lambda: max(lists(redis).values()) == 6)
    wait_for("deletion", lambda: stored(lab) == 120)
    assert ours.stop() == 0
    lab.started.remove(ours)
    fsck_clean(juicefs, lab, meta)
