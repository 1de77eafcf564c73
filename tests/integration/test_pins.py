# SPDX-License-Identifier: Apache-2.0
"""Pinned paths: they stay while more than the cache holds is read, over a daemon that is killed, until they are unpinned
or their date is over; what may be pinned has an end."""
import glob
import json
import os
import time

from lab import noise, wait_for, write_file

MIB = 1 << 20


def read(m, name):
    m.drop_caches()
    with open(m.path(name), "rb") as f:
        while f.read(MIB):
            pass


def cached(lab, m, name):
    r = lab.stoke("warmup", "--check", m.path(name), check=False)
    return r.stdout.split()[1], r.returncode


def pinned(d):
    return d.metrics()["stoke_cached_pinned_blocks"]


def d_pins(d):
    """whole records in the disk's file"""
    return sum(os.path.getsize(f) // 32 for c in d.cache for f in glob.glob(f"{c}/*/*/pins"))


def test_what_is_pinned_stays_until_its_date(lab, file_volume):
    d = lab.daemon(file_volume, 1, cache_mib=96)
    m = lab.group_mount(file_volume, "m1", ["--buffer-size", "64"])
    for name, mib in (("a", 40), ("b", 160)):
        write_file(m.path(name), noise(mib * MIB, mib))
    r = lab.stoke("warmup", "--pin", "1h", m.path("a"))
    assert "pinned 1 files: 10 blocks" in r.stdout, r.stdout
    assert pinned(d) == 10
    for _ in range(2):
        read(m, "b")
    assert d.metrics()["stoke_cached_evictions_total"] > 0
    assert cached(lab, m, "a") == ("100.0", 0)
    wait_for("the pins on disk", lambda: d_pins(d) == 10)
    # over kill -9
    d.kill()
    d = lab.daemon(file_volume, 1, cache_mib=96)
    assert pinned(d) == 10
    # the mount knows it again, at its new address
    wait_for("the member", lambda: cached(lab, m, "a") == ("100.0", 0))
    read(m, "b")
    assert cached(lab, m, "a") == ("100.0", 0)
    status = json.loads(lab.stoke("status", "--group-secret-file", lab.secret_file(), file_volume).stdout)
    member = status["Groups"][0]["Members"][0]
    assert member["PinnedBlocks"] == 10 and member["PinnedBytes"] >= 40 * MIB
    # more than the share of the cache
    r = lab.stoke("warmup", "--pin-until", "2099-12-31", m.path("b"), check=False)
    assert r.returncode == 1 and "blocks could not be pinned" in r.stderr and "80 %" in r.stderr, r.stderr
    count = int(next(x for x in r.stderr.splitlines() if "could not be pinned" in x).split("warmup: ")[1].split()[0])
    assert count == 40 - (pinned(d) - 10) and 20 < count < 40
    assert cached(lab, m, "a") == ("100.0", 0)
    r = lab.stoke("warmup", "--unpin", m.path("a"), m.path("b"))
    assert "unpinned 2 files: 50 blocks" in r.stdout, r.stdout
    assert pinned(d) == 0
    # a date that comes
    lab.stoke("warmup", "--pin", "2s", m.path("a"))
    start = time.monotonic()
    assert pinned(d) == 10
    wait_for("the date", lambda: pinned(d) == 0)
    assert time.monotonic() - start > 0.5
    r = lab.stoke("warmup", "--pin-until", "2001-01-01", m.path("a"), check=False)
    assert r.returncode == 2 and "is over" in r.stderr
