# SPDX-License-Identifier: Apache-2.0
"""Random sequences of operations on a Stoke mount, on a JuiceFS mount of another volume and on ext4: results, errors, attributes
and contents are the same; afterwards the two volumes' databases are too, but for inode and slice numbers and times.

The seed is printed: SEED= plays another sequence (random: any), OPS= sets its length (of all tests here together)."""
import os
import time

import diff
import pytest
from lab import run, seed, wait_for
from volume import Volume, differences

OPS = int(os.environ.get("OPS") or 20_000)
SEED = seed()
FLAGS = ["--enable-xattr", "--enable-ioctl", "--skip-dir-mtime", "0"]


@pytest.fixture
def ext4(lab, tmp_path):
    return lab.add(diff.Ext4(str(tmp_path)))


def format_like_juicefs(lab, juicefs, meta, name, *flags):
    """both volumes are made by the same hand"""
    bucket = f"{lab.folder}/bucket-{name}"
    os.makedirs(bucket)
    run([juicefs, "format", meta, name, "--storage", "file", "--bucket", bucket, "--block-size", "64K", "--enable-acl", *flags],
        env=lab.env)
    return meta


def worker(lab, name, root):
    folder = f"{root}/w"
    os.mkdir(folder)
    os.chmod(folder, 0o777)
    w = diff.Worker(name, folder)
    lab.add(w)
    return w


def nothing(found):
    assert not found, "\n".join(found[:20])


def finish(lab, redis, *dbs):
    """everything is closed and unmounted, what is deleted in the background has gone"""
    for thing in [t for t in lab.started if isinstance(t, diff.Worker)]:
        thing.stop()
        lab.started.remove(thing)
    for db in dbs:
        c = redis.client(db)
        wait_for("end of deletions", lambda c=c: not c.zcard("delfiles"), 60)
    for thing in [t for t in lab.started if hasattr(t, "exe") or hasattr(t, "http")]:
        thing.stop()
        lab.started.remove(thing)


@pytest.mark.parametrize("trash", [0, 1], ids=["no-trash", "trash"])
def test_like_ext4_and_like_juicefs(lab, redis, juicefs, ext4, trash):
    ours = format_like_juicefs(lab, juicefs, redis.url(1), "ours", "--trash-days", str(trash))
    theirs = format_like_juicefs(lab, juicefs, redis.url(2), "theirs", "--trash-days", str(trash))
    m = lab.mount(ours, "m1", flags=FLAGS)
    # objects stay: it deletes those of a compacted chunk while it still reads them, and reports EIO
    j = lab.juice_mount(juicefs, theirs, "j1", flags=["--enable-ioctl", "--skip-dir-mtime", "0", "--max-deletes", "0"])
    seed, ops = SEED + trash, OPS // 4
    print(f"SEED={SEED} OPS={OPS}")
    left_out = diff.LEFT_OUT | (diff.LEFT_OUT_WITH_TRASH if trash else {})
    thinker = diff.Thinker(seed, diff.ALL - set(left_out), watch=ext4.fine_times())
    e, s, f = (worker(lab, name, root) for name, root in (("ext4", ext4.dir), ("stoke", m.dir), ("juicefs", j.dir)))
    t0 = time.time()
    kinds = diff.play(e, [(s, False), (f, True)], thinker, ops, trash=bool(trash))
    print(f"{ops} operations of {len({k for k, _ in kinds})} kinds in {time.time() - t0:.0f} s:",
          {w.name: round(w.spent, 1) for w in (e, s, f)})
    finish(lab, redis, 1)
    a, b = Volume(redis.client(2)), Volume(redis.client(1))
    nothing(b.faults())
    nothing(differences(a, b))
    for argv in (["fsck", ours], ["fsck", ours, "--path", "/", "-r", "--sync-dir-stat"]):
        r = run([juicefs, *argv], env=lab.env)
        assert "should be" not in r.stdout, r.stdout[-3000:]


@pytest.mark.parametrize("trash", [0, 1], ids=["no-trash", "trash"])
def test_like_ext4_where_juicefs_is_not(lab, redis, juicefs, ext4, trash):
    """with those operations, too, that JuiceFS does in another way (diff.LEFT_OUT)"""
    meta = format_like_juicefs(lab, juicefs, redis.url(1), "ours", "--trash-days", str(trash))
    m = lab.mount(meta, "m1", flags=FLAGS)
    print(f"SEED={SEED} OPS={OPS}")
    e, s = (worker(lab, name, root) for name, root in (("ext4", ext4.dir), ("stoke", m.dir)))
    diff.play(e, [(s, False)], diff.Thinker(SEED + 2 + trash, diff.ALL, watch=ext4.fine_times()), OPS // 4, trash=bool(trash))
    finish(lab, redis, 1)
    nothing(Volume(redis.client(1)).faults())
    run([juicefs, "fsck", meta], env=lab.env)
