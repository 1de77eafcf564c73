# SPDX-License-Identifier: Apache-2.0
"""The group as a whole: who keeps how much, and a registry that lost its list."""
import json

from lab import noise, wait_for, write_file

KIB = 1 << 10


def members(lab, meta):
    groups = json.loads(lab.stoke("status", meta).stdout)["Groups"]
    return [m for g in groups for m in g["Members"] if m["State"] == "active"]


def test_G07_cached_bytes_follow_weights(lab, redis):
    """each block once, at its owner; unit test_cluster.c has the same with so many keys that chance is no part of it"""
    meta, weights = redis.url(1), {1: 100, 2: 200, 3: 400}
    lab.format(meta, "vol", flags=["--block-size", "64K"])
    daemons = {n: lab.daemon(meta, n, flags=["--group-weight", str(w), "--join-now"]) for n, w in weights.items()}
    wait_for("members", lambda: len(members(lab, meta)) == 3)
    m = lab.group_mount(meta)
    size = 192 << 20
    write_file(m.path("f"), noise(size, 1))
    lab.stoke("warmup", m.path("f"))
    held = {n: sum(int(f.rsplit("_", 1)[1]) for f in d.block_files()) for n, d in daemons.items()}
    assert sum(held.values()) == size
    for n, w in weights.items():  # 3072 blocks: one in seven is 439 ± 19
        assert 0.8 < held[n] / (size * w / 700) < 1.2, held


def test_G11_an_empty_member_list_is_not_believed(lab, redis, file_volume):
    """Redis failed over to a replica that has the volume, and not the group"""
    daemons = [lab.daemon(file_volume, n, flags=["--join-now"]) for n in (1, 2)]
    wait_for("members", lambda: len(members(lab, file_volume)) == 2)
    wait_for("both to know it", lambda: all("2 member(s)" in d.text() for d in daemons))
    m = lab.group_mount(file_volume)
    for i in range(8):
        write_file(m.path(f"f{i}"), noise(1 << 20, i + 1))
    lab.stoke("warmup", *[m.path(f"f{i}") for i in range(8)])
    said = [d.text().count("member(s), ring version") for d in daemons]
    db = redis.client(1)
    db.delete(*[k for k in db.keys("_group*")])
    wait_for("both again", lambda: len(members(lab, file_volume)) == 2)
    m.drop_caches()
    for i in range(8):
        with open(m.path(f"f{i}"), "rb") as f:
            assert f.read() == noise(1 << 20, i + 1)
    for d, before in zip(daemons, said):
        more = d.text()[0:].split("member(s), ring version")
        assert len(more) - 1 - before <= 2, d.text()  # as it joined again; never a ring of nobody, nor one a second
        assert "0 member(s)" not in d.text() and "1 member(s)" not in d.text().split("2 member(s)", 1)[1]
