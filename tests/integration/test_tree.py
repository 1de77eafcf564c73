# SPDX-License-Identifier: Apache-2.0
"""Cloning and removing trees with the real JuiceFS beside: what one makes the other reads and removes,
and JuiceFS finds nothing to repair."""
import os
import time

from lab import noise, run, wait_for
from test_interop import describe, fsck_clean, make_everything

CACHES = ["--enable-xattr", "--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0"]


def plain(tree):
    """without inode numbers and link counts"""
    return {k: [v[1], *v[5:]] for k, v in tree.items()}


def test_clone_and_remove_both_ways(lab, redis, juicefs):
    meta = redis.url(1)
    lab.format(meta, "vol")
    ours, theirs = lab.mount(meta, flags=CACHES), lab.juice_mount(juicefs, meta)
    for m, name in ((ours, "a"), (theirs, "b")):
        os.mkdir(m.path(name))
        make_everything(m.path(name))
        os.truncate(m.path(name, "dir", "sparse"), 1 << 20)
        for i in range(60):
            os.symlink(f"t{i}", m.path(name, f"link{i}"))
    for src, to in ("a", "a-m1"), ("a", "a-j1"), ("b", "b-ours"):
        lab.stoke("clone", "-p", ours.path(src), ours.path(to))
    run([juicefs, "clone", "-p", theirs.path("b"), theirs.path("b-j1")], env=lab.env)
    for m in (ours, theirs):
        want = {"a": plain(describe(m.path("a"))), "b": plain(describe(m.path("b")))}
        for name in os.listdir(m.dir):
            if "-" in name:
                expect = dict(want[name[0]])
                if name == "b-j1":
                    expect.pop("dir/fifo", None)  # JuiceFS's own clone loses it
                assert plain(describe(m.path(name))) == expect, name
    # the copies are their own
    with open(ours.path("a-m1", "dir", "f1"), "r+b") as f:
        f.write(b"changed")
    with open(theirs.path("a", "dir", "f1"), "rb") as f:
        assert f.read() == noise(1, 1)
    time.sleep(1.5)
    run([juicefs, "rmr", theirs.path("a-m1")], env=lab.env)
    lab.stoke("rmr", ours.path("a"), ours.path("b"))
    lab.stoke("rmr", "--skip-trash", ours.path("a-j1"))
    # JuiceFS's own clone has statistics of before the last second, and of what it lost
    lab.stoke("rmr", ours.path("b-j1"))
    assert sorted(n for n in os.listdir(ours.dir) if not n.startswith(".")) == sorted(
        n for n in os.listdir(theirs.dir) if not n.startswith(".")) == ["b-ours"]
    wait_for("deletion", lambda: not redis.client(1).exists("delfiles"))
    time.sleep(1.5)
    theirs.stop()
    lab.started.remove(theirs)
    assert ours.stop() == 0
    lab.started.remove(ours)
    assert not redis.client(1).exists("detachedNodes")
    fsck_clean(juicefs, lab, meta)
    theirs = lab.juice_mount(juicefs, meta, "j2")
    assert plain(describe(theirs.path("b-ours"))) == want["b"]
