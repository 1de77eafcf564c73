# SPDX-License-Identifier: Apache-2.0
"""Quotas and statistics of directories: limits, usage and what statfs shows, with the real JuiceFS on the same volume."""
import contextlib
import errno
import json
import os
import random
import threading
import time

import pytest
from conftest import GOLDEN
from lab import INTERNAL, run, wait_for
from lab import seed as first_seed
from test_golden import load
from test_interop import fsck_clean

CATCH_UP = 4.5  # JuiceFS tells usage every 3 s, statistics every second


def answer(fn):
    """errno's name of what fn does, or OK"""
    try:
        fn()
    except OSError as e:
        return errno.errorcode[e.errno]
    return "OK"


def quota(juicefs, lab, meta, *argv, ok=True):
    r = run([juicefs, "quota", argv[0], meta, *argv[1:]], check=False, env=lab.env)
    assert (r.returncode == 0) == ok, r.stdout[-2000:]
    return r.stdout


def write(path, n):
    with open(path, "wb") as f:
        f.write(b"x" * n)


def test_limits_as_juicefs_answers(lab, redis, juicefs, file_volume):
    """the same in two directories, one through each mount: the same answers, and the same usage"""
    j0 = lab.juice_mount(juicefs, file_volume, "j0")
    for name in ("s", "j"):
        os.makedirs(j0.path(name, "full"))
        os.makedirs(j0.path(name, "limited/sub"))
        os.makedirs(j0.path(name, "free"))
        for k in range(3):
            write(j0.path(name, "full", f"f{k}"), 10)
    time.sleep(2)  # JuiceFS takes usage from statistics, which it tells each second
    for name in ("s", "j"):
        quota(juicefs, lab, file_volume, "set", "--path", f"/{name}/full", "--inodes", "3")
        quota(juicefs, lab, file_volume, "set", "--path", f"/{name}/limited", "--capacity", "1", "--inodes", "50")
        quota(juicefs, lab, file_volume, "set", "--path", f"/{name}/limited/sub", "--inodes", "7")
    m, j = lab.mount(file_volume, "m1"), lab.juice_mount(juicefs, file_volume, "j1")
    out = {}
    for name, mount in (("s", m), ("j", j)):
        def p(*parts, mount=mount, name=name):
            return mount.path(name, *parts)
        seen = out[name] = []

        def do(what, fn, seen=seen):
            seen.append((what, answer(fn)))
        write(p("free/file"), 5000)
        do("create", lambda p=p: write(p("full/more"), 1))
        do("mkdir", lambda p=p: os.mkdir(p("full/dir")))
        do("symlink", lambda p=p: os.symlink("x", p("full/link")))
        do("rename into it", lambda p=p: os.rename(p("free/file"), p("full/file")))
        do("link into it", lambda p=p: os.link(p("free/file"), p("full/link")))
        do("over an old one", lambda p=p: os.rename(p("free/file"), p("full/f0")))
        do("within it", lambda p=p: os.rename(p("full/f1"), p("full/f9")))
        do("unlink", lambda p=p: os.unlink(p("full/f9")))
        do("create again", lambda p=p: write(p("full/again"), 1))
        do("longer than a quota", lambda p=p: (write(p("limited/big"), 1), os.truncate(p("limited/big"), 3 << 29)))
        do("as long as it may be", lambda p=p: os.truncate(p("limited/big"), (1 << 30) - 20480))
        do("by a page", lambda p=p: os.truncate(p("limited/big"), (1 << 30) - 4096))
        do("shorter", lambda p=p: os.truncate(p("limited/big"), 5000))
        for k in range(8):
            do(f"sub {k}", lambda p=p, k=k: write(p("limited/sub", f"f{k}"), 100))
        do("out of it", lambda p=p: os.rename(p("limited/sub"), p("free/sub")))
        do("a link", lambda p=p: os.link(p("free/sub/f1"), p("limited/l1")))
        do("longer, both", lambda p=p: os.truncate(p("free/sub/f1"), 40000))
        do("back", lambda p=p: os.rename(p("free/sub"), p("limited/sub")))
        do("unlink", lambda p=p: os.unlink(p("limited/sub/f3")))
    assert out["s"] == out["j"]
    assert [a for w, a in out["s"] if w in ("create", "rename into it", "link into it", "longer than a quota", "sub 7")] == ["EDQUOT"] * 5
    time.sleep(CATCH_UP)
    db, seen = redis.client(1), {}
    for name in ("s", "j"):
        inodes = [os.stat(m.path(name, d)).st_ino for d in ("full", "limited", "limited/sub")]
        seen[name] = [(int(db.hget("dirQuotaUsedSpace", str(i))), int(db.hget("dirQuotaUsedInodes", str(i)))) for i in inodes]
    # JuiceFS 1.4.2 loses what was done to a file with two links in different quotas: its own sums are not looked at
    for d in ("full", "limited", "limited/sub"):
        quota(juicefs, lab, file_volume, "check", "--path", f"/s/{d}")
    assert [n for _, n in seen["s"]] == [n for _, n in seen["j"]]
    # a mount that is new sees what the others did
    late = lab.mount(file_volume, "m2", ["--read-only"])
    lj = lab.juice_mount(juicefs, file_volume, "j2")
    for name in ("s", "j"):
        for d in ("", "full", "limited", "limited/sub", "free"):
            a, b = os.statvfs(late.path(name, d)), os.statvfs(lj.path(name, d))
            assert (a.f_blocks, a.f_bfree, a.f_files, a.f_ffree) == (b.f_blocks, b.f_bfree, b.f_files, b.f_ffree), (name, d)


def test_usage_is_right_a_moment_after_mkdir(lab, redis, juicefs, file_volume):
    """JuiceFS would take 0 from the statistics that are not told yet"""
    m = lab.mount(file_volume, "m1")
    os.makedirs(m.path("d/sub"))
    write(m.path("d/sub/f"), 10000)
    m2 = lab.mount(file_volume, "m2", ["--heartbeat", "1"])
    r = lab.stoke("quota", "set", file_volume, "--path", "/d", "--capacity", "1", "--inodes", "10", check=False)
    if r.returncode and "quota" in r.stderr and "unknown" in r.stderr.lower():
        pytest.skip("no such command")
    assert r.returncode == 0, r.stderr
    ino = os.stat(m.path("d")).st_ino
    db = redis.client(1)
    assert (int(db.hget("dirQuotaUsedSpace", ino)), int(db.hget("dirQuotaUsedInodes", ino))) == (16384, 2)
    wait_for("the other mount to hear of it", lambda: os.statvfs(m2.path("d")).f_ffree == 8)
    for k in range(8):
        write(m2.path("d", f"n{k}"), 1)
    assert answer(lambda: write(m2.path("d/one-more"), 1)) == "EDQUOT"
    time.sleep(CATCH_UP)
    quota(juicefs, lab, file_volume, "check", "--path", "/d")


def test_what_a_mount_did_not_tell_yet_counts_once(lab, redis, juicefs, file_volume):
    """the first limit of a user, a group and a directory, and a check, right behind work of a mount"""
    run([juicefs, "config", file_volume, "--user-group-quota", "--trash-days", "0", "--yes"], env=lab.env)
    m = lab.mount(file_volume, "m1")
    os.mkdir(m.path("d"))
    for who in (["--uid", "1000"], ["--gid", "2000"], ["--path", "/d"]):
        for k in range(3):
            write(m.path("d", f"{who[0]}{k}"), 5000)
            os.chown(m.path("d", f"{who[0]}{k}"), 1000, 2000)
        lab.stoke("quota", "set", file_volume, *who, "--inodes", "1000")
        write(m.path("d", f"{who[0]}x"), 1)
        os.chown(m.path("d", f"{who[0]}x"), 1000, 2000)
        r = lab.stoke("quota", "check", file_volume, *who)
        assert "is consistent" in r.stdout, r.stdout
    db, n = redis.client(1), 12
    told = [(int(db.hget(f"{k}QuotaUsedSpace", i)), int(db.hget(f"{k}QuotaUsedInodes", i)))
            for k, i in (("user", 1000), ("group", 2000), ("dir", os.stat(m.path("d")).st_ino))]
    assert told == [(9 * 8192 + 3 * 4096, n)] * 3


OWNERS = ((0, 0), (1000, 1000), (1001, 2000))


def mixed_work(rnd, mounts, rounds, juice=None):
    """Anything but moves of directories, in the same directories, through any mount. With JuiceFS nothing that it counts wrong itself:
    files with several links, and what is written to a file after its last name is gone (it counts in the directory where the name was)."""
    tops = ("q1", "q1/q2", "q3", "q1/q2/x", "q3/y")
    for _ in range(rounds):
        m = rnd.choice(mounts)
        a, b = m.path(rnd.choice(tops)), m.path(rnd.choice(tops))
        one, two = f"{a}/n{rnd.randrange(8)}", f"{b}/n{rnd.randrange(8)}"
        with contextlib.suppress(OSError):
            what = rnd.randrange(8 if juice else 9)
            if what < 2:
                write(one, rnd.randrange(30000))
            elif what == 2:
                os.mkdir(f"{a}/d{rnd.randrange(3)}")
                write(f"{a}/d{rnd.randrange(3)}/in", 5000)
            elif what == 3:
                os.unlink(one)
            elif what == 4:
                os.rename(one, two)
            elif what == 5:
                os.truncate(one, rnd.randrange(50000))
            elif what == 6:
                uid, gid = rnd.choice(OWNERS)
                os.chown(one, uid, gid)
            elif what == 7:
                with open(one, "r+b") as f:
                    os.unlink(one)
                    if m is not juice:
                        f.write(b"y" * 9000)
            else:
                os.link(one, two)


def counted(top):
    """(bytes in pages, inodes) of each owner's, and of each directory's below it, as a walk finds them"""
    dirs, users, groups, seen = {}, {}, {}, set()
    for folder, names, files in os.walk(top, topdown=False):
        space = inodes = 0
        for name in names + files:
            if folder == top and name in INTERNAL:
                continue
            st = os.lstat(os.path.join(folder, name))
            pages = 4096 * max(1, -(-st.st_size // 4096)) if name in files and not os.path.islink(os.path.join(folder, name)) else 4096
            below = dirs.get(os.path.join(folder, name), (0, 0))
            space, inodes = space + pages + below[0], inodes + 1 + below[1]
            if st.st_ino not in seen:
                seen.add(st.st_ino)
                for table, i in ((users, st.st_uid), (groups, st.st_gid)):
                    s, n = table.get(i, (0, 0))
                    table[i] = s + pages, n + 1
        dirs[folder] = space, inodes
    return dirs, users, groups


@pytest.mark.parametrize("trash", [0, 1])
def test_mixed_work_of_both_clients(lab, redis, juicefs, file_volume, trash):
    seed = first_seed()
    print("SEED", seed)
    run([juicefs, "config", file_volume, "--user-group-quota", "--trash-days", str(trash), "--yes"], env=lab.env)
    m0 = lab.mount(file_volume, "m0")
    for d in ("q1/q2/x", "q3/y"):
        os.makedirs(m0.path(d))
    time.sleep(1.5)
    for d, n in (("q1", "60"), ("q1/q2", "35"), ("q3", "1000")):
        quota(juicefs, lab, file_volume, "set", "--path", f"/{d}", "--inodes", n)
    quota(juicefs, lab, file_volume, "set", "--uid", "1000", "--inodes", "30")
    m0.stop()
    ours = [lab.mount(file_volume, "m1"), lab.mount(file_volume, "m2")]
    mixed_work(random.Random(seed), ours, 400)
    # a directory goes to another quota, and both mounts work on in it; what is above a directory they know for a second
    os.makedirs(ours[0].path("q1/moves/sub"))
    for k, there in enumerate(("q3", "q1/q2", "q1")):
        for n in range(3):
            write(ours[n % 2].path("q1" if not k else ("q3", "q1/q2")[k - 1], "moves/sub", f"f{k}{n}"), 5000)
        time.sleep(1.1)
        os.rename(ours[k % 2].path("q1" if not k else ("q3", "q1/q2")[k - 1], "moves"), ours[k % 2].path(there, "moves"))
        time.sleep(1.1)
    check_usage(lab, redis, juicefs, file_volume, ours[0], trash)
    # together with JuiceFS, without files with several links
    for d in ("q1", "q1/q2", "q1/q2/x", "q3", "q3/y"):
        for name in os.listdir(ours[0].path(d)):
            if not os.path.isdir(ours[0].path(d, name)):
                os.unlink(ours[0].path(d, name))
    juice = lab.juice_mount(juicefs, file_volume)
    mixed_work(random.Random(seed + 1), [*ours, juice], 400, juice)
    check_usage(lab, redis, juicefs, file_volume, ours[0], trash)
    fsck_clean(juicefs, lab, file_volume)


def own_work(rnd, m, rounds, moves):
    """what collides with others that do the same in the same few names; moves: of directories"""
    tops = ("q1", "q1/q2", "q3", "q1/q2/x", "q3/y")
    for _ in range(rounds):
        a, b = m.path(rnd.choice(tops)), m.path(rnd.choice(tops))
        one, two, d = f"{a}/n{rnd.randrange(3)}", f"{b}/n{rnd.randrange(3)}", f"{a}/d{rnd.randrange(3)}"
        with contextlib.suppress(OSError):
            what = rnd.randrange(12 if moves else 8)
            if what < 2:
                write(one, rnd.randrange(30000))
            elif what == 2:
                os.unlink(one)
            elif what == 3:
                os.rename(one, two)
            elif what == 4:
                os.truncate(one, rnd.randrange(50000))
            elif what == 5:
                os.chown(one, *rnd.choice(OWNERS))
            elif what < 8:
                os.link(one, two)
            elif what == 8:
                os.makedirs(f"{d}/s", exist_ok=True)
                write(f"{d}/in", rnd.randrange(20000))
                write(f"{d}/s/in", rnd.randrange(20000))
            elif what == 9:
                for name in ("s/in", "in"):
                    os.unlink(f"{d}/{name}")
                os.rmdir(f"{d}/s")
                os.rmdir(d)
            else:
                os.rename(d, f"{b}/d{rnd.randrange(3)}")


def own_statistics(redis, m):
    """of each directory, as they are told and as they are"""
    db, told, real = redis.client(1), {}, {}
    for folder, names, files in os.walk(m.dir):
        names[:] = [n for n in names if n not in INTERNAL]
        st = [os.lstat(os.path.join(folder, n)) for n in files if folder != m.dir or n not in INTERNAL]
        ino, name = os.stat(folder).st_ino, folder[len(m.dir):]
        told[name] = tuple(int(db.hget(k, ino)) for k in ("dirDataLength", "dirUsedSpace", "dirUsedInodes"))
        pages = len(names) + sum(max(1, -(-s.st_size // 4096)) for s in st)
        real[name] = (sum(s.st_size for s in st), 4096 * pages, len(names) + len(st))
    return told, real


def test_both_mounts_at_once(lab, redis, juicefs, file_volume):
    """the same files, links and directories, at the same time: what a mount tells is what its scripts did"""
    seed = first_seed()
    print("SEED", seed)
    run([juicefs, "config", file_volume, "--user-group-quota", "--trash-days", "0", "--yes"], env=lab.env)
    ours = [lab.mount(file_volume, "m1"), lab.mount(file_volume, "m2")]
    for d in ("q1/q2/x", "q3/y"):
        os.makedirs(ours[0].path(d))
    for d in ("q1", "q1/q2", "q3"):
        lab.stoke("quota", "set", file_volume, "--path", f"/{d}", "--inodes", "1000")
    for moves in (False, True):
        work = [threading.Thread(target=own_work, args=(random.Random(seed * 10 + i), ours[i % 2], 500, moves)) for i in range(4)]
        for t in work:
            t.start()
        for t in work:
            t.join()
        time.sleep(1.5)  # both tell it each second
        told, real = own_statistics(redis, ours[0])
        assert told == real
        check_usage(lab, redis, juicefs, file_volume, ours[0], 0, 0)


def check_usage(lab, redis, juicefs, file_volume, m, trash, wait=CATCH_UP):
    db = redis.client(1)
    time.sleep(wait)
    dirs, users, groups = counted(m.dir)
    for d in ("q1", "q1/q2", "q3"):
        ino = os.stat(m.path(d)).st_ino
        assert (int(db.hget("dirQuotaUsedSpace", ino)), int(db.hget("dirQuotaUsedInodes", ino))) == dirs[m.path(d)], d
        quota(juicefs, lab, file_volume, "check", "--path", f"/{d}")
    if not trash:  # with it, JuiceFS's own check finds its own sums wrong: it counts the hours' directories, which are nobody's
        quota(juicefs, lab, file_volume, "check", "--uid", "1000")
        for kind, table in (("user", users), ("group", groups)):
            for i in {0, 1000, 1001, 2000}:
                told = tuple(int(db.hget(f"{kind}QuotaUsed{w}", i) or 0) for w in ("Space", "Inodes"))
                assert told == table.get(i, (0, 0)), (kind, i)


def test_golden_numbers(lab, redis):
    """what JuiceFS showed for the volume golden/quotas"""
    meta = load(lab, redis, "quotas")
    with open(f"{GOLDEN}/quotas/quotas.json") as f:
        want = json.load(f)["statfs [dir, blocks, bfree, files, ffree]"]
    m = lab.mount(meta, "m1", ["--read-only"])
    for d, blocks, bfree, files, ffree in want:
        s = os.statvfs(m.path(d))
        assert (s.f_blocks, s.f_bfree, s.f_files, s.f_ffree) == (blocks, bfree, files, ffree), d
