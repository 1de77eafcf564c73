# SPDX-License-Identifier: Apache-2.0
"""Members come, go and change, and the object store hears nothing of it."""
import json
import signal
import time

import pytest
from lab import Proc, free_port, noise, wait_for, write_file

MIB = BLOCK = 1 << 20


@pytest.fixture
def volume(lab, redis):
    """META of a volume with small blocks, so that there are many of them"""
    meta = redis.url(1)
    lab.format(meta, "vol", flags=["--block-size", "1M"])
    return meta


def total(daemons, name, *labels):
    return sum(v for d in daemons for k, v in d.metrics().items() if k.startswith(name) and all(x in k for x in labels))


def object_gets(*procs):
    """requests for bytes of blocks at the object store, well or not"""
    return total(procs, "stoke_object_requests_total", 'op="get"')


def members(lab, meta, group="train"):
    for g in json.loads(lab.stoke("status", meta).stdout)["Groups"]:
        if g["Name"] == group:
            return {m["Id"]: m for m in g["Members"]}
    return {}


def states(lab, meta, group="train"):
    return sorted(m["State"] for m in members(lab, meta, group).values())


def all_active(lab, meta, n, group="train", timeout=30):
    wait_for(f"{n} active members", lambda: states(lab, meta, group) == ["active"] * n, timeout)


def read(m, *names):
    """what a mount reads, from no cache of its own"""
    m.drop_caches()
    for name in names:
        with open(m.path(name), "rb") as f:
            while f.read(4 * MIB):
                pass


def files(mount, n, size=16 * MIB):
    names = [f"f{i}" for i in range(n)]
    for i, name in enumerate(names):
        write_file(mount.path(name), noise(size, i + 1))
    return names


def fresh_mount(lab, meta, name):
    """nothing in its memory"""
    return lab.group_mount(meta, name, ["--buffer-size", "64"])


def test_G05_a_member_joins_a_warm_group(lab, volume):
    ds, names, m = everything(lab, volume, 3)
    before = object_gets(*ds)
    d4 = lab.daemon(volume, 4)
    reads_nothing_from_s3(lab, volume, names, [*ds, d4])  # while it joins
    all_active(lab, volume, 4)
    assert 0 < len(d4.block_files()) <= 40 * (1 / 4 + 0.2)  # of 40 blocks; the 5 % are test_ring.c's
    reads_nothing_from_s3(lab, volume, names, [*ds, d4])
    assert object_gets(*ds, d4) == before
    # what it would be without all this
    d5 = lab.daemon(volume, 5, flags=["--join-now"])
    assert "joining" not in states(lab, volume)
    m5 = fresh_mount(lab, volume, "m5")
    read(m5, *names)
    assert object_gets(*ds, d4, d5, m5) > before


def everything(lab, meta, n, size=8 * MIB, files_of=5, **kw):
    """a warm group of n, its daemons, the names, a mount that wrote them"""
    ds = [lab.daemon(meta, i + 1, **kw) for i in range(n)]
    all_active(lab, meta, n)
    m = lab.group_mount(meta, "m0")
    names = files(m, files_of, size)
    lab.stoke("warmup", *(m.path(x) for x in names))
    return ds, names, m


def reads_nothing_from_s3(lab, meta, names, procs, how=1):
    """by mounts that hold nothing themselves"""
    before = object_gets(*procs)
    m = fresh_mount(lab, meta, f"r{time.monotonic_ns()}")
    read(m, *names)
    assert object_gets(*procs, m) == before, [(p, object_gets(p)) for p in procs]


def test_G06_a_member_is_drained_and_its_blocks_are_elsewhere_before_it_ends(lab, volume):
    (d1, d2, d3), names, m = everything(lab, volume, 3)
    ids = members(lab, volume)
    who = next(i for i, x in ids.items() if x["Port"] == d2.port)
    held = len(d2.block_files())
    before = object_gets(d1, d2, d3)
    r = lab.stoke("drain", volume, who[:12])
    assert "has left the group" in r.stderr and "blocks moved" in r.stderr, r.stderr
    assert who not in members(lab, volume)
    assert total([d2], "stoke_cached_moved_out_total") > 0 and held > 0
    d2.stop()
    reads_nothing_from_s3(lab, volume, names, [d1, d3])
    assert object_gets(d1, d3) <= before
    # nobody of that name, or too many
    assert "no member" in lab.stoke("drain", volume, who, check=False).stderr
    assert "more than one member" in lab.stoke("drain", volume, check=False).stderr
    # it comes back, with what it holds
    d2.again()
    all_active(lab, volume, 3)
    reads_nothing_from_s3(lab, volume, names, [d1, d2, d3])


def test_a_wish_is_taken_back_and_nothing_is_lost(lab, volume):
    ds, names, m = everything(lab, volume, 2, flags=["--rebalance-limit", "2M"])
    who = next(i for i, x in members(lab, volume).items() if x["Port"] == ds[1].port)
    drain = lab.add(Proc([f"{lab.bin}/stoke", "drain", volume, who], f"{lab.folder}/drain.log"))
    wait_for("draining", lambda: members(lab, volume)[who]["State"] == "draining" and
             members(lab, volume)[who].get("BlocksMoved"))
    reads_nothing_from_s3(lab, volume, names, ds)  # while it drains
    lab.stoke("drain", "--undo", volume, f"127.0.0.1:{ds[1].port}")
    assert drain.p.wait(20) == 1 and "took the wish back" in drain.text()
    all_active(lab, volume, 2, timeout=40)
    reads_nothing_from_s3(lab, volume, names, ds)


def test_G14_four_members_join_a_warm_group_at_once(lab, volume):
    ds, names, m = everything(lab, volume, 2)
    before = object_gets(*ds)
    ds += [lab.daemon(volume, n, wait=False, flags=["--rebalance-limit", "10M"]) for n in (3, 4, 5, 6)]
    for d in ds[2:]:
        d.ready()
    reads_nothing_from_s3(lab, volume, names, ds)
    all_active(lab, volume, 6)
    reads_nothing_from_s3(lab, volume, names, ds)
    assert object_gets(*ds) == before


def test_another_address_and_another_weight_lose_nothing(lab, volume):
    ds, names, m = everything(lab, volume, 3)
    ds[0].stop()
    argv = ds[0].start_argv
    argv[argv.index("--group-port") + 1] = "0"
    argv += ["--group-weight", "300"]
    ds[0].again()
    all_active(lab, volume, 3)
    wait_for("weight 300", lambda: sorted(x["Weight"] for x in members(lab, volume).values()) == [100, 100, 300])
    all_active(lab, volume, 3)
    reads_nothing_from_s3(lab, volume, names, ds)
    # killed, and back within its lapse with less: it hands on what it loses; its port is the same
    ports = {i: x["Port"] for i, x in members(lab, volume).items()}
    ds[0].kill()
    argv[argv.index("--group-weight") + 1] = "50"
    ds[0].again()
    wait_for("weight 50", lambda: sorted((x["Weight"], x["State"]) for x in members(lab, volume).values()) ==
             [(50, "active"), (100, "active"), (100, "active")])
    assert {i: x["Port"] for i, x in members(lab, volume).items()} == ports
    reads_nothing_from_s3(lab, volume, names, ds)


def test_who_dies_while_he_joins_drains_or_holds_leaves_nobody_waiting(lab, volume):
    slow = ["--rebalance-limit", "3M"]
    ds, names, m = everything(lab, volume, 3, flags=slow)
    ids = {x["Port"]: i for i, x in members(lab, volume).items()}
    joins = [lab.daemon(volume, n, flags=slow) for n in (4, 5)]
    drain = lab.add(Proc([f"{lab.bin}/stoke", "drain", volume, ids[ds[0].port]], f"{lab.folder}/drain.log"))
    wait_for("two join and one drains", lambda: states(lab, volume) == ["active"] * 2 + ["draining"] + ["joining"] * 2)
    ds[1].signal(signal.SIGSTOP)  # a holder
    joins[0].kill()
    ds[0].kill()  # who drains
    wait_for("the rest is at rest", lambda: states(lab, volume) == ["active"] * 2, 40)
    assert drain.p.wait(20) == 1 and "went away before it had moved everything" in drain.text()
    start = time.monotonic()
    read(fresh_mount(lab, volume, "m9"), *names)
    assert time.monotonic() - start < 20
    ds[1].signal(signal.SIGCONT)
    all_active(lab, volume, 3, timeout=40)


def test_roles_mix_and_groups_of_one_volume_do_not(lab, volume):
    """a member, a dedicated cache node, a consumer's daemon with a disk; another group beside them"""
    ds, names, m = everything(lab, volume, 2)  # d2 has no mount
    own = lab.group_mount(volume, "own", ["--buffer-size", "64"], socket=ds[0].socket)
    consumer = lab.daemon(volume, 3, flags=["--no-sharing"])
    near = lab.group_mount(volume, "near", ["--buffer-size", "64"], socket=consumer.socket)
    everybody = [*ds, consumer, own, near]
    before = object_gets(*everybody)
    read(own, *names)
    read(near, *names)
    blocks = 5 * 8 * MIB // BLOCK
    assert len(consumer.block_files()) == blocks
    assert object_gets(*everybody) == before
    assert len(members(lab, volume)) == 2
    served = total(ds, "stoke_cached_requests_total", 'op="GET"')
    read(near, *names)  # from its own disk alone
    assert total(ds, "stoke_cached_requests_total", 'op="GET"') == served
    other = lab.daemon(volume, 4, group="other")
    m2 = lab.group_mount(volume, "m2", ["--buffer-size", "64"], group="other")
    read(m2, names[0])
    assert object_gets(other, m2) == 8 * MIB // BLOCK
    assert total(ds, "stoke_cached_requests_total", 'op="GET"') == served
    assert len(members(lab, volume, "other")) == 1


def test_sub_groups_take_a_block_across_once(lab, volume):
    racks = {"a": [], "b": []}
    for n in range(4):
        racks["ab"[n // 2]].append(lab.daemon(volume, n + 1, flags=["--sub-group", "ab"[n // 2]]))
    ds = racks["a"] + racks["b"]
    all_active(lab, volume, 4)
    assert sorted(x["SubGroup"] for x in members(lab, volume).values()) == ["a", "a", "b", "b"]
    writer = lab.mount(volume, "writer")
    names = files(writer, 2, 16 * MIB)
    blocks = 2 * 16 * MIB // BLOCK
    ms = [lab.group_mount(volume, f"m{r}{i}", ["--buffer-size", "64", "--sub-group", r]) for r in "ab" for i in (1, 2)]
    read(ms[0], *names)
    assert object_gets(*ds, *ms) == blocks
    read(ms[2], *names)
    assert object_gets(*ds, *ms) == blocks
    rack = lambda r: total(racks[r], "stoke_cached_requests_total", 'op="GET"')
    a, b = rack("a"), rack("b")
    read(ms[3], *names)
    assert rack("a") == a and rack("b") >= b + blocks
    b = rack("b")
    read(ms[1], *names)
    assert rack("b") == b and object_gets(*ds, *ms) == blocks


def test_a_mount_whose_daemon_is_dead_follows_the_members(lab, volume):
    a = lab.daemon(volume, 1)
    all_active(lab, volume, 1)
    m = lab.group_mount(volume, socket=a.socket)
    heard = m.text().count("group=train members=")
    a.kill()
    b = lab.daemon(volume, 2, flags=["--join-now"])
    wait_for("word of who came", lambda: m.text().count("group=train members=") > heard, 20)
    name, = files(m, 1, 4 * BLOCK)
    read(m, name)
    assert total([b], "stoke_cached_requests_total", 'op="GET"') > 0
