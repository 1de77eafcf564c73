# SPDX-License-Identifier: Apache-2.0
"""POSIX ACLs and the change log: what Stoke makes is what the real JuiceFS makes of the same commands, seen through both."""
import os
import re
import shutil
import subprocess

import pytest
from lab import run, write_file

NO_CACHE = ["--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0"]
NEEDS = [p for p in ("setfacl", "getfacl") if not shutil.which(p)]
pytestmark = pytest.mark.skipif(bool(NEEDS), reason="needs the package acl")


@pytest.fixture
def acl_volume(lab, redis, juicefs):
    meta = redis.url(1)
    os.makedirs(f"{lab.folder}/objects", exist_ok=True)
    run([juicefs, "format", meta, "vol", "--storage", "file", "--bucket", f"{lab.folder}/objects", "--enable-acl"], env=lab.env)
    return meta


def sh(line, cwd, uid=0):
    """a shell's line as user uid: exit status and output"""
    r = subprocess.run(["sh", "-c", line], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
                       user=uid, group=uid, extra_groups=[], umask=0o022)
    return r.returncode, r.stdout


# (uid, command) in a directory of its own
COMMANDS = [
    (0, "mkdir d; echo 1 > f; chmod 640 f; setfacl -m u:1000:rw,g:2000:r f"),
    (1000, "cat f; echo more >> f"),
    (1001, "cat f"),
    (0, "chmod 644 f"), (0, "chmod 4600 f"), (1000, "cat f"),
    (0, "setfacl -m m::rwx f"), (1000, "cat f"),
    (0, "setfacl -x u:1000 f"), (0, "setfacl -k f"),
    (0, "setfacl -d -m u::rwx,u:1000:rwx,g::r-x,o::--- d; setfacl -m u:1000:rwx d"),
    (1000, "umask 077; echo x > d/new; mkdir d/sub; mknod d/pipe p; ln -s new d/link; echo y > d/sub/deep"),
    (1000, "umask 0; echo x > d/exec; chmod 777 d/exec"),
    (1001, "ls d; cat d/new"),
    (0, "setfacl -b d/new; chown 1001:1001 d/exec; chmod g+s d/sub; echo 2 > d/sub/two"),
    (0, "setfacl -R -m g:3000:rX d"),
    (0, "setfacl -d -b d/sub; mkdir d/sub/none; setfacl -d -m o::r d/sub; setfacl -d -m u:5:r d/sub; rm -r d/sub/none"),
    (1000, "setfacl -m u:1001:rwx f"), (1000, "setfacl -m u:1001:r d/sub/deep"),
    (0, "cp -a d/sub copy; mv d/exec renamed; rm d/pipe"),
    (0, "getfattr --absolute-names -d -m - f d 2>/dev/null || true"),
]


def everything(root):
    """ACLs, modes and names below a directory"""
    acl = sh("getfacl -RPn .", root)
    what = sorted((os.path.relpath(os.path.join(p, n), root), os.lstat(os.path.join(p, n)).st_mode, os.lstat(os.path.join(p, n)).st_uid)
                  for p, dirs, files in os.walk(root) for n in dirs + files)
    return acl[0], sorted(acl[1].split("\n\n")), what


def test_acls_are_those_of_juicefs(lab, redis, juicefs, acl_volume):
    ours = lab.mount(acl_volume, "m1", flags=["--enable-xattr", *NO_CACHE])
    theirs = lab.juice_mount(juicefs, acl_volume)
    os.mkdir(ours.path("a"))
    os.mkdir(theirs.path("b"))
    os.chmod(ours.path("a"), 0o777)
    os.chmod(theirs.path("b"), 0o777)
    for uid, line in COMMANDS:
        mine, other = sh(line, ours.path("a"), uid), sh(line, theirs.path("b"), uid)
        assert mine == other, (uid, line, mine, other)
    a, b = everything(ours.path("a")), everything(theirs.path("b"))
    assert a == b
    # each sees the other's the same way
    assert everything(theirs.path("a")) == a
    assert everything(ours.path("b")) == b
    # a rule is stored once by each of us
    c = redis.client(1)
    rules = list(c.hvals("acl"))
    assert int(c.get("aclMaxId")) == len(rules)
    assert max(rules.count(x) for x in rules) <= 2


def normal(line):
    """a line of the change log without what differs from run to run"""
    text = line.split("|")[1]
    op = text.split("(")[0]
    if op in ("DIRSTAT", "SET", "NEWSESSION", "WRITE", "DELCHUNK", "DELETESLICE") or text.startswith("INCR_COUNTER(next"):
        return None
    if op == "SETATTR":
        args = text[8:-1].split(",")
        return f"SETATTR({','.join(args[:7])},{args[13]})"
    text = re.sub(r"(true|false)\)", ")", text)  # whether the parent's times were 100 ms old
    text = re.sub(r"9223372032828243\d{3}", "TRASH", text)
    if text.startswith("CREATE(TRASH"):
        return None  # JuiceFS makes the hour's directory before it knows whether something goes there
    if op == "MOVE":
        text = re.sub(r",0,TRASH\)", ",0,0)", text)  # JuiceFS names the trash also when nothing goes there
    return text


LOGGED = """
mkdir d; : > f; : > d/g; ln -s target s; mkfifo p
ln f d/hard; mv f d/moved; mv d/g f
chmod 600 f; chown 5:6 f; touch -d @1500000000 f
setfattr -n user.a -v 'v,(1)%' f; setfattr -x user.a f
setfacl -m u:1000:r f; setfacl -d -m u:1000:r d; : > d/inherits; mkdir d/sub; chmod 640 f; setfacl -b f
mv -T d/sub e; mv f 'odd (%),'; rm s p d/hard; rmdir e; mkdir e; mv d/moved e; rm 'odd (%),'
"""


def test_the_change_log_is_that_of_juicefs(lab, redis, juicefs):
    logs = []
    for db in (1, 2):
        meta = redis.url(db)
        os.makedirs(f"{lab.folder}/o{db}", exist_ok=True)
        run([juicefs, "format", meta, "vol", "--storage", "file", "--bucket", f"{lab.folder}/o{db}", "--enable-acl"], env=lab.env)
        run([juicefs, "config", meta, "--changelog", "-y"], env=lab.env)
        if db == 1:
            m = lab.mount(meta, "m1", flags=["--enable-xattr", *NO_CACHE])
        else:
            m = lab.juice_mount(juicefs, meta)
        for line in LOGGED.strip().splitlines():
            assert sh(line, m.dir) == (0, "")
        lab.started.remove(m)
        m.stop()
        c = redis.client(db)
        lines = [x.decode() for x in c.lrange("txnLog", 0, -1)]
        assert int(c.get("txnLastLog")) == len(lines)
        logs.append([x for x in map(normal, lines) if x])
    assert len(logs[1]) > 30
    assert logs[0] == logs[1]
