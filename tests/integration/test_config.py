# SPDX-License-Identifier: Apache-2.0
"""stoke config and destroy, with the real JuiceFS as the judge of what they leave."""
import json
import os

import pytest
from lab import run


def setting(redis, db=1):
    return json.loads(redis.client(db).get("setting"))


def config(lab, meta, *flags, check=True, env=None, **kw):
    return lab.stoke("config", meta, *flags, check=check, env=env, **kw)


def test_shows_the_setting_without_secrets(lab, redis):
    meta = redis.url(1)
    lab.format(meta, "vol", env={"SECRET_KEY": "very secret", "ACCESS_KEY": "me"})
    out = config(lab, meta).stdout
    assert json.loads(out)["Name"] == "vol" and "very secret" not in out and json.loads(out)["SecretKey"] == "****"


def test_changes_what_is_given_and_nothing_else(lab, redis, juicefs):
    meta, c = redis.url(1), redis.client(1)
    lab.format(meta, "vol")
    before = setting(redis)
    c.set("setting", json.dumps({**before, "OfTomorrow": {"a": [1, "x"]}}, indent=0))
    out = config(lab, meta, "--trash-days", "7", "--capacity", "5", "--inodes", "1000", "--upload-limit", "100", "--yes").stdout
    assert "trash-days: 1 -> 7" in out and "capacity: 0 -> 5" in out
    want = {**before, "TrashDays": 7, "Capacity": 5 << 30, "Inodes": 1000, "UploadLimit": 100, "OfTomorrow": {"a": [1, "x"]}}
    assert setting(redis) == want
    # as JuiceFS writes it: its order, one element a line
    text = c.get("setting").decode()
    assert text == json.dumps(json.loads(text), indent=0)
    names = list(json.loads(text))
    order = [names.index(n) for n in ("Capacity", "Inodes", "UploadLimit", "TrashDays", "EnableACL", "OfTomorrow")]
    assert order == sorted(order)
    assert config(lab, meta, "--trash-days", "7").stdout.strip() == "Nothing changed."
    assert '"TrashDays": 7' in run([juicefs, "config", meta]).stdout
    # JuiceFS changes it, and we go on from there
    run([juicefs, "config", meta, "--download-limit", "50", "--yes"])
    assert config(lab, meta, "--inodes", "0").returncode == 0
    got = setting(redis)
    assert got["DownloadLimit"] == 50 and "Inodes" not in got and got["UploadLimit"] == 100
    run([juicefs, "status", meta])


def test_secrets_are_sealed_and_come_from_the_environment(lab, redis, rgw, bucket, juicefs):
    meta = redis.url(1)
    lab.format(meta, "vol", rgw, bucket)
    r = config(lab, meta, "--secret-key", "env", check=False)
    assert r.returncode == 1 and "SECRET_KEY" in r.stderr
    # a wrong key is found out before it is written
    before = setting(redis)
    r = config(lab, meta, "--secret-key", "env", check=False, env={"SECRET_KEY": "not it", "ACCESS_KEY": rgw.ACCESS})
    # (the environment's pair goes first, so what is tried is the wrong one)
    assert r.returncode == 1 and setting(redis) == before and "not it" not in r.stderr
    config(lab, meta, "--secret-key", "env", env={"SECRET_KEY": rgw.KEY})
    after = setting(redis)
    assert after["KeyEncrypted"] and after["SecretKey"] != before["SecretKey"] and rgw.KEY not in json.dumps(after)
    m = lab.mount(meta)
    with open(m.path("f"), "w") as f:
        f.write("written with the new key")
    m.stop()
    j = lab.juice_mount(juicefs, meta)
    with open(j.path("f")) as f:
        assert f.read() == "written with the new key"


def test_secrets_that_a_dump_took_out_are_set_again(lab, redis, rgw, bucket):
    meta, c = redis.url(1), redis.client(1)
    lab.format(meta, "vol", rgw, bucket)
    c.set("setting", json.dumps({**setting(redis), "SecretKey": "removed"}, indent=0))
    assert lab.mount(meta, wait=False).p.wait(20) == 1
    config(lab, meta, "--secret-key", "env", env={"SECRET_KEY": rgw.KEY})
    lab.mount(meta, "again").stop()


@pytest.mark.parametrize("flags,word", [
    (["--trash-days", "-1"], "trash-days"), (["--trash-days", "soon"], "trash-days"), (["--capacity", "x"], "capacity"),
    (["--min-client-version", "new"], "version"), (["--tier", "4", "--tag", "a=b"], "tier"), (["--tag", "no pair"], "tag"),
    (["--tier", "1"], "tier"), (["--bucket", "/proc/nowhere"], "/proc/nowhere"), (["--storage", "ftp"], "ftp"),
])
def test_wrong_values_are_one_line_and_change_nothing(lab, redis, flags, word):
    meta = redis.url(1)
    lab.format(meta, "vol")
    before = redis.client(1).get("setting")
    r = config(lab, meta, *flags, "--yes", check=False)
    assert r.returncode == 1 and word in r.stderr and len(r.stderr.strip().splitlines()) == 1
    assert redis.client(1).get("setting") == before


def test_dangerous_changes_are_asked(lab, redis):
    meta = redis.url(1)
    lab.format(meta, "vol")
    m = lab.mount(meta)
    with open(m.path("f"), "wb") as f:
        f.write(os.urandom(100000))
    m.stop()
    before = redis.client(1).get("setting")
    for flags in (["--trash-days", "0"], ["--inodes", "1"], ["--max-client-version", "1.1.0"]):
        r = config(lab, meta, *flags, check=False, input="")
        assert r.returncode == 1 and "--yes" in r.stderr
        assert redis.client(1).get("setting") == before
        assert config(lab, meta, *flags, "--yes").returncode == 0
        redis.client(1).set("setting", before)
    assert config(lab, meta, "--max-client-version", "1.1.0", "--force").returncode == 0
    r = lab.mount(meta, "m2", wait=False)
    assert r.p.wait(20) == 1 and "1.1.0" in r.text()


def test_sums_begin_anew_when_they_are_switched_on(lab, redis, juicefs):
    meta, c = redis.url(1), redis.client(1)
    lab.format(meta, "vol")
    c.hset("dirQuota", "5", b"\0" * 16)
    r = config(lab, meta, "--dir-stats=false", check=False)
    assert r.returncode == 1 and "quota" in r.stderr
    c.delete("dirQuota")
    config(lab, meta, "--dir-stats=false")
    assert "DirStats" not in setting(redis)
    for key in ("dirUsedInodes", "dirUsedSpace", "dirDataLength", "userQuotaUsedSpace", "groupQuota"):
        c.hset(key, "5", "7")
    config(lab, meta, "--changelog", "--changelog-max-lines", "100")
    assert setting(redis)["ChangeLogMaxAge"] == 7200 and setting(redis)["ChangeLogMaxLines"] == 100
    config(lab, meta, "--dir-stats", "--user-group-quota")
    assert sorted(c.keys("*Quota*")) == [] and c.exists("dirDataLength") and not c.exists("dirUsedInodes", "dirUsedSpace")
    ops = [line.split(b"|")[1] for line in c.lrange("txnLog", 0, -1)]
    assert ops[-2:] == [b"INIT_ENABLE_DIRSTATS()", b"INIT_ENABLE_USERGROUPQUOTA()"]
    assert int(c.get("txnLastLog")) == len(ops)
    config(lab, meta, "--enable-acl")
    assert setting(redis)["EnableACL"] and setting(redis)["MinClientVersion"] == "1.2.0-A"
    assert config(lab, meta, "--enable-acl=false", check=False).returncode == 1
    assert config(lab, meta, "--min-client-version", "1.1.0", check=False).returncode == 1
    run([juicefs, "status", meta])


def test_tiers(lab, redis, juicefs):
    meta = redis.url(1)
    lab.format(meta, "vol", flags=["--storage-class", "STANDARD_IA", "--tag", "team=vision"])
    assert setting(redis)["Tiers"] == {"0": {"ID": 0, "StorageClass": "STANDARD_IA", "Tag": "team=vision"}}
    config(lab, meta, "--tier", "2", "--storage-class", "GLACIER", "--tag", "k=v")
    config(lab, meta, "--storage-class", "STANDARD")
    s = setting(redis)
    assert s["Tiers"]["2"] == {"ID": 2, "StorageClass": "GLACIER", "Tag": "k=v"} and s["MinClientVersion"] == "1.4.0-A"
    assert s["Tiers"]["0"]["StorageClass"] == "STANDARD" and s["StorageClass"] == "STANDARD"
    run([juicefs, "config", meta, "--tier", "1", "--tag", "x=y", "--yes"])
    assert setting(redis)["Tiers"]["1"]["Tag"] == "x=y" and "2" in setting(redis)["Tiers"]


def test_destroy(lab, redis, juicefs):
    meta, c = redis.url(1), redis.client(1)
    lab.format(meta, "vol")
    m = lab.mount(meta)
    for i in range(30):
        with open(m.path(f"f{i}"), "wb") as f:
            f.write(os.urandom(5000))
    uuid = setting(redis)["UUID"]
    c.set("somebody else's", "stays")
    c.set("k7_5000", 1)  # references as old clients counted them
    with open(f"{lab.folder}/objects/other", "w") as f:
        f.write("stays")
    r = lab.stoke("destroy", meta, uuid, "--yes", check=False)
    assert r.returncode == 1 and "mounted" in r.stderr
    m.stop()
    r = lab.stoke("destroy", meta, "0" * 36, "--yes", check=False)
    assert r.returncode == 1 and uuid in r.stderr
    r = lab.stoke("destroy", meta, uuid, check=False, input="")
    assert r.returncode == 1 and "--yes" in r.stderr and c.exists("setting")
    r = lab.stoke("destroy", meta, uuid, "--yes")
    assert "31 objects" in r.stdout, r.stdout
    assert c.keys("*") == [b"somebody else's"]
    left = [os.path.join(p, f) for p, _, files in os.walk(f"{lab.folder}/objects") for f in files]
    assert left == [f"{lab.folder}/objects/other"]
    c.delete("somebody else's")
    run([juicefs, "format", meta, "anew", "--bucket", f"{lab.folder}/objects"])


def test_destroy_of_s3_and_shards(lab, redis, rgw, bucket):
    meta, c = redis.url(1), redis.client(1)
    lab.format(meta, "vol", rgw, bucket + "-%d", flags=["--shards", "3", "--block-size", "64K"])
    m = lab.mount(meta)
    with open(m.path("f"), "wb") as f:
        f.write(os.urandom(3 << 20))
    m.stop()
    s3 = rgw.client()
    counts = [len(s3.list_objects_v2(Bucket=f"{bucket}-{i}").get("Contents", [])) for i in range(3)]
    assert sum(counts) == 49 and min(counts) > 5
    lab.stoke("destroy", meta, setting(redis)["UUID"], "--yes")
    assert [s3.list_objects_v2(Bucket=f"{bucket}-{i}").get("KeyCount") for i in range(3)] == [0, 0, 0] and c.keys("*") == []


def test_debug_collects_without_secrets(lab, redis):
    password = "hidden-from-all"
    locked = lab.redis("locked", password=password)
    meta = locked.url(1)
    lab.format(meta, "vol", env={"SECRET_KEY": "very-secret", "ACCESS_KEY": "me"})
    log = f"{lab.folder}/the-log"
    m = lab.mount(meta, flags=["--log", log])
    out = f"{lab.folder}/debug"
    for what in (m.dir, meta):
        r = lab.stoke("debug", "--out-dir", out, "--stats-sec", "0", "--limit", "3", what)
        archive = r.stdout.strip()
        assert archive.endswith(".tar.gz") and os.stat(archive).st_mode & 0o777 == 0o600
        folder = archive[:-len(".tar.gz")]
        assert os.stat(folder).st_mode & 0o777 == 0o700
        names = set(os.listdir(folder))
        want = {"config.json", "mount.json", "process.txt", "stats-1.txt", "stats-2.txt", "log.txt"} if what == m.dir else \
            {"setting.json", "sessions.json", "redis.txt"}
        assert names == want | {"system.txt"}
        for name in names:
            assert os.stat(f"{folder}/{name}").st_mode & 0o777 == 0o600
            with open(f"{folder}/{name}") as f:
                text = f.read()
            assert text and "very-secret" not in text and password not in text
            if name == "log.txt":
                with open(log) as f:
                    assert text == "".join(f.readlines()[-3:])
    r = lab.stoke("debug", "--out-dir", out, "/nowhere", check=False)
    assert r.returncode == 1 and "/nowhere" in r.stderr
