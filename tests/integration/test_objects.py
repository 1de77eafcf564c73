# SPDX-License-Identifier: Apache-2.0
"""How objects lie in the store: every block size, shards, tags of tiers, and a store that changes under a mount; JuiceFS reads what we
wrote and the reverse."""
import json
import os
import random
import re

import pytest
from lab import run, wait_for


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def objects(folder):
    paths = [os.path.join(p, f) for p, _, files in os.walk(folder) for f in files]
    return {os.path.relpath(p, folder): os.path.getsize(p) for p in paths}


@pytest.mark.parametrize("size", ["64K", "128K", "256K", "512K", "1M", "2M", "4M", "8M", "16M"])
def test_every_block_size(lab, redis, juicefs, size):
    meta, rnd = redis.url(1), random.Random(size)
    n = int(size[:-1]) << (10 if size[-1] == "K" else 20)
    hashed = ["--hash-prefix"] if size == "128K" else []
    lab.format(meta, "vol", flags=["--block-size", size, "--trash-days", "0", *hashed])
    data = {f"f{k}": rnd.randbytes(k) for k in (n - 1, n, n + 1, 2 * n + 4097)}
    m = lab.mount(meta)
    for name, d in data.items():
        write(m.path(name), d)
    lengths = sorted(v for k, v in objects(f"{lab.folder}/objects/vol/chunks").items())
    assert lengths == sorted([n - 1, n, n, 1, n, n, 4097])
    if size not in ("64K", "128K", "16M"):
        m.stop()
        m = lab.mount(meta, "again")
        assert all(read(m.path(name)) == d for name, d in data.items())
        return
    j = lab.juice_mount(juicefs, meta)
    for name, d in data.items():
        assert read(j.path(name)) == d
    write(j.path("theirs"), data[f"f{n + 1}"] * 2)
    assert read(m.path("theirs")) == data[f"f{n + 1}"] * 2


@pytest.mark.parametrize("theirs", [False, True])
def test_shards(lab, redis, juicefs, theirs):
    meta = redis.url(1)
    if theirs:
        run([juicefs, "format", meta, "vol", "--bucket", f"{lab.folder}/b%d", "--shards", "4", "--block-size", "64K"])
    else:
        lab.format(meta, "vol", bucket=f"{lab.folder}/b%d", flags=["--shards", "4", "--block-size", "64K"])
    assert json.loads(redis.client(1).get("setting"))["Bucket"] == f"{lab.folder}/b%d/"
    data = [random.Random(i).randbytes(1 << 20) for i in range(2)]
    m = lab.mount(meta)
    write(m.path("ours"), data[0])
    j = lab.juice_mount(juicefs, meta)
    write(j.path("theirs"), data[1])
    assert read(j.path("ours")) == data[0] and read(m.path("theirs")) == data[1]
    counts = [len(objects(f"{lab.folder}/b{i}/vol/chunks")) for i in range(4)]
    assert sum(counts) == 32 and min(counts) > 0
    out = run([juicefs, "fsck", meta]).stdout
    assert "2 slices (2097152 bytes)" in out


def test_tags_of_tiers(lab, redis, rgw, bucket, juicefs):
    meta, s3 = redis.url(1), rgw.client()
    lab.format(meta, "vol", rgw, bucket, flags=["--tag", "team=vision", "--trash-days", "0"])
    lab.stoke("config", meta, "--tier", "2", "--tag", "kind=cold data")
    m = lab.mount(meta, flags=["--heartbeat", "1"])
    write(m.path("warm"), b"warm")
    write(m.path("cold"), b"")
    run([juicefs, "tier", "set", meta, "--tier", "2", "/cold"], env=dict(lab.env, ACCESS_KEY=rgw.ACCESS, SECRET_KEY=rgw.KEY))

    def tags():
        keys = [o["Key"] for o in s3.list_objects_v2(Bucket=bucket, Prefix="vol/chunks/")["Contents"]]
        return {k: {t["Key"]: t["Value"] for t in s3.get_object_tagging(Bucket=bucket, Key=k)["TagSet"]} for k in keys}
    warm = set(tags())
    write(m.path("cold"), b"cold")
    assert [t for k, t in tags().items() if k in warm] == [{"team": "vision"}]
    assert [t for k, t in tags().items() if k not in warm] == [{"kind": "cold data"}]
    # a tag that changes is taken at the next heartbeat
    lab.stoke("config", meta, "--tag", "team=audio")
    wait_for("the heartbeat", lambda: "is in use" in m.text() or "are in use" in m.text())
    seen = set(tags())
    write(m.path("later"), b"later")
    assert [t for k, t in tags().items() if k not in seen] == [{"team": "audio"}]


def test_files_move_to_another_tier(lab, redis, rgw, bucket, juicefs):
    meta, s3 = redis.url(1), rgw.client()
    keys = {"ACCESS_KEY": rgw.ACCESS, "SECRET_KEY": rgw.KEY}
    lab.format(meta, "vol", rgw, bucket, flags=["--trash-days", "0", "--compress", "lz4", "--block-size", "64K"])
    m = lab.mount(meta, flags=["--attr-cache", "0"])
    os.makedirs(m.path("d/e"))
    for name in ("d/f", "d/e/g", "other"):
        write(m.path(name), name.encode() * 40000)
    os.symlink("f", m.path("d/l"))
    c = redis.client(1)

    def tier(path):
        inode = os.lstat(m.path(path)).st_ino
        return int(re.search(r"tier: (\d)", lab.stoke("info", m.path(path)).stdout)[1]) if path != "d/l" else c.get(f"i{inode}")[71]

    def tags(path):
        found = re.findall(r"chunks/\d+/\d+/\S+", lab.stoke("info", m.path(path)).stdout)
        assert len(found) >= 2
        return {tuple((t["Key"], t["Value"]) for t in s3.get_object_tagging(Bucket=bucket, Key=f"vol/{k}")["TagSet"]) for k in found}
    r = lab.stoke("tier", "set", meta, "/d", "--tier", "1", check=False)
    assert r.returncode == 1 and "tier 1 has no storage class: stoke config META --tier 1" in r.stderr
    for n, tag in ((1, "kind=cold"), (2, "kind=frozen")):
        lab.stoke("config", meta, "--tier", str(n), "--storage-class", "STANDARD", "--tag", tag)
    theirs = run([juicefs, "tier", "list", meta], env=lab.env).stdout
    assert lab.stoke("tier", "list", meta).stdout.splitlines() == [line for line in theirs.splitlines() if line[:1] in "+|"]
    for argv in (["set", meta, "/d"], ["set", meta, "/d", "--tier", "4"], ["set", meta, "d", "--tier", "1"], ["what", meta], ["set", meta]):
        assert lab.stoke("tier", *argv, check=False).returncode == 2, argv
    # a directory alone: what is made in it
    lab.stoke("tier", "set", "--tier", "1", meta, "/d")
    assert [tier(p) for p in ("d", "d/e", "d/f", "other")] == [1, 0, 0, 0] and tags("d/f") == {()}
    # everything below it
    before = {p: read(m.path(p)) for p in ("d/f", "d/e/g", "other")}
    r = lab.stoke("tier", "set", meta, "/d", "--tier", "1", "-r")
    assert "1 directories and 2 files set, 2 slices stored again" in r.stdout
    assert [tier(p) for p in ("d", "d/e", "d/f", "d/e/g", "d/l", "other")] == [1, 1, 1, 1, 0, 0]
    assert tags("d/f") == tags("d/e/g") == {(("kind", "cold"),)} and tags("other") == {()}
    # only what changes is stored again, unless the class did
    assert "0 files set, 0 slices" in lab.stoke("tier", "set", meta, "/d", "--tier", "1", "-r").stdout
    lab.stoke("config", meta, "--tier", "1", "--tag", "kind=cool")
    assert "0 files set, 1 slices" in lab.stoke("tier", "set", meta, "/d/f", "--tier", "1", "--force").stdout
    assert tags("d/f") == {(("kind", "cool"),)} and tags("d/e/g") == {(("kind", "cold"),)}
    assert m.stop() == 0
    # a file back to the default, which JuiceFS's copy in place cannot do here; and what we set is what they see
    lab.stoke("tier", "set", meta, "--tier", "0", "/d/f")
    j = lab.juice_mount(juicefs, meta)
    assert {p: read(j.path(p)) for p in before} == before
    assert c.get(f"i{os.stat(j.path('d/e/g')).st_ino}")[71:] == b"\1\0" and c.get(f"i{os.stat(j.path('d/f')).st_ino}")[71:] == b"\0"
    run([juicefs, "fsck", meta], env=dict(lab.env, **keys))
    # a file that is gone from the store is told, and its tier stays
    for o in s3.list_objects_v2(Bucket=bucket, Prefix="vol/chunks/")["Contents"]:
        s3.delete_object(Bucket=bucket, Key=o["Key"])
    r = lab.stoke("tier", "set", meta, "/other", "--tier", "2", check=False)
    assert r.returncode == 1 and "vol/chunks/" in r.stderr
    assert c.get(f"i{os.stat(j.path('other')).st_ino}")[71:] == b"\0"


def test_a_directory_has_no_classes_but_tiers(lab, redis, file_volume):
    m = lab.mount(file_volume)
    write(m.path("f"), b"x")
    lab.stoke("config", file_volume, "--tier", "1", "--storage-class", "COLD")
    assert "1 files set" in lab.stoke("tier", "set", file_volume, "/f", "--tier", "1").stdout
    assert "tier: 1" in lab.stoke("info", m.path("f")).stdout
    r = lab.stoke("tier", "restore", file_volume, "/f", check=False)
    assert r.returncode == 1 and "not supported" in r.stderr.lower()


def test_a_bucket_that_moves_is_followed_without_a_new_mount(lab, redis, rgw, bucket):
    meta, s3 = redis.url(1), rgw.client()
    lab.format(meta, "vol", rgw, bucket, flags=["--trash-days", "0"])
    d = lab.daemon(meta, 1)
    m = lab.group_mount(meta, flags=["--heartbeat", "1"])
    write(m.path("before"), b"before")
    other = bucket + "-2"
    s3.create_bucket(Bucket=other)
    for o in s3.list_objects_v2(Bucket=bucket)["Contents"]:
        s3.copy_object(Bucket=other, Key=o["Key"], CopySource={"Bucket": bucket, "Key": o["Key"]})
    lab.stoke("config", meta, "--bucket", f"{rgw.url}/{other}")
    for p in (m, d):
        wait_for("the heartbeat", lambda p=p: "are in use" in p.text(), 30)
    for o in s3.list_objects_v2(Bucket=bucket)["Contents"]:
        s3.delete_object(Bucket=bucket, Key=o["Key"])
    m.drop_caches()
    write(m.path("after"), b"after")
    assert read(m.path("before")) == b"before" and read(m.path("after")) == b"after"
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    assert len([o for o in s3.list_objects_v2(Bucket=other)["Contents"] if "/chunks/" in o["Key"]]) == 2
    assert d.running()


def test_upload_limit(lab, redis):
    import time
    meta = redis.url(1)
    lab.format(meta, "vol")
    lab.stoke("config", meta, "--upload-limit", "16")  # 2 MB/s
    m = lab.mount(meta, flags=["--heartbeat", "1"])
    began = time.monotonic()
    fd = os.open(m.path("f"), os.O_CREAT | os.O_WRONLY)
    os.write(fd, bytes(5 << 20))
    os.fsync(fd)
    assert time.monotonic() - began > 1.5
    lab.stoke("config", meta, "--upload-limit", "0")
    time.sleep(2.5)  # two heartbeats
    began = time.monotonic()
    os.write(fd, bytes(5 << 20))
    os.fsync(fd)
    os.close(fd)
    assert time.monotonic() - began < 1.5


@pytest.mark.parametrize("storage", ["gs", "hdfs", "sftp", "azure"])
def test_stores_that_do_not_speak_s3_are_refused_by_name(lab, redis, storage):
    meta, c = redis.url(1), redis.client(1)
    lab.format(meta, "vol")
    c.set("setting", json.dumps({**json.loads(c.get("setting")), "Storage": storage}, indent=0))
    m = lab.mount(meta, wait=False)
    assert m.p.wait(20) == 1
    assert storage in m.text() and len(m.text().strip().splitlines()) == 1
