# SPDX-License-Identifier: Apache-2.0
"""Maintenance commands, with the real JuiceFS on the same volumes: what one dumps the other loads, what is damaged is found, what is
left over goes, and what trees are asked of a mount."""
import csv
import gzip
import json
import os
import re
import subprocess
import time

import pytest
from conftest import GOLDEN
from lab import run, wait_for, write_file
from test_golden import compare, keys_of, load

DUMPED = ["plain", "acl", "quotas", "pending", "sessions", "old-client", "tiers", "changelog", "damaged"]


def objects(lab, variant):
    root = f"{lab.folder}/bucket-{variant}"
    return {os.path.relpath(os.path.join(p, f), root).split("/", 1)[1] for p, _, files in os.walk(root) for f in files}


def text(path):
    with open(path, "rb") as f:
        return f.read()


# --- dump and load ---

@pytest.mark.parametrize("variant", DUMPED)
def test_a_dump_is_that_of_juicefs(lab, redis, juicefs, variant):
    meta = load(lab, redis, variant)
    before = keys_of(redis)
    lab.stoke("dump", meta, f"{lab.folder}/ours.json")
    run([juicefs, "dump", meta, f"{lab.folder}/theirs.json"], env=lab.env)
    # of holes they dump an offset that means nothing
    theirs = re.sub(rb'("id":0,[^}]*"size":0),"off":\d+', rb"\1", text(f"{lab.folder}/theirs.json"))
    assert text(f"{lab.folder}/ours.json") == theirs
    assert keys_of(redis) == before


@pytest.mark.parametrize("variant", ["plain", "acl", "quotas", "pending", "sessions"])
def test_what_one_dumps_the_other_loads(lab, redis, juicefs, variant):
    meta = load(lab, redis, variant)
    lab.stoke("dump", meta, f"{lab.folder}/ours.json.gz")
    run([juicefs, "dump", meta, f"{lab.folder}/theirs.json.gz"], env=lab.env)
    with gzip.open(f"{lab.folder}/ours.json.gz") as f:
        json.load(f)
    run([juicefs, "load", redis.url(1), f"{lab.folder}/ours.json.gz"], env=lab.env)
    lab.stoke("load", redis.url(2), f"{lab.folder}/theirs.json.gz")
    ours, theirs = keys_of(redis, 2), keys_of(redis, 1)
    # theirs give numbers again that were given before, and count references of holes
    for k in (b"nextinode", b"nextchunk", b"nextsession"):
        assert int(ours.pop(k)) >= int(theirs.pop(k))
    theirs.get(b"sliceRef", {}).pop(b"k0_0", None)
    assert ours.keys() == theirs.keys()
    trash = b"i9223372032828243968"
    if variant == "sessions":  # it has no trash: JuiceFS makes one of mode 0
        assert ours.pop(trash) != theirs.pop(trash)
    if variant == "acl":  # rules are numbered in the order in which they come
        assert sorted(ours.pop(b"acl").values()) == sorted(theirs.pop(b"acl").values())
        ours = {k: v[:71] if k[:1] == b"i" else v for k, v in ours.items()}
        theirs = {k: v[:71] if k[:1] == b"i" else v for k, v in theirs.items()}
    assert ours == theirs
    # and both look like the volume that was dumped
    for db in (1, 2):
        m = lab.mount(redis.url(db), f"m{db}", flags=["--read-only", "--enable-xattr"])
        # a name of an xattr that is not UTF-8 is lost in JuiceFS's format
        ignored = {"plain": "statfs,xattrs,nlink,info", "sessions": "statfs,info,trash"}.get(variant, "statfs,info")
        compare(m.dir, variant, "--ignore", ignored)
        assert m.stop() == 0
    for db in (1, 2):
        assert "things are wrong" not in lab.stoke("fsck", redis.url(db), "--sync-dir-stat").stdout


def test_a_dump_of_a_part_and_without_the_trash(lab, redis, juicefs):
    meta = load(lab, redis, "plain")
    for flags in (["--subdir", "/links"], ["--skip-trash"]):
        ours = lab.stoke("dump", meta, *flags).stdout
        theirs = run([juicefs, "dump", meta, f"{lab.folder}/part.json", *flags], env=lab.env) and text(f"{lab.folder}/part.json").decode()
        a, b = json.loads(ours), json.loads(theirs)
        assert a["FSTree"].keys() == b["FSTree"].keys() and ("Trash" in a) == ("Trash" in b) and a["Counters"] == b["Counters"]
    lab.stoke("load", redis.url(1), input=lab.stoke("dump", meta, "--subdir", "/links").stdout)
    m = lab.mount(redis.url(1), flags=["--read-only"])
    assert os.path.samefile(m.path("two"), m.path("a/two-again")) or sorted(os.listdir(m.dir))
    assert lab.stoke("dump", meta, "--subdir", "/nothing", check=False).returncode == 1


def test_secrets_leave_only_when_told(lab, redis):
    folder = f"{GOLDEN}/s3-setting"
    setting = next(text(f"{folder}/{n}") for n in sorted(os.listdir(folder)) if b'"SecretKey"' in text(f"{folder}/{n}"))
    rows = [json.loads(line) for line in setting.splitlines() if line.startswith(b"{") and b'"key"' in line]
    raw = None
    if rows:
        import base64
        raw = next(base64.b64decode(r["value"]) for r in rows if r["key"] == "setting")
    else:
        raw = setting
    c = redis.client()
    c.set("setting", raw)
    plain, kept = (json.loads(lab.stoke("dump", redis.url(), *f).stdout)["Setting"] for f in ([], ["--keep-secret-key"]))
    assert plain["SecretKey"] == "removed" and kept["SecretKey"] == json.loads(raw)["SecretKey"]


def test_load_refuses_what_is_not_empty_and_what_is_no_dump(lab, redis):
    meta = load(lab, redis, "plain")
    lab.stoke("dump", meta, f"{lab.folder}/d.json")
    r = lab.stoke("load", meta, f"{lab.folder}/d.json", check=False)
    assert r.returncode == 1 and "is used by volume golden-plain" in r.stderr
    redis.client(1).set("stray", 1)
    r = lab.stoke("load", redis.url(1), f"{lab.folder}/d.json", check=False)
    assert r.returncode == 1 and "is not empty" in r.stderr
    whole = text(f"{lab.folder}/d.json")
    bad = {"cut": whole[:len(whole) // 2], "words": b"hello", "name": whole.replace(b'"two%20words"', b'"two%2Fwords"'),
           "number": whole.replace(b'"mode":420', b'"mode":-1'), "zstd": b"\x28\xb5\x2f\xfd" + whole[:100],
           "binary": b"\0\0\0\1" + b"\0" * 7 + b"\x10" + whole[:100], "empty": b""}
    for i, (name, data) in enumerate(bad.items()):
        with open(f"{lab.folder}/{name}", "wb") as f:
            f.write(data)
        r = lab.stoke("load", redis.url(2 + i), f"{lab.folder}/{name}", check=False)
        assert r.returncode == 1 and len(r.stderr.splitlines()) == 1, (name, r.stderr)
        # what is half there cannot be mounted
        assert redis.client(2 + i).get("setting") is None
        assert redis.client(2 + i).dbsize() == 0 or "FLUSHDB" in r.stderr


def test_a_loaded_volume_is_another_one_to_the_caches(lab, redis):
    lab.format(redis.url(1), "vol")
    m = lab.mount(redis.url(1))
    write_file(m.path("f"), b"x" * 5000)
    assert m.stop() == 0
    lab.stoke("dump", redis.url(1), f"{lab.folder}/d.json")
    before = redis.client(1).get("_gen")
    lab.stoke("load", redis.url(2), f"{lab.folder}/d.json")
    assert before and redis.client(2).get("_gen") is None
    m = lab.mount(redis.url(2))
    assert text(m.path("f")) == b"x" * 5000
    write_file(m.path("g"), b"y" * 5000)
    assert m.stop() == 0
    assert redis.client(2).get("_gen") not in (None, before)


# --- fsck ---

@pytest.mark.parametrize("variant", ["plain", "pending", "sessions", "quotas"])
def test_a_sound_volume_is_sound(lab, redis, variant):
    meta = load(lab, redis, variant)
    before = keys_of(redis)
    r = lab.stoke("fsck", meta, "--sync-dir-stat")
    # what waits in delfiles is no loss, and nothing is leaked
    assert "wrong" not in r.stdout and "inode" not in r.stdout
    assert keys_of(redis) == before


def test_damage_is_found_also_what_is_too_short(lab, redis):
    meta = load(lab, redis, "damaged")
    r = lab.stoke("fsck", meta, check=False)
    assert r.returncode == 1
    found = sorted(line for line in r.stdout.splitlines() if line.startswith("inode"))
    assert found == ["inode 4 /missing-first: object golden-damaged/chunks/0/0/3_0_65536 is missing",
                     "inode 5 /missing-second: object golden-damaged/chunks/0/0/4_1_65536 is missing",
                     "inode 6 /truncated: object golden-damaged/chunks/0/0/5_2_18928 has 1000 bytes, not 18928",
                     "inode 8 /dir/shares-missing: object golden-damaged/chunks/0/0/4_1_65536 is missing"]
    assert "4 objects are lost or damaged (215536 bytes) in 4 files" in r.stdout
    r = lab.stoke("fsck", meta, "--path", "/dir", "-r", check=False)
    assert r.returncode == 1 and "/shares-missing" in r.stdout and "/truncated" not in r.stdout
    assert lab.stoke("fsck", meta, "--path", "/sound", check=False).returncode in (0, 1)


def test_a_tree_that_leads_back_to_itself_ends(lab, redis):
    meta = load(lab, redis, "plain")
    c = redis.client()
    files = int.from_bytes(c.hget("d1", "files")[1:], "big")
    c.hset(f"d{files}", "..", b"\2" + (1).to_bytes(8, "big"))
    c.hset(f"d{files}", "itself", b"\2" + files.to_bytes(8, "big"))
    r = lab.stoke("fsck", meta, "--path", "/", "-r", check=False, timeout=20)
    assert r.returncode == 1 and f"inode {files} /files: 2 of its entries are damaged" in r.stdout, r.stdout
    for command in (["fsck", meta], ["gc", meta]):
        lab.stoke(*command, check=False, timeout=20)
    r = lab.stoke("dump", meta, f"{lab.folder}/ring.json", timeout=20)
    assert f"2 entries of directory {files} are damaged" in r.stderr
    lab.stoke("load", redis.url(5), f"{lab.folder}/ring.json")
    # what sums up, removes or clones says so instead of going round
    c.hset("dirQuota", files, b"\xff" * 16)
    c.hset("dirQuotaUsedSpace", files, 0)
    c.hset("dirQuotaUsedInodes", files, 0)
    r = lab.stoke("quota", "check", meta, "--path", "/files", check=False, timeout=20)
    assert r.returncode == 1 and f"directory {files} lies in itself" in r.stderr and "the volume is damaged" in r.stderr, r.stderr
    m = lab.mount(meta, "m1")
    for command in (["rmr", m.path("files")], ["clone", m.path("files"), m.path("copy")]):
        assert lab.stoke(*command, check=False, timeout=20).returncode == 1
    assert not os.path.lexists(m.path("copy"))


@pytest.mark.parametrize("part,value", [("Counters", 5), ("chunks", [5]), ("chunks", [{"index": 0, "slices": 5}]),
                                        ("chunks", [{"index": 0, "slices": [5]}]), ("xattrs", 5), ("posix_acl_access", "x")])
def test_a_dump_with_another_type_is_refused(lab, redis, part, value):
    meta = load(lab, redis, "plain")
    lab.stoke("dump", meta, f"{lab.folder}/d.json")
    dump = json.loads(text(f"{lab.folder}/d.json"))

    def file(of):
        return next(f for e in of["entries"].values() for f in [file(e) if e.get("entries") else e if e.get("chunks") else None] if f)
    (dump if part in dump else file(dump["FSTree"]))[part] = value
    with open(f"{lab.folder}/d.json", "w") as f:
        json.dump(dump, f)
    r = lab.stoke("load", redis.url(5), f"{lab.folder}/d.json", check=False)
    assert r.returncode == 1 and len(r.stderr.strip().splitlines()) == 1, r.stderr


def test_a_counter_at_its_end_is_dumped_as_it_is(lab, redis):
    meta = load(lab, redis, "plain")
    redis.client().set("nextchunk", str(2**63 - 1))
    assert json.loads(lab.stoke("dump", meta).stdout)["Counters"]["nextChunk"] == 2**63 - 1


def test_what_cannot_be_written_is_no_success(lab, redis):
    meta = load(lab, redis, "plain")
    for command in (["status", meta], ["config", meta], ["gc", meta], ["dump", "--help"], ["help"]):
        with open("/dev/full", "w") as full:
            r = subprocess.run([f"{lab.bin}/stoke", *command], stdout=full, stderr=subprocess.PIPE, text=True, env=lab.env)
        assert r.returncode == 1 and "cannot write" in r.stderr


def test_directories_are_repaired_so_that_juicefs_agrees(lab, redis, juicefs):
    meta = load(lab, redis, "plain")
    c = redis.client()
    files, clone = (int.from_bytes(c.hget("d1", n)[1:], "big") for n in ("files", "clone-of-links"))
    c.hdel("dirUsedSpace", files)
    c.delete(f"i{clone}")
    root = c.get("i1")
    c.set("i1", root[:47] + (99).to_bytes(4, "big") + root[51:])
    r = lab.stoke("fsck", meta, check=False)
    assert r.returncode == 1
    for line in (f"inode {files} /files: its statistics are missing or negative", "inode 1 /: it has 99 links, not 21",
                 f"inode {clone} /clone-of-links: its attributes are missing"):
        assert line in r.stdout
    assert run([juicefs, "fsck", meta, "--path", "/", "-r"], check=False, env=lab.env).returncode == 1
    assert lab.stoke("fsck", meta, "--repair", check=False).returncode == 2
    c.incrby("usedSpace", 4096)
    r = lab.stoke("fsck", meta, "--path", "/", "-r", "--repair", "--sync-dir-stat")
    assert "repaired" in r.stdout
    assert "wrong" not in lab.stoke("fsck", meta, "--sync-dir-stat").stdout
    run([juicefs, "fsck", meta, "--path", "/", "-r", "--sync-dir-stat"], env=lab.env)
    assert int(c.get("usedSpace")) == 840937472


# --- gc ---

def test_gc_of_what_is_pending(lab, redis, juicefs):
    meta = load(lab, redis, "pending")
    with open(f"{GOLDEN}/pending/expected.json") as f:
        expected = json.load(f)["gc --delete"]
    before, was = keys_of(redis), objects(lab, "pending")
    r = lab.stoke("gc", meta)
    assert re.search(r"leaked objects +4 ", r.stdout) and re.search(r"deleted files pending +2 ", r.stdout)
    assert "leaked lists of chunks: 0" in r.stdout
    assert keys_of(redis) == before and objects(lab, "pending") == was
    lab.stoke("gc", meta, "--delete")
    now = keys_of(redis)
    assert {k.decode() for k in before} - {k.decode() for k in now} == set(expected["keys_removed"])
    assert was - objects(lab, "pending") == set(expected["objects_removed"])
    again = lab.stoke("gc", meta, "--delete").stdout
    assert "deleted 0 leaked objects" in again
    assert " 0 leaked" in run([juicefs, "gc", meta], env=lab.env).stdout
    m = lab.mount(meta, flags=["--read-only"])
    compare(m.dir, "pending", "--ignore", "statfs,info")


def test_gc_compacts_and_the_bytes_stay(lab, redis, juicefs):
    meta = load(lab, redis, "many-slices")
    r = lab.stoke("gc", meta, "--compact")
    assert "compacted" in r.stdout
    m = lab.mount(meta, flags=["--read-only"])
    compare(m.dir, "many-slices", "--ignore", "statfs,info")
    assert m.stop() == 0
    assert "wrong" not in lab.stoke("fsck", meta).stdout
    run([juicefs, "fsck", meta], env=lab.env)


def test_gc_leaves_young_objects_and_finds_lost_records(lab, redis, file_volume):
    m = lab.mount(file_volume)
    os.mkdir(m.path("d"))
    write_file(m.path("d/f"), b"x" * 10000)
    assert m.stop() == 0
    c = redis.client(1)
    leaked = f"{lab.folder}/objects/vol/chunks/0/7/7000_0_100"
    os.makedirs(os.path.dirname(leaked), exist_ok=True)
    write_file(leaked, b"y" * 100)
    assert re.search(r"skipped \(younger than 1 h\) +1 ", lab.stoke("gc", file_volume, "--delete").stdout) and os.path.exists(leaked)
    os.utime(leaked, (time.time() - 7200,) * 2)
    # a record that no directory names, two hours old, and a list of a file that is not there
    inode = int(c.get("nextinode")) + 5
    d = int.from_bytes(c.hget("d1", "d")[1:], "big")
    f = int.from_bytes(c.hget(f"d{d}", "f")[1:], "big")
    record = c.get(f"i{f}")
    old = (int(time.time()) - 7200).to_bytes(8, "big")
    c.set(f"i{inode}", record[:35] + old + record[43:])
    c.rpush(f"c{inode + 1}_0", *c.lrange(f"c{f}_0", 0, -1))
    c.hincrby("sliceRef", "k%d_10000" % int.from_bytes(c.lindex(f"c{f}_0", 0)[4:12], "big"), 1)
    r = lab.stoke("gc", file_volume)
    assert "leaked lists of chunks: 1, leaked inodes: 1" in r.stdout and re.search(r"leaked objects +1 ", r.stdout)
    lab.stoke("gc", file_volume, "--delete")
    assert not os.path.exists(leaked) and not c.exists(f"i{inode}") and not c.exists(f"c{inode + 1}_0")
    m = lab.mount(file_volume, flags=["--read-only"])
    assert text(m.path("d/f")) == b"x" * 10000
    assert "wrong" not in lab.stoke("fsck", file_volume).stdout


def entry_inode(c, name, parent=1):
    return int.from_bytes(c.hget(f"d{parent}", name)[1:], "big")


def test_a_number_that_was_given_twice_loses_nothing(lab, redis, file_volume):
    """a database that went back gives a slice's number once more: both sizes are live"""
    m = lab.mount(file_volume)
    write_file(m.path("first"), b"x" * 10000)
    write_file(m.path("second"), b"y" * 5000)
    assert m.stop() == 0
    c = redis.client(1)
    first, second = (c.lindex(f"c{entry_inode(c, n)}_0", 0) for n in ("first", "second"))
    numbers = [int.from_bytes(r[4:12], "big") for r in (first, second)]
    c.delete(f"c{entry_inode(c, 'second')}_0")
    c.rpush(f"c{entry_inode(c, 'second')}_0", second[:4] + first[4:12] + second[12:])
    root = f"{lab.folder}/objects/vol/chunks"
    a, b = (f"{root}/0/0/{n}_0_{size}" for n, size in ((numbers[0], 5000), (numbers[1], 5000)))
    os.rename(b, a)
    for path in (a, f"{root}/0/0/{numbers[0]}_0_10000"):
        os.utime(path, (time.time() - 7200,) * 2)
    r = lab.stoke("gc", file_volume, "--delete")
    assert f"slice {numbers[0]} is there with" in r.stdout + r.stderr and "given twice" in r.stdout + r.stderr
    assert "deleted 0 leaked objects" in r.stdout
    r = lab.stoke("fsck", file_volume, check=False)
    assert r.returncode == 1 and "given twice" in r.stdout and "missing" not in r.stdout
    m = lab.mount(file_volume, flags=["--read-only"])
    assert text(m.path("first")) == b"x" * 10000 and text(m.path("second")) == b"y" * 5000


def test_a_record_that_stands_twice_is_told_and_counted(lab, redis, file_volume):
    """a write that was committed twice, a copy whose reference was lost: removing one place must not take the data of the other"""
    m = lab.mount(file_volume)
    for name in ("a", "b", "c"):
        write_file(m.path(name), name.encode() * 5000)
    assert m.stop() == 0
    c = redis.client(1)
    a, b = (f"c{entry_inode(c, n)}_0" for n in "ab")
    record = c.lindex(a, 0)
    number = int.from_bytes(record[4:12], "big")
    assert "places" not in lab.stoke("fsck", file_volume).stdout
    c.rpush(b, record)
    c.hset("delSlices", "9_1", record[4:16])
    r = lab.stoke("fsck", file_volume, check=False)
    what = f"slice {number} of 5000 bytes stands in 3 places, but 1 are counted"
    assert r.returncode == 1 and what in r.stdout and "1 things are wrong" in r.stdout, r.stdout
    r = lab.stoke("gc", file_volume)
    assert what in r.stdout and c.hget("sliceRef", f"k{number}_5000") is None
    # what was given up long ago goes, the data stays
    assert what in lab.stoke("gc", file_volume, "--delete").stdout
    assert not c.exists("delSlices") and c.hget("sliceRef", f"k{number}_5000") == b"1"
    assert "places" not in lab.stoke("fsck", file_volume).stdout
    m = lab.mount(file_volume, flags=["--read-only"])
    assert text(m.path("a")) == b"a" * 5000 and text(m.path("b")) == b"a" * 5000


def test_findings_cost_no_reading_of_their_directory_each(lab, redis, file_volume):
    """every object of a directory of files is gone: their names are found together"""
    m = lab.mount(file_volume)
    os.makedirs(m.path("deep/er"))
    for i in range(3000):
        write_file(m.path(f"deep/er/f{i}"), b"x")
    os.link(m.path("deep/er/f7"), m.path("another name"))
    assert m.stop() == 0
    for p, _, files in os.walk(f"{lab.folder}/objects/vol/chunks"):
        for f in files:
            os.unlink(f"{p}/{f}")
    c = redis.client(1)
    c.config_resetstat()
    r = lab.stoke("fsck", file_volume, check=False)
    calls = {k: v["calls"] for k, v in c.info("commandstats").items()}
    found = re.findall(r"^inode \d+ (/.*): object vol/chunks/\S+ is missing$", r.stdout, re.M)
    assert r.returncode == 1 and "3000 objects are lost or damaged (3000 bytes) in 3000 files" in r.stdout
    assert {f"/deep/er/f{i}" for i in range(3000) if i != 7} < set(found) and len(found) == 3000
    assert {"/deep/er/f7", "/another name"} & set(found)
    # the walk through the tree, and once more each directory on the way
    assert calls["cmdstat_hscan"] < 30, calls


def test_gc_moves_references_of_old_clients(lab, redis, file_volume):
    c = redis.client(1)
    c.hset("sliceRef", "k9_100", 1)
    for key, value in (("k7_5000", 2), ("k8_5000", -1), ("k9_100", 3), ("k10_1", 0), ("kept", "x")):
        c.set(key, value)
    lab.stoke("gc", file_volume)
    assert c.get("k7_5000") == b"2"
    assert "moved to sliceRef: 4" in lab.stoke("gc", file_volume, "--delete").stdout
    assert sorted(c.keys("k*")) == [b"kept"]
    assert c.hgetall("sliceRef") == {b"k7_5000": b"2", b"k9_100": b"4"}


# --- asked of a mount ---

def fields(out):
    return {k.strip(): v.strip() for k, v in (line.split(":", 1) for line in out.splitlines() if re.match(r" *\w+: ", line))}


def test_info_and_summary_as_juicefs_shows_them(lab, redis, juicefs):
    meta = load(lab, redis, "plain")
    ours, theirs = lab.mount(meta, flags=["--read-only"]), lab.juice_mount(juicefs, meta, flags=["--read-only"])
    for path in ("files/4m", "links/two", "files", "files/cross-chunk"):
        a = lab.stoke("info", ours.path(path)).stdout
        b = run([juicefs, "info", theirs.path(path)], env=lab.env).stdout
        fa, fb = fields(a), fields(b)
        for k in ("inode", "files", "dirs", "path"):
            assert fa.get(k) == fb.get(k), (path, k)
        assert sorted(re.findall(r"^\t(/.*)", a, re.M)) == sorted(re.findall(r"^\t(/.*)", b, re.M))
        for k in ("length", "size"):
            assert re.search(r"\d+ Bytes", fa[k])[0] == re.search(r"\d+ Bytes", fb[k])[0]
        assert re.findall(r"chunks/\d+/\d+/\S+", a) == re.findall(r"chunks/\d+/\d+/\S+", b)
    assert fields(lab.stoke("info", "-r", ours.path("links")).stdout)["files"] == "19"
    inode = os.stat(ours.path("files/4m")).st_ino
    r = subprocess.run([f"{lab.bin}/stoke", "info", "-i", str(inode)], cwd=ours.dir, text=True, capture_output=True, env=lab.env)
    assert r.returncode == 0 and "path: /files/4m" in r.stdout
    assert "sliceId" in lab.stoke("info", "--raw", ours.path("files/4m")).stdout
    for argv in (["--depth", "1", "--entries", "3"], ["--depth", "0"], ["--depth", "2", "--entries", "4"]):
        a = lab.stoke("summary", "--csv", *argv, ours.path("")).stdout
        b = run([juicefs, "summary", "--strict", "--csv", *argv, theirs.dir], env=lab.env).stdout
        rows = [sorted(r[1:] for r in csv.reader(x.splitlines()) if len(r) == 4) for x in (a, b)]
        assert rows[0] == rows[1], argv
    assert "not in a Stoke mount" in lab.stoke("info", lab.folder, check=False).stderr
    assert lab.stoke("info", ours.path("nothing"), check=False).returncode == 1


def test_trees_go_are_cloned_and_come_back(lab, redis, juicefs, file_volume):
    m = lab.mount(file_volume, flags=["--attr-cache", "60", "--entry-cache", "60", "--dir-entry-cache", "60"])
    os.makedirs(m.path("a/b/c"))
    for i in range(30):
        write_file(m.path(f"a/b/f{i}"), b"%d" % i * 100)
    os.chmod(m.path("a/b"), 0o700)
    os.chown(m.path("a/b"), 1000, 1000)
    assert os.path.exists(m.path("a/b/f7")) and not os.path.exists(m.path("copy"))
    lab.stoke("clone", m.path("a"), m.path("copy"))
    os.mkdir(m.path("other"))
    lab.stoke("clone", "-p", m.path("a/b"), m.path("other/"))
    # the kernel, which knew that the names were not there, sees them at once
    assert text(m.path("copy/b/f7")) == b"7" * 100
    assert os.stat(m.path("copy/b")).st_uid == 0
    kept = os.stat(m.path("other/b"))
    assert (kept.st_uid, kept.st_mode & 0o777) == (1000, 0o700)
    r = lab.stoke("clone", m.path("a"), m.path("copy"), check=False)
    assert r.returncode == 1 and "File exists" in r.stderr
    r = lab.stoke("rmr", m.path("a"), m.path("nothing"), check=False)
    assert r.returncode == 1 and "removed" in r.stdout and not os.path.exists(m.path("a")) and not os.path.exists(m.path("a/b/f7"))
    assert lab.stoke("rmr", m.dir, check=False).returncode == 1 and os.path.exists(m.path("copy"))
    hour, = os.listdir(m.path(".trash"))
    r = lab.stoke("restore", file_volume, hour)
    assert "restored 32 entries, 1 need --put-back" in r.stdout
    r = lab.stoke("restore", file_volume, hour, "--put-back")
    assert "restored 1 entries" in r.stdout and text(m.path("a/b/f7")) == b"7" * 100
    assert lab.stoke("restore", file_volume, "2001-01-01-01", check=False).returncode == 1
    lab.stoke("rmr", "--skip-trash", m.path("copy"))
    assert os.listdir(m.path(f".trash/{hour}")) == []
    assert m.stop() == 0
    assert "wrong" not in lab.stoke("fsck", file_volume, "--sync-dir-stat").stdout
    run([juicefs, "fsck", file_volume], env=lab.env)


def test_compact_of_a_tree(lab, redis, file_volume):
    m = lab.mount(file_volume)
    os.mkdir(m.path("d"))
    fd = os.open(m.path("d/f"), os.O_RDWR | os.O_CREAT)
    want = bytearray(20 * 500 + 500)
    for i in range(20):
        os.pwrite(fd, b"%c" % (65 + i) * 1000, i * 500)
        want[i * 500:i * 500 + 1000] = b"%c" % (65 + i) * 1000
        os.fsync(fd)
    os.close(fd)
    c = redis.client(1)
    inode = os.stat(m.path("d/f")).st_ino
    assert c.llen(f"c{inode}_0") > 1
    assert "1 chunks" in lab.stoke("compact", m.path("d")).stdout
    assert c.llen(f"c{inode}_0") == 1
    m.drop_caches()
    assert text(m.path("d/f")) == bytes(want)


def named(pid, name):
    """threads of a process by the beginning of their name"""
    n = 0
    for t in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{t}/comm") as f:
            n += f.read().startswith(name)
    return n


def test_threads_are_as_many_as_were_asked_for(lab, redis, file_volume):
    m = lab.mount(file_volume)
    for d in range(12):
        os.mkdir(m.path(f"d{d}"))
        for i in range(2):
            with open(m.path(f"d{d}/f{i}"), "wb") as f:
                for piece in range(3):
                    f.write(b"x" * 1000)
                    f.flush()
                    os.fsync(f.fileno())
    os.mkdir(m.path("all"))
    for d in range(12):
        os.rename(m.path(f"d{d}"), m.path(f"all/d{d}"))
    c = redis.client(1)

    def at_work(argv, name, n, of=None):
        """changes are let through by and by, so that all who are to make them are seen"""
        def seen():
            c.execute_command("CLIENT", "UNPAUSE")
            time.sleep(0.001)
            c.execute_command("CLIENT", "PAUSE", 60000, "WRITE")
            return named(of or p.pid, name) == n
        c.execute_command("CLIENT", "PAUSE", 60000, "WRITE")
        p = subprocess.Popen([f"{lab.bin}/stoke", *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=lab.env)
        try:
            wait_for(f"{n} threads {name}", seen)
        finally:
            c.execute_command("CLIENT", "UNPAUSE")
            out = p.communicate(timeout=60)[0]
        assert p.returncode == 0, out
        return out

    assert "24 chunks" in at_work(["compact", "--threads", "7", m.path("all")], "squeeze", 7, m.pid)
    at_work(["clone", "--threads", "9", m.path("all"), m.path("more")], "meta-tree", 8, m.pid)
    at_work(["rmr", "-p", "6", m.path("all")], "meta-tree", 5, m.pid)
    hour, = os.listdir(m.path(".trash"))
    assert "restored 37 entries" in at_work(["restore", "--put-back", "--threads", "5", file_volume, hour], "restore", 4)
    assert len(os.listdir(m.path("all"))) == 12 and text(m.path("all/d7/f1")) == b"x" * 3000
    for command in ("dump", "load", "quota", "info", "summary"):
        assert "JuiceFS's sake" not in lab.stoke(command, "--help").stdout
    assert m.stop() == 0
    assert "wrong" not in lab.stoke("fsck", file_volume, "--sync-dir-stat").stdout


# --- quotas ---

def test_quotas_that_juicefs_sees(lab, redis, juicefs):
    meta = load(lab, redis, "quotas")
    rows = {line.split("|")[1].strip(): [w.strip() for w in line.split("|")[2:-1]]
            for line in lab.stoke("quota", "list", meta).stdout.splitlines() if line.startswith("|")}
    assert rows["/limited"] == ["1.0 GiB", "108.0 KiB", "0%", "50", "15", "30%"] and rows["uid:1000"][3:] == ["30", "6", "20%"]
    assert lab.stoke("quota", "check", meta).stdout.count("is consistent") == 5
    lab.stoke("quota", "set", meta, "--path", "/new/deep", "--create", "--capacity", "2")
    lab.stoke("quota", "set", meta, "--path", "/full", "--inodes", "10")
    lab.stoke("quota", "delete", meta, "--gid", "2000")
    r = run([juicefs, "quota", "list", meta], env=lab.env).stdout
    assert re.search(r"/new/deep +\| +2.0 GiB", r) and re.search(r"/full .* 10 \| +3 \|", r) and "gid:2000" not in r
    redis.client().hincrby("dirQuotaUsedSpace", int.from_bytes(redis.client().hget("d1", "full")[1:], "big"), 4096)
    r = lab.stoke("quota", "check", meta, "--path", "/full", check=False)
    assert r.returncode == 1 and "says 16384 bytes" in r.stdout
    lab.stoke("quota", "check", meta, "--path", "/full", "--repair")
    assert "is consistent" in lab.stoke("quota", "check", meta, "--path", "/full").stdout
    for argv in (["get"], ["set", "--path", "/full"], ["what"], ["set", "--uid", "x", "--inodes", "1"]):
        assert lab.stoke("quota", argv[0], meta, *argv[1:], check=False).returncode == 2, argv
    assert lab.stoke("quota", "get", meta, "--path", "/nothing", check=False).returncode == 1


def test_passwords_are_blanked_and_wrong_ones_told(lab):
    r = lab.redis("secret", password="hunter2")
    lab.format(r.url(1), "vol")
    for argv in (["dump"], ["fsck"], ["gc"], ["quota", "list"]):
        done = lab.stoke(*argv, r.url(1))
        assert "hunter2" not in done.stdout + done.stderr
        bad = lab.stoke(*argv, r.url(1).replace("hunter2", "wrong"), check=False)
        assert bad.returncode == 1 and "wrong" not in bad.stdout and len(bad.stderr.splitlines()) == 1
