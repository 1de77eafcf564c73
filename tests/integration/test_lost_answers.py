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
