# SPDX-License-Identifier: Apache-2.0
"""What Stoke writes the real JuiceFS reads, and the other way round, both mounted at once; afterwards JuiceFS finds nothing to repair."""
import os
import stat
import time

import pytest
from lab import noise, run, sha256, wait_for, write_file

B = 4 << 20


def fsck_clean(juicefs, lab, meta):
    r = run([juicefs, "fsck", meta], check=False, env=lab.env)
    assert r.returncode == 0, r.stdout[-3000:]
    r = run([juicefs, "fsck", meta, "--path", "/", "-r", "--sync-dir-stat"], check=False, env=lab.env)
    assert r.returncode == 0 and "should be" not in r.stdout.lower(), r.stdout[-3000:]
    r = run([juicefs, "gc", meta], check=False, env=dict(lab.env, JFS_GC_SKIPPEDTIME="0"))
    assert r.returncode == 0, r.stdout[-3000:]
    for word in ("leaked objects", "leaked"):
        for line in r.stdout.splitlines():
            if word in line.lower():
                assert "0 leaked" in line.lower() or "leaked: 0" in line.lower() or "0 bytes" in line.lower(), line


def describe(root):
    """path -> everything stat, readlink, content and xattrs tell, times of directories left out (they move with a 100 ms grain)"""
    out = {}
    for folder, dirs, files in os.walk(root):
        if folder == root:
            dirs[:] = [d for d in dirs if not d.startswith(".")]
            files = [f for f in files if not f.startswith(".")]
        for name in dirs + files:
            p = os.path.join(folder, name)
            st = os.lstat(p)
            what = [st.st_ino, st.st_mode, st.st_uid, st.st_gid, st.st_nlink, st.st_size]
            if stat.S_ISREG(st.st_mode):
                what += [sha256(p), st.st_mtime_ns, {x: os.getxattr(p, x) for x in os.listxattr(p)}]
            elif stat.S_ISLNK(st.st_mode):
                what.append(os.readlink(p))
            out[os.path.relpath(p, root)] = what
    return out


def make_everything(root):
    os.makedirs(f"{root}/dir/sub")
    for i, size in enumerate((0, 1, 4095, B - 1, B, B + 1, 9 * B + 77)):
        write_file(f"{root}/dir/f{size}", noise(size, i))
    with open(f"{root}/dir/sparse", "wb") as f:
        f.seek(70 << 20)
        f.write(b"end")
    with open(f"{root}/dir/overwritten", "wb") as f:
        f.write(noise(3 * B, 7))
        f.flush()
        os.fsync(f.fileno())
        f.seek(B - 100)
        f.write(b"x" * 200)
        f.flush()
        os.fsync(f.fileno())
        f.truncate(2 * B + 5)
    os.link(f"{root}/dir/f4095", f"{root}/dir/sub/hard")
    os.symlink("../f1", f"{root}/dir/sub/soft")
    os.mkfifo(f"{root}/dir/fifo")
    os.setxattr(f"{root}/dir/f1", "user.color", b"blue\0green")
    os.chmod(f"{root}/dir/f1", 0o4751)
    os.chown(f"{root}/dir/f4095", 1234, 5678)
    os.utime(f"{root}/dir/f0", ns=(1_500_000_000_123_456_789, 1_600_000_000_987_654_321))
    os.rename(f"{root}/dir/f4095", f"{root}/dir/sub/moved")
    write_file(f"{root}/dir/victim", b"old")
    write_file(f"{root}/dir/winner", b"new")
    os.rename(f"{root}/dir/winner", f"{root}/dir/victim")
    write_file(f"{root}/dir/gone", b"to the trash")
    os.unlink(f"{root}/dir/gone")
    os.mkdir(f"{root}/dir/emptied")
    os.rmdir(f"{root}/dir/emptied")


@pytest.mark.parametrize("flags", [[], ["--compress", "lz4"], ["--compress", "zstd", "--hash-prefix", "--block-size", "256K"],
                                   ["--trash-days", "0"]],
                         ids=["plain", "lz4", "zstd-hash-256K", "no-trash"])
def test_both_ways_at_once(lab, redis, juicefs, flags):
    meta = redis.url(1)
    lab.format(meta, "vol", flags=flags)
    ours = lab.mount(meta, "m1", flags=["--enable-xattr", "--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0"])
    theirs = lab.juice_mount(juicefs, meta)
    os.mkdir(ours.path("ours"))
    os.mkdir(theirs.path("theirs"))
    make_everything(ours.path("ours"))
    make_everything(theirs.path("theirs"))
    assert describe(ours.dir) == describe(theirs.dir)
    a, b = (describe(m.path(name)) for m, name in ((ours, "ours"), (theirs, "theirs")))
    assert {k: v[1:6] for k, v in a.items()} == {k: v[1:6] for k, v in b.items()}
    if "--trash-days" not in flags:
        for m in (ours, theirs):
            hour = os.listdir(m.path(".trash"))
            assert hour
            names = [n for h in hour for n in os.listdir(m.path(".trash", h))]
            assert sum(n.endswith("-gone") for n in names) == 2 and sum(n.endswith("-emptied") for n in names) == 2, names
    # each goes on with what the other made
    write_file(ours.path("theirs", "dir", "f1"), b"by stoke")
    write_file(theirs.path("ours", "dir", "f1"), b"by juicefs")
    with open(theirs.path("theirs", "dir", "f1"), "rb") as f:
        assert f.read() == b"by stoke"
    with open(ours.path("ours", "dir", "f1"), "rb") as f:
        assert f.read() == b"by juicefs"
    os.rename(ours.path("theirs", "dir"), ours.path("theirs", "dir2"))
    assert os.path.isdir(theirs.path("theirs", "dir2", "sub"))
    time.sleep(1.5)  # directory statistics are flushed within a second
    theirs.stop()
    lab.started.remove(theirs)
    assert ours.stop() == 0
    lab.started.remove(ours)
    fsck_clean(juicefs, lab, meta)


def test_juicefs_status_shows_our_session_and_forgets_it(lab, file_volume, redis, juicefs):
    m = lab.mount(file_volume)
    r = run([juicefs, "status", file_volume], env=lab.env)
    assert m.dir in r.stdout and f'"ProcessID": {m.pid}' in r.stdout, r.stdout
    assert m.stop() == 0
    c = redis.client(1)
    assert c.zcard("allSessions") == 0 and c.hlen("sessionInfos") == 0


def test_deleted_data_leaves_the_store(lab, redis):
    """trash off: the objects of a removed file go, and so do its lists and references"""
    meta = redis.url(1)
    lab.format(meta, "vol", flags=["--trash-days", "0"])
    m = lab.mount(meta)
    write_file(m.path("f"), noise(3 * B + 5))

    def objects():
        return [f for p, _, files in os.walk(f"{lab.folder}/objects/vol/chunks") for f in files]
    assert len(objects()) == 4
    os.unlink(m.path("f"))
    wait_for("empty store", lambda: not objects())
    c = redis.client(1)
    wait_for("clean database", lambda: not c.keys("c*_*") and not c.zcard("delfiles") and not c.hlen("sliceRef"))
    assert int(c.get("totalInodes") or 0) == 0 and int(c.get("usedSpace") or 0) == 0
