# SPDX-License-Identifier: Apache-2.0
"""What people type: every mistake gives one clear line and an exit status; the right words do what they say."""
import json
import os
import subprocess

import pytest
from lab import SECRET, free_port, noise, wait_for, write_file


def one_line(r, *words):
    assert r.returncode != 0
    assert len(r.stderr.strip().splitlines()) == 1, r.stderr
    for w in words:
        assert w.lower() in r.stderr.lower(), r.stderr


def cached(lab, *argv, **env):
    return subprocess.run([f"{lab.bin}/stoke-cached", *argv], text=True, capture_output=True, env=dict(lab.env, **env), timeout=60)


@pytest.mark.parametrize("cmd", ["mount", "umount", "format", "warmup", "status"])
def test_help_and_wrong_flags(lab, cmd):
    r = lab.stoke(cmd, "--help")
    assert r.stdout.startswith("usage:") or "usage" in r.stdout.lower()
    r = lab.stoke(cmd, "--no-such-flag", check=False)
    one_line(r, "--no-such-flag", "--help")
    assert r.returncode == 2


def test_top_level_words(lab):
    assert "stoke" in lab.stoke("version").stdout
    out = lab.stoke("help").stdout
    for word in ("mount", "umount", "format", "warmup", "status", "version"):
        assert word in out
    one_line(lab.stoke("fromat", check=False), "fromat")
    assert lab.stoke(check=False).returncode == 2
    assert "stoke-cached" in cached(lab, "--version").stdout and "--cache-dir" in cached(lab, "--help").stdout


def test_missing_server_and_wrong_password(lab):
    gone = f"redis://127.0.0.1:{free_port()}/1"
    redis = lab.redis(password="right-one")
    wrong = redis.url(1).replace("right-one", "wrong-one")
    os.makedirs(f"{lab.folder}/mnt")
    for meta in (gone, wrong):
        where = meta.rsplit("@")[-1].replace("redis://", "").split("/")[0]
        for argv in (["status", meta], ["mount", meta, f"{lab.folder}/mnt"], ["format", meta, "vol", "--bucket", f"{lab.folder}/b"]):
            r = lab.stoke(*argv, check=False)
            one_line(r, where)
            assert r.returncode == 1 and "wrong-one" not in r.stderr
        if meta == wrong:  # a daemon waits for a server that is away (test_restart)
            one_line(cached(lab, meta, "--cache-dir", f"{lab.folder}/c", "--socket", f"{lab.folder}/s", STOKE_GROUP_SECRET=SECRET), where)
    r = lab.stoke("status", redis.url(1), check=False)
    one_line(r, "format")  # no volume there: the way out is named


def test_foreign_and_missing_directories(lab, file_volume):
    one_line(lab.stoke("mount", file_volume, f"{lab.folder}/nowhere", check=False), "nowhere")
    write_file(f"{lab.folder}/file", b"")
    one_line(lab.stoke("mount", file_volume, f"{lab.folder}/file", check=False), "file")
    one_line(lab.stoke("umount", lab.folder, check=False), lab.folder)
    m = lab.mount(file_volume)
    one_line(lab.stoke("mount", file_volume, m.dir, check=False), m.dir)
    r = cached(lab, file_volume, "--cache-dir", f"{lab.folder}/file", "--cache-group", "g", "--socket", f"{lab.folder}/s",
               STOKE_GROUP_SECRET=SECRET)
    one_line(r, "file")


def test_format_is_idempotent_and_checks(lab, redis, rgw, bucket):
    meta = redis.url(1)
    first = lab.format(meta, "vol", rgw, bucket)
    before = redis.client(1).get("setting")
    assert "formatted" in first.stdout and rgw.KEY not in first.stdout
    again = lab.format(meta, "vol", rgw, bucket)
    assert again.returncode == 0 and redis.client(1).get("setting") == before
    one_line(lab.format(meta, "other", rgw, bucket, check=False), "vol")
    one_line(lab.format(meta, "vol", rgw, bucket, flags=["--block-size", "1M"], check=False), "block")
    one_line(lab.format(redis.url(2), "vol", rgw, bucket, check=False), "already holds")
    r = lab.stoke("format", redis.url(2), "vol2", "--storage", "s3", "--bucket", f"{rgw.url}/{bucket}", check=False,
                  env={"ACCESS_KEY": rgw.ACCESS, "SECRET_KEY": "not-the-key"})
    one_line(r)
    assert "not-the-key" not in r.stderr and redis.client(2).keys("*") == []
    one_line(lab.stoke("format", redis.url(2), "vol2", "--storage", "hdfs", "--bucket", "hdfs://x", check=False), "hdfs")
    one_line(lab.stoke("format", redis.url(2), "vol2", "--secret-key", "s", "--bucket", "/x", check=False), "secret-key")
    names = [o["Key"] for o in rgw.client().list_objects_v2(Bucket=bucket)["Contents"]]
    assert names == ["vol/juicefs_uuid"]


def test_juicefs_mounts_what_we_formatted(lab, redis, juicefs):
    meta = redis.url(1)
    lab.format(meta, "vol", flags=["--compress", "zstd", "--block-size", "1M"])
    j = lab.juice_mount(juicefs, meta)
    write_file(j.path("f"), noise(3 << 20))
    m = lab.mount(meta)
    with open(m.path("f"), "rb") as f:
        assert f.read() == noise(3 << 20)


def test_status_shows_volume_sessions_and_members(lab, s3_volume):
    daemons = [lab.daemon(s3_volume, n) for n in (1, 2)]
    m = lab.group_mount(s3_volume, "m1")
    write_file(m.path("f"), noise(20 << 20))
    lab.stoke("warmup", m.path("f"))
    s = json.loads(lab.stoke("status", s3_volume, "--group-secret-file", lab.secret_file()).stdout)
    assert s["Setting"]["Name"] == "vol" and [x["MountPoint"] for x in s["Sessions"]] == [m.dir]
    (group,) = s["Groups"]
    assert group["Name"] == "train" and len(group["Members"]) == 2
    assert sum(x["Blocks"] for x in group["Members"]) == 5 and sum(x["Bytes"] for x in group["Members"]) >= 20 << 20
    daemons[1].stop()
    lab.started.remove(daemons[1])
    s = json.loads(lab.stoke("status", s3_volume).stdout)
    assert len(s["Groups"][0]["Members"]) == 1


def test_background_mount_waits_and_umount_ends_it(lab, file_volume):
    where = f"{lab.folder}/mnt"
    os.makedirs(where)
    lab.stoke("mount", file_volume, where, "-d", "--log", f"{lab.folder}/bg.log", "--metrics", f"127.0.0.1:{free_port()}")
    assert os.path.ismount(where)
    write_file(f"{where}/f", b"x")
    with open(f"{where}/.config") as f:
        config = json.load(f)
    assert config
    lab.stoke("umount", where)
    assert not os.path.ismount(where)
    r = lab.stoke("mount", f"redis://127.0.0.1:{free_port()}/0", where, "-d", check=False)
    one_line(r)


def test_metrics_and_access_log(lab, file_volume):
    m = lab.mount(file_volume)
    log = os.open(m.path(".accesslog"), os.O_RDONLY)
    write_file(m.path("f"), b"x" * 100)
    text = b""

    def seen():
        nonlocal text
        text += os.read(log, 65536)
        return b"create" in text and b"write" in text
    wait_for("lines of the access log", seen)
    os.close(log)
    v = m.metrics()
    assert any(k.startswith("stoke_fuse") for k in v) and any(k.startswith("stoke_source") for k in v)
    assert m.stats()


def test_a_volume_feature_we_lack_is_refused_at_mount(lab, redis):
    meta = redis.url(1)
    lab.format(meta, "vol")
    c = redis.client(1)
    setting = json.loads(c.get("setting"))
    for change, word in ((dict(MetaVersion=2), "metadata of version 2"), (dict(MinClientVersion="9.0.0"), "version"),
                         (dict(Compression="brotli"), "brotli"), (dict(Storage="hdfs"), "hdfs")):
        c.set("setting", json.dumps(dict(setting, **change)))
        m = lab.mount(meta, wait=False)
        assert m.p.wait(20) == 1
        assert word.lower() in m.text().lower(), m.text()
    c.set("setting", json.dumps(setting))
