# SPDX-License-Identifier: Apache-2.0
"""Volumes made by the real JuiceFS show what the real client showed."""
import json
import os
import subprocess
import sys

import pytest
from conftest import GOLDEN
from lab import wait_for, write_file

WHOLE = ["plain", "lz4", "zstd", "hash-prefix", "compacted", "big-dir", "old-client", "many-slices", "huge-sparse", "pending", "sessions",
         "acl", "changelog", "quotas", "tiers", "encrypted-aes", "encrypted-aes-lz4", "encrypted-chacha", "encrypted-chacha-lz4"]
WRITABLE = ["plain", "old-client", "acl", "changelog", "quotas", "tiers", "encrypted-aes-lz4", "encrypted-chacha"]


def load(lab, redis, variant, db=0):
    bucket = f"{lab.folder}/bucket-{variant}/"
    os.makedirs(bucket, exist_ok=True)
    subprocess.run([sys.executable, f"{GOLDEN}/load.py", variant, redis.url(db), "--bucket", bucket], check=True, stdout=subprocess.DEVNULL)
    return redis.url(db)


def passphrase(variant):
    path = f"{GOLDEN}/{variant}/passphrase.txt"
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        return {"JFS_RSA_PASSPHRASE": f.read().rstrip("\n")}


def objects(lab, variant):
    top = f"{lab.folder}/bucket-{variant}"
    return {os.path.relpath(os.path.join(p, f), top).split("/", 1)[1] for p, _, files in os.walk(top) for f in files}


def expected(variant):
    with open(f"{GOLDEN}/{variant}/expected.json") as f:
        return json.load(f)


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
    m = lab.mount(meta, flags=["--read-only", "--enable-xattr", "--enable-ioctl"], env=passphrase(variant))
    compare(m.dir, variant)
    assert m.stop() == 0
    assert keys_of(redis) == before


@pytest.mark.parametrize("variant", WRITABLE)
def test_variant_matches_read_write(lab, redis, variant):
    """and what is written there JuiceFS finds in order (test_interop has it read by JuiceFS)"""
    meta = load(lab, redis, variant)
    m = lab.mount(meta, flags=["--no-bgjob", "--enable-xattr", "--enable-ioctl"], env=passphrase(variant))
    compare(m.dir, variant)
    data = os.urandom(300_000)
    write_file(m.path("written"), data)
    assert m.stop() == 0
    lab.started.remove(m)
    m = lab.mount(meta, "m2", flags=["--read-only"], env=passphrase(variant))
    with open(m.path("written"), "rb") as f:
        assert f.read() == data


def test_wrong_passphrase_is_said(lab, redis):
    meta = load(lab, redis, "encrypted-aes")
    for env in ({}, {"JFS_RSA_PASSPHRASE": "not it"}):
        m = lab.mount(meta, "m1", flags=["--read-only"], wait=False, env=env)
        assert m.p.wait(20) == 1
        assert "JFS_RSA_PASSPHRASE" in m.text() or "passphrase" in m.text().lower(), m.text()


def test_dead_session_is_cleaned_as_juicefs_did(lab, redis):
    """kill -9 left locks and unlinked open files: another client's job takes all of it away, keys and objects"""
    meta = load(lab, redis, "sessions")
    want = expected("sessions")
    before, had = keys_of(redis), objects(lab, "sessions")
    m = lab.mount(meta, flags=["--heartbeat", "1"])
    gone = {k.encode() for k in want["keys_removed"]} - {b"allSessions", b"sessionInfos"}
    wait_for("end of the dead session", lambda: not gone & set(keys_of(redis)), 30)
    wait_for("end of its objects", lambda: had - objects(lab, "sessions") == set(want["objects_removed"]), 30)
    assert m.stop() == 0
    after = {k: v for k, v in keys_of(redis).items() if not k.startswith(b"_")}
    assert {k.decode() for k in set(before) - set(after)} == set(want["keys_removed"])
    assert not set(after) - set(before) - {b"nextinode", b"nextchunk", b"lastCleanupFiles", b"lastCleanupTrash", b"nextCleanupSlices",
                                           b"lastCleanupSessions", b"lastCleanupChangelog"}
    for key in ("totalInodes", "usedSpace"):
        assert after[key.encode()].decode() == want["values"][key]


def test_gc_does_to_pending_deletions_what_juicefs_did(lab, redis):
    meta = load(lab, redis, "pending")
    for args, step in (([], "gc"), (["--delete"], "gc --delete"), ([], "gc again")):
        want, before, had = expected("pending")[step], keys_of(redis), objects(lab, "pending")
        r = lab.stoke("gc", meta, *args, check=False, env={"JFS_GC_SKIPPEDTIME": "3600"})
        assert r.returncode == 0, r.stdout + r.stderr
        after, left = keys_of(redis), objects(lab, "pending")
        assert sorted(k.decode() for k in set(before) - set(after) if not k.startswith(b"_")) == want["keys_removed"], step
        assert sorted(had - left) == want["objects_removed"], step
        assert {k.decode(): v.decode() for k, v in after.get(b"sliceRef", {}).items()} == want["sliceRef"], step


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
