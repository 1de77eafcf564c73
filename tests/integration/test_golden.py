# SPDX-License-Identifier: Apache-2.0
"""Volumes made by the real JuiceFS show what the real client showed."""
import json
import os
import subprocess
import sys

import pytest
from conftest import GOLDEN

WHOLE = ["plain", "lz4", "zstd", "hash-prefix", "compacted", "big-dir", "old-client", "many-slices", "huge-sparse", "pending", "sessions",
         "acl", "tiers", "changelog", "quotas"]


def load(lab, redis, variant, db=0):
    bucket = f"{lab.folder}/bucket-{variant}/"
    os.makedirs(bucket, exist_ok=True)
    subprocess.run([sys.executable, f"{GOLDEN}/load.py", variant, redis.url(db), "--bucket", bucket], check=True, stdout=subprocess.DEVNULL)
    return redis.url(db)


def compare(root, variant, *flags):
    folder = f"{GOLDEN}/{variant}"
    manifest = next(f"{folder}/{n}" for n in ("manifest.json", "manifest.json.gz") if os.path.exists(f"{folder}/{n}"))
    r = subprocess.run([sys.executable, f"{GOLDEN}/make_manifest.py", root, "--compare", manifest, *flags], text=True, capture_output=True)
    assert r.returncode == 0, (r.stdout + r.stderr)[-3000:]


def keys_of(redis, db=0):
    """everything in the database, in a form that does not depend on the order inside a hash or set"""
    c = redis.client(db)
    read = {b"string": c.get, b"hash": c.hgetall, b"set": c.smembers, b"list": lambda k: c.lrange(k, 0, -1),
            b"zset": lambda k: c.zrange(k, 0, -1, withscores=True)}
    return {k: read[c.type(k)](k) for k in c.keys("*")}


@pytest.mark.parametrize("variant", WHOLE)
def test_variant_matches_its_manifest_and_stays_as_it_was(lab, redis, variant):
    meta = load(lab, redis, variant)
    before = keys_of(redis)
    m = lab.mount(meta, flags=["--read-only", "--enable-xattr"])
    compare(m.dir, variant)
    assert m.stop() == 0
    assert keys_of(redis) == before


@pytest.mark.parametrize("variant", ["plain", "old-client"])
def test_variant_matches_read_write(lab, redis, variant):
    meta = load(lab, redis, variant)
    m = lab.mount(meta, flags=["--no-bgjob", "--enable-xattr"])
    compare(m.dir, variant)


def test_damaged_volume_gives_the_errors_that_juicefs_gave(lab, redis):
    meta = load(lab, redis, "damaged")
    # JuiceFS reads on past the block it was asked for, so it fails where the block itself is sound: there the right bytes are fine too
    bad = {"missing-first": 0, "missing-second": 1, "truncated": 2}
    m = lab.mount(meta, flags=["--read-only", "--io-retries", "1"])
    with open(f"{GOLDEN}/damaged/reads.json") as f:
        reads = json.load(f)["reads"]
    assert reads
    for path, off, length, result, _ in reads:
        fd = os.open(m.path(path), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            got = f"{len(os.pread(fd, length, off))} bytes"
        except OSError as e:
            got = os.strerror(e.errno)
        finally:
            os.close(fd)
        sound = path in bad and off // 65536 != bad[path]
        assert got == result or (sound and got == f"{min(length, 150000 - off)} bytes"), (path, off, length, got)
    # the log names an object that is missing
    assert "chunks/0/0/" in m.text()
