# SPDX-License-Identifier: Apache-2.0
"""Encrypted volumes: those that JuiceFS made, those made here and read there, compressed, through the group, with a wrong passphrase."""
import filecmp
import os
import subprocess
import sys

import pytest
from conftest import GOLDEN
from lab import run

sys.path.insert(0, os.path.dirname(__file__))
from test_golden import compare, keys_of, load  # noqa: E402

ENV = "JFS_RSA_PASSPHRASE"
ALGORITHMS = [("aes256gcm-rsa", "none"), ("chacha20-rsa", "zstd"), ("aes256gcm-rsa", "lz4"), ("sm4gcm", "none")]
VOLUMES = ["encrypted-aes", "encrypted-aes-lz4", "encrypted-chacha", "encrypted-chacha-lz4"]


def passphrase(variant):
    with open(f"{GOLDEN}/{variant}/passphrase.txt") as f:
        return {ENV: f.read().strip()}


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    """file with an encrypted RSA key, and its passphrase"""
    path = str(tmp_path_factory.mktemp("key") / "key.pem")
    subprocess.run(["openssl", "genrsa", "-aes256", "-passout", "pass:open sesame", "-out", path, "2048"], check=True, capture_output=True)
    return path, {ENV: "open sesame"}


def fill(folder, seed):
    """files around the borders of a block of 64 KiB, text and noise"""
    import random
    rnd = random.Random(seed)
    os.makedirs(folder)
    for size in (0, 1, 65535, 65536, 65537, 300000):
        for kind in ("noise", "text"):
            data = rnd.randbytes(size) if kind == "noise" else b"to be or not to be, " * (size // 20 + 1)
            with open(f"{folder}/{kind}-{size}", "wb") as f:
                f.write(data[:size])


def same(a, b):
    names = sorted(os.listdir(a))
    assert names == sorted(os.listdir(b))
    match, differ, errors = filecmp.cmpfiles(a, b, names, shallow=False)
    assert not differ and not errors and len(match) == len(names)


@pytest.mark.parametrize("variant", VOLUMES)
def test_golden_volume_matches_its_manifest_and_stays_as_it_was(lab, redis, variant):
    meta = load(lab, redis, variant)
    before = keys_of(redis)
    m = lab.mount(meta, flags=["--read-only", "--enable-xattr"], env=passphrase(variant))
    compare(m.dir, variant)
    assert m.stop() == 0
    assert keys_of(redis) == before


def test_golden_volume_is_written_too(lab, redis, juicefs):
    meta = load(lab, redis, "encrypted-chacha-lz4")
    env = passphrase("encrypted-chacha-lz4")
    m = lab.mount(meta, flags=["--no-bgjob"], env=env)
    fill(m.path("ours"), 1)
    m.stop()
    j = lab.juice_mount(juicefs, meta, flags=["--no-bgjob"], env=env)
    fill(f"{lab.folder}/want", 1)
    same(f"{lab.folder}/want", j.path("ours"))


@pytest.mark.parametrize("algo,compress", ALGORITHMS)
def test_what_one_writes_the_other_reads(lab, redis, juicefs, key, algo, compress):
    meta, (pem, env) = redis.url(1), key
    flags = ["--encrypt-rsa-key", pem, "--encrypt-algo", algo, "--compress", compress, "--block-size", "64K"]
    lab.format(meta, "secret-vol", flags=flags, env=env)
    m = lab.mount(meta, env=env)
    fill(m.path("ours"), 2)
    j = lab.juice_mount(juicefs, meta, env=env)
    fill(j.path("theirs"), 3)
    fill(f"{lab.folder}/ours", 2)
    fill(f"{lab.folder}/theirs", 3)
    same(f"{lab.folder}/ours", j.path("ours"))
    same(f"{lab.folder}/theirs", m.path("theirs"))
    m.stop()
    again = lab.mount(meta, "again", flags=["--read-only"], env=env)
    same(f"{lab.folder}/ours", again.path("ours"))
    again.stop()
    # no object of the volume holds a word of it
    for folder, _, files in os.walk(f"{lab.folder}/objects"):
        for name in files:
            with open(os.path.join(folder, name), "rb") as f:
                assert b"to be or not" not in f.read()
    uuid = redis.client(1).get("setting").split(b'"UUID": "')[1][:36]
    with open(f"{lab.folder}/objects/secret-vol/juicefs_uuid", "rb") as f:
        assert uuid not in f.read()
    run([juicefs, "fsck", meta], env=dict(lab.env, **env))


def test_volume_that_juicefs_made_with_sm4(lab, redis, juicefs, key):
    meta, (pem, env) = redis.url(1), key
    sm2 = f"{lab.folder}/sm2.pem"
    subprocess.run(["openssl", "ecparam", "-name", "SM2", "-genkey", "-noout", "-out", sm2], check=True)
    for db, k in ((1, pem), (2, sm2)):
        meta = redis.url(db)
        flags = ["--encrypt-rsa-key", k, "--encrypt-algo", "sm4gcm"]
        run([juicefs, "format", meta, "sm-vol", "--bucket", f"{lab.folder}/b{db}", *flags], env=dict(lab.env, **env))
        j = lab.juice_mount(juicefs, meta, f"j{db}", env=env)
        fill(j.path("theirs"), 4)
        fill(f"{lab.folder}/theirs{db}", 4)
        m = lab.mount(meta, f"m{db}", env=env)
        same(f"{lab.folder}/theirs{db}", m.path("theirs"))
        fill(m.path("ours"), 5)
        fill(f"{lab.folder}/ours{db}", 5)
        same(f"{lab.folder}/ours{db}", j.path("ours"))


def test_wrong_passphrase_is_one_clear_error(lab, redis):
    meta = load(lab, redis, "encrypted-aes")
    before = keys_of(redis)
    for env, word in ((None, "is encrypted"), ({ENV: "wrong"}, "does not open")):
        m = lab.mount(meta, f"m-{word.split()[0]}", wait=False, env=env)
        assert m.p.wait(20) == 1
        text = m.text()
        assert word in text and ENV in text and len(text.strip().splitlines()) == 1, text
        assert "wrong" not in text.replace("passphrase", "")
        d = lab.daemon(meta, 1, wait=False, flags=["--allow-plain-peers"])
        d.p.wait(20)
        assert ENV in d.text()
    assert {k: v for k, v in keys_of(redis).items() if not k.startswith(b"_")} == before


def test_group_of_an_encrypted_volume_is_asked_for(lab, redis):
    meta = load(lab, redis, "encrypted-aes")
    lab.env.update(passphrase("encrypted-aes"))
    d = lab.daemon(meta, 1, wait=False)
    assert d.p.wait(20) != 0 and "--allow-plain-peers" in d.text()
    d = lab.daemon(meta, 2, flags=["--allow-plain-peers"])
    m = lab.group_mount(meta, "refused", wait=False)
    assert m.p.wait(20) == 1 and "--allow-plain-peers" in m.text()
    m = lab.group_mount(meta, "ro", flags=["--allow-plain-peers", "--read-only", "--enable-xattr"])
    compare(m.dir, "encrypted-aes")
    assert d.block_files()  # the group has the blocks, in plain
    private = lab.mount(meta, "private", flags=["--cache-dir", f"{lab.folder}/cache", "--read-only", "--enable-xattr"])
    compare(private.dir, "encrypted-aes")


def test_a_damaged_object_is_an_error_and_never_other_bytes(lab, redis, key):
    meta, (pem, env) = redis.url(1), key
    lab.format(meta, "vol", flags=["--encrypt-rsa-key", pem, "--block-size", "64K"], env=env)
    m = lab.mount(meta, env=env)
    fill(m.path("d"), 6)
    m.stop()
    files = [os.path.join(p, f) for p, _, names in os.walk(f"{lab.folder}/objects/vol/chunks") for f in names]
    for path in files:
        with open(path, "r+b") as f:
            f.seek(-20, os.SEEK_END)
            byte = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte[0] ^ 1]))
    m = lab.mount(meta, "again", flags=["--read-only", "--io-retries", "1"], env=env)
    for name in os.listdir(m.path("d")):
        if not name.endswith("-0"):
            with pytest.raises(OSError), open(m.path("d", name), "rb") as f:
                f.read()


def objects_of(lab, variant):
    found = [os.path.join(p, f) for p, _, files in os.walk(f"{lab.folder}/bucket-{variant}") for f in files]
    return sorted(f for f in found if "/chunks/" in f)


def test_fsck_knows_how_long_an_encrypted_object_is(lab, redis):
    meta, env = load(lab, redis, "encrypted-aes"), passphrase("encrypted-aes")
    whole = lab.stoke("fsck", meta, env=env)
    assert "passphrase" not in whole.stdout and "wrong" not in whole.stdout
    assert "passphrase" in lab.stoke("fsck", meta).stdout
    short = objects_of(lab, "encrypted-aes")[0]
    os.truncate(short, os.path.getsize(short) - 1)
    r = lab.stoke("fsck", meta, env=env, check=False)
    assert r.returncode == 1 and os.path.basename(short) in r.stdout
    # so short it cannot be with any key
    os.truncate(short, 20)
    r = lab.stoke("fsck", meta, check=False)
    assert r.returncode == 1 and os.path.basename(short) in r.stdout


def test_fsck_says_what_it_cannot_know_of_compressed_objects(lab, redis):
    meta, env = load(lab, redis, "encrypted-aes-lz4"), passphrase("encrypted-aes-lz4")
    r = lab.stoke("fsck", meta, env=env)
    assert "compressed" in r.stdout and "wrong" not in r.stdout
    short = objects_of(lab, "encrypted-aes-lz4")[0]
    os.truncate(short, 100)  # less than the wrapped key
    r = lab.stoke("fsck", meta, env=env, check=False)
    assert r.returncode == 1 and os.path.basename(short) in r.stdout
