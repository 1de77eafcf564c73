# SPDX-License-Identifier: Apache-2.0
"""Backups of the metadata in the object store, as JuiceFS's mounts make them, and what loads them."""
import os
import re
import time

from lab import run, wait_for, write_file
from test_golden import keys_of


def backups(lab):
    folder = f"{lab.folder}/objects/vol/meta"
    return sorted(n for n in os.listdir(folder) if ".tmp" not in n) if os.path.isdir(folder) else []


def fill(m):
    os.mkdir(m.path("d"))
    write_file(m.path("d/f"), b"x" * 5000)


def test_a_backup_is_made_once_an_interval_and_loads(lab, redis, juicefs, file_volume):
    old = [f"dump-2020-01-0{i}-000000.json.gz" for i in (1, 2, 3)]
    os.makedirs(f"{lab.folder}/objects/vol/meta")
    for n in [*old, "somebody's"]:
        write_file(f"{lab.folder}/objects/vol/meta/{n}", b"")
    m = lab.mount(file_volume, flags=["--backup-meta", "0"])
    fill(m)
    assert m.stop() == 0
    mounts = [lab.mount(file_volume, f"m{i}", flags=["--backup-meta", "30", "--subdir", "/d"]) for i in (1, 2)]
    wait_for("the backup", lambda: any("metadata backed up object=vol/meta/dump-" in m.text() for m in mounts), 15)
    # of a month the first stays; names of others are nobody's business
    wait_for("the old ones to go", lambda: backups(lab)[0] == old[0] and backups(lab)[1] not in old, 10)
    made = [n for n in backups(lab) if n not in old and n != "somebody's"]
    assert all(re.fullmatch(r"dump-\d{4}(-\d\d){2}-\d{6}\.json\.gz", n) for n in made) and "somebody's" in backups(lab)
    stamp = redis.client(1).hget("x1", "lastBackup").decode()
    assert abs(time.mktime(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone - time.time()) < 60
    # it looks ten times an interval, and finds that there is one
    time.sleep(4)
    assert [n for n in backups(lab) if n not in old and n != "somebody's"] == made and len(made) <= 2
    for m in mounts:
        assert m.stop() == 0
    file = f"{lab.folder}/objects/vol/meta/{made[-1]}"
    lab.stoke("load", redis.url(2), file)
    run([juicefs, "load", redis.url(3), file], env=lab.env)
    ours, theirs = keys_of(redis, 2), keys_of(redis, 3)
    for db in (2, 3):
        m = lab.mount(redis.url(db), f"loaded{db}", flags=["--read-only"])
        with open(m.path("d/f"), "rb") as f:
            assert f.read() == b"x" * 5000
    assert ours[b"d1"] == theirs[b"d1"]


def test_only_one_who_may_makes_backups(lab, redis, file_volume):
    for name, flags in (("m1", ["--read-only"]), ("m2", ["--no-bgjob"]), ("m3", ["--backup-meta", "0"])):
        lab.mount(file_volume, name, flags=["--backup-meta", "2", *flags])
    time.sleep(1.5)
    assert not backups(lab) and not redis.client(1).exists("x1")


def test_too_many_inodes_for_one_an_hour(lab, redis, file_volume):
    redis.client(1).set("totalInodes", 1000001)
    m = lab.mount(file_volume, flags=["--backup-meta", "5"])
    wait_for("a word", lambda: "more than a million inodes" in m.text(), 10)
    assert not backups(lab) and not redis.client(1).exists("x1")


def test_a_backup_of_an_encrypted_volume_is_encrypted(lab, redis, juicefs):
    key = f"{lab.folder}/key.pem"
    run(["openssl", "genrsa", "-aes256", "-passout", "pass:secret", "-out", key, "2048"])
    env = {"JFS_RSA_PASSPHRASE": "secret"}
    lab.format(redis.url(1), "vol", flags=["--encrypt-rsa-key", key], env=env)
    m = lab.mount(redis.url(1), flags=["--backup-meta", "5"], env=env)
    fill(m)
    wait_for("the backup", lambda: "metadata backed up" in m.text(), 15)
    assert m.stop() == 0
    file = f"{lab.folder}/objects/vol/meta/{backups(lab)[-1]}"
    with open(file, "rb") as f:
        assert f.read(2) != b"\x1f\x8b"
    run([juicefs, "load", redis.url(2), file, "--encrypt-rsa-key", key], env=dict(lab.env, **env))
    assert keys_of(redis, 2)[b"d1"] == keys_of(redis, 1)[b"d1"]
    lab.stoke("load", redis.url(3), file, "--encrypt-rsa-key", key, env=env)
    assert keys_of(redis, 3)[b"d1"] == keys_of(redis, 1)[b"d1"]
    for argv, word in (([file], "JSON"), ([file, "--encrypt-rsa-key", key, "--encrypt-algo", "chacha20-rsa"], "damaged"),
                       ([file, "--binary"], "--binary"), (["--encrypt-rsa-key", key], "FILE")):
        r = lab.stoke("load", redis.url(4), *argv, env=env, check=False)
        assert r.returncode and word in r.stderr and redis.client(4).dbsize() == 0, (argv, r.stderr)
