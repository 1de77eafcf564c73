# SPDX-License-Identifier: Apache-2.0
"""F13: the answer of a changing script is lost and the operation retried: it is done once, and the first result comes back."""
import os

import diff
from lab import seed
from test_differential import FLAGS, ext4, finish, format_like_juicefs, nothing, worker  # noqa: F401
from volume import Volume

SEED = seed()


def test_f13_every_operation_is_done_once(lab, redis, juicefs, ext4):  # noqa: F811
    format_like_juicefs(lab, juicefs, redis.url(1), "ours", "--trash-days", "0")
    lossy = lab.lossy_redis(redis, 0.04, SEED)
    m = lab.mount(lossy.url(1), "m1", flags=FLAGS)
    print(f"SEED={SEED}")
    e, s = (worker(lab, name, root) for name, root in (("ext4", ext4.dir), ("stoke", m.dir)))
    diff.play(e, [(s, False)], diff.Thinker(SEED, diff.ALL, watch=ext4.fine_times()), int(os.environ.get("OPS") or 3000))
    lossy.chance = 0
    finish(lab, redis, 1)
    assert lossy.lost_after > 50 and lossy.lost_before > 20, (lossy.lost_after, lossy.lost_before)
    nothing(Volume(redis.client(1)).faults())


def test_f13_commands_do_everything_once(lab, redis, juicefs):
    """clone, compact, rmr, restore, quota set and gc, asked of a mount or on their own, lose answers all the time"""
    format_like_juicefs(lab, juicefs, redis.url(1), "ours", "--trash-days", "1")
    print(f"SEED={SEED}")
    lossy = lab.lossy_redis(redis, 0, SEED)
    m = lab.mount(lossy.url(1), "m1", flags=FLAGS)
    meta = lossy.url(1)
    for d in range(8):
        os.makedirs(m.path(f"a/d{d}/e"))
        for i in range(6):
            with open(m.path(f"a/d{d}/e/f{i}"), "wb") as f:
                for _ in range(3):
                    f.write(b"%d" % i * 1000)
                    f.flush()
                    os.fsync(f.fileno())
        os.link(m.path(f"a/d{d}/e/f0"), m.path(f"a/d{d}/again"))
    want = sorted(os.path.relpath(os.path.join(p, n), m.path("a")) for p, ds, fs in os.walk(m.path("a")) for n in ds + fs)

    def whole(top):
        assert sorted(os.path.relpath(os.path.join(p, n), m.path(top)) for p, ds, fs in os.walk(m.path(top)) for n in ds + fs) == want, top
        for d in range(8):
            for i in range(6):
                with open(m.path(f"{top}/d{d}/e/f{i}"), "rb") as f:
                    assert f.read() == b"%d" % i * 1000 * 3, (top, d, i)

    lossy.chance = 0.3  # clones of hard links are files of their own
    assert f"{len(want) + 1} entries" in lab.stoke("clone", m.path("a"), m.path("b")).stdout
    assert " 6 chunks" in lab.stoke("compact", m.path("b/d0/e")).stdout and " 50 chunks" in lab.stoke("compact", m.path("b")).stdout
    lab.stoke("quota", "set", meta, "--path", "/b", "--inodes", "1000", "--capacity", "1")
    assert {redis.client(1).llen(k) for k in redis.client(1).scan_iter("c*_0")} == {1, 3}
    lab.stoke("rmr", m.path("a"))
    assert not os.path.exists(m.path("a"))
    whole("b")
    hour, = os.listdir(m.path(".trash"))
    lab.stoke("restore", meta, hour, "--put-back")
    whole("a")
    lab.stoke("rmr", "--skip-trash", m.path("a"))
    db = redis.client(1)
    for key in list(db.scan_iter("c*_0")):  # written twice: one reference too few is counted for each
        db.rpush(key, db.lindex(key, -1))
    lab.stoke("gc", meta, "--delete", env={"JFS_GC_SKIPPEDTIME": "0"})
    lab.stoke("gc", meta, "--delete", "--compact", env={"JFS_GC_SKIPPEDTIME": "0"})
    whole("b")
    lossy.chance = 0
    assert "is consistent" in lab.stoke("quota", "check", redis.url(1), "--path", "/b").stdout
    assert lossy.lost_after > 50 and lossy.lost_before > 20, (lossy.lost_after, lossy.lost_before)
    finish(lab, redis, 1)
    nothing(Volume(redis.client(1)).faults())
