# SPDX-License-Identifier: Apache-2.0
"""A mount that is killed in the middle of its work leaves a volume in which JuiceFS finds nothing to repair, and what was
acknowledged is there: names as soon as the call returned, bytes once they were fsynced."""
import contextlib
import os
import random
import subprocess
import sys
import time

import pytest
from lab import run, wait_for
from test_interop import fsck_clean
from volume import Volume

# what a writer does until its mount dies under it; each thing done is told on stdout, after it was done
WRITER = r"""
import os, sys
root, what = sys.argv[1:3]
def told(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())
try:
    for i in range(1000000):
        p = f"{root}/{what}{i}"
        if what == "create":
            open(p, "w").close()
            told(p)
        elif what == "rename":
            open(p + ".new", "w").close()
            os.rename(p + ".new", p)
            told(p)
        elif what == "unlink":
            open(p, "w").close()
            os.link(p, p + ".2")
            os.unlink(p)
            told(p + ".2")
        elif what == "mkdir":
            os.makedirs(p + "/a")
            os.rmdir(p + "/a")
            told(p)
        elif what == "write":
            fd = os.open(p, os.O_CREAT | os.O_WRONLY)
            for at in range(0, 300000, 60000):
                os.pwrite(fd, bytes([i % 251 + 1]) * 60000, at)
            os.fsync(fd)
            told(p, 300000, i % 251 + 1)
        elif what == "truncate":
            fd = os.open(p, os.O_CREAT | os.O_WRONLY)
            os.pwrite(fd, bytes([i % 251 + 1]) * 200000, 0)
            os.ftruncate(fd, 100000)
            os.ftruncate(fd, 150000)
            os.fsync(fd)
            told(p, 150000)
except OSError:
    pass
"""


def stale_sessions_end(c):
    """the dead client's locks and open files are freed by whoever lives, once its session has expired"""
    for sid, _ in c.zrange("allSessions", 0, -1, withscores=True):
        c.zadd("allSessions", {sid: time.time() - 1})


@pytest.mark.parametrize("trash", ["0", "1"], ids=["no-trash", "trash"])
def test_killed_in_the_middle(lab, redis, juicefs, trash):
    meta = redis.url(1)
    lab.format(meta, "vol", flags=["--block-size", "64K", "--trash-days", trash])
    rnd = random.Random(os.urandom(8))
    done = []
    for life in range(3):
        m = lab.mount(meta, "m1", flags=["--enable-xattr"])
        writers = []
        for what in ("create", "rename", "unlink", "mkdir", "write", "truncate"):
            folder = m.path(f"{what}-{life}")
            os.mkdir(folder)
            writers.append(subprocess.Popen([sys.executable, "-c", WRITER, folder, what], stdout=subprocess.PIPE, text=True))
        # an open file without a name, which the dead cannot free
        fd = os.open(m.path("nameless"), os.O_CREAT | os.O_RDWR)
        os.write(fd, b"x" * 5000)
        os.fsync(fd)
        os.unlink(m.path("nameless"))
        time.sleep(0.5 + rnd.random())
        m.kill()
        lab.started.remove(m)
        for w in writers:
            out, _ = w.communicate(timeout=30)
            done += [line.split() for line in out.splitlines() if line]
            assert out, "nothing was done before the kill"
        with contextlib.suppress(OSError):
            os.close(fd)
    c = redis.client(1)
    m = lab.mount(meta, "m1", flags=["--enable-xattr"])
    j = lab.juice_mount(juicefs, meta)
    for path, *more in done:
        st = os.stat(path)
        if more:
            assert st.st_size == int(more[0]), path
            with open(path.replace(m.dir, j.dir), "rb") as f:
                data = f.read()
            if len(more) > 1:
                assert data == bytes([int(more[1])]) * 300000, path
            else:
                assert data[:100000].count(0) == 0 and data[100000:] == bytes(50000), path
    j.stop()
    lab.started.remove(j)
    m.stop()
    lab.started.remove(m)
    stale_sessions_end(c)
    m = lab.mount(meta, "m1", flags=["--heartbeat", "1"])
    wait_for("end of the dead sessions", lambda: c.zcard("allSessions") == 1 and c.hlen("sessionInfos") == 1, 30)
    wait_for("end of deletions", lambda: not c.zcard("delfiles") and not c.keys("session[0-9]*"), 30)
    m.stop()
    lab.started.remove(m)
    # the dead had not yet told what they changed in directories (≤ 1 s, as JuiceFS): that is repaired, nothing else
    found = [f for f in Volume(c).faults(dir_stats=False)]
    assert not found, "\n".join(found[:20])
    run([juicefs, "fsck", meta, "--path", "/", "--repair", "--recursive", "--sync-dir-stat"], env=lab.env)
    # and objects that were stored for writes that never were acknowledged: gc finds them as JuiceFS's own
    run([juicefs, "gc", meta, "--delete"], env=dict(lab.env, JFS_GC_SKIPPEDTIME="0"))
    fsck_clean(juicefs, lab, meta)
