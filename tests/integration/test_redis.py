# SPDX-License-Identifier: Apache-2.0
"""Redis as people run it: every form of URL, sentinels and a cluster that lose their primary under load, TLS, users with ACL, replicas."""
import errno
import os
import signal
import threading
import time

import pytest
import redis_lab
from lab import TOP, noise, run, wait_for, write_file

META = ("--meta-timeout", "20s", "--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0")


@pytest.fixture
def cluster(lab):
    return lab.add(redis_lab.Cluster(f"{lab.folder}/cluster"))


@pytest.fixture
def sentinels(lab):
    return lab.add(redis_lab.Sentinels(f"{lab.folder}/sentinels"))


@pytest.fixture
def certificates(lab):
    return redis_lab.Certificates(f"{lab.folder}/certificates")


class Load:
    """Threads that make, write, rename and remove files; when each was acknowledged, and how long the longest call took.

    A primary answers before its replicas have what it did: what was acknowledged in the last moment before it was killed may be
    gone, to any client of Redis. Everything before that must be there."""
    LAST_MOMENT = 0.2

    def __init__(self, folder, threads=4):
        self.folder, self.ended, self.made, self.removed, self.errors, self.longest = folder, False, {}, {}, [], 0.0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(threads)]
        for t in self.threads:
            t.start()

    def call(self, fn, *args):
        begin = time.monotonic()
        try:
            fn(*args)
        finally:
            self.longest = max(self.longest, time.monotonic() - begin)

    def one(self, i, k):
        a, b = f"{self.folder}/t{i}-{k}.new", f"{self.folder}/t{i}-{k}"
        data = f"{i} {k}".encode() * 100
        self.call(write_file, a, data)
        self.call(os.rename, a, b)
        with self.lock:
            self.made[b] = (data, time.monotonic())
        gone = f"{self.folder}/t{i}-{k - 2}"
        if k % 5 == 4 and gone in self.made:
            self.call(os.unlink, gone)
            with self.lock:
                self.made.pop(gone)
                self.removed[gone] = time.monotonic()

    def run(self, i):
        k = 0
        while not self.ended:
            try:
                self.one(i, k)
            except OSError as e:
                self.errors.append((time.monotonic(), i, k, e))
            k += 1

    def count(self):
        with self.lock:
            return len(self.made)

    def goes_on(self, timeout=15.0):
        """every thread got further since now"""
        before = self.count()
        wait_for("more work", lambda: self.count() > before + 4 * len(self.threads), timeout)

    def stop(self):
        self.ended = True
        for t in self.threads:
            t.join()

    def check(self, folder, killed=None):
        """-> how many changes of the last moment the server took along"""
        limit = killed - self.LAST_MOMENT if killed else float("inf")
        names, lost = set(os.listdir(folder)), 0
        for path, (data, when) in self.made.items():
            name = os.path.basename(path)
            if name not in names and limit < when < killed:
                lost += 1
                continue
            with open(f"{folder}/{name}", "rb") as f:
                assert f.read() == data, name
        back = {p: t for p, t in self.removed.items() if os.path.basename(p) in names}
        assert all(limit < t < killed for t in back.values()), back
        # whose file went with the server finds nothing to rename
        assert len(self.errors) <= len(self.threads) and all(e.errno == errno.ENOENT for *_, e in self.errors), self.errors
        assert killed or not self.errors
        return lost + len(back)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def keys_outside(cluster, prefix=b"{1}"):
    return [k for n in cluster.nodes if n.running() for k in n.client().keys("*") if not k.startswith(prefix)]


def test_a_volume_in_a_cluster_is_juicefs_own(lab, cluster, juicefs):
    meta = cluster.url(1)
    lab.format(meta, "vol")
    alone = f"redis://127.0.0.1:{cluster.nodes[4].port}/1"  # a replica of some master: found out by itself
    m = lab.mount(alone, flags=[*META, "--enable-xattr"])
    j = lab.juice_mount(juicefs, meta)
    write_file(m.path("a"), noise(300_000))
    os.mkdir(m.path("d"))
    write_file(j.path("d", "b"), noise(200_000, 2))
    with open(j.path("a"), "rb") as f:
        assert f.read() == noise(300_000)
    with open(m.path("d", "b"), "rb") as f:
        assert f.read() == noise(200_000, 2)
    os.truncate(m.path("a"), 100)
    os.setxattr(m.path("a"), "user.x", b"y")
    assert os.getxattr(j.path("a"), "user.x") == b"y"
    status = lab.stoke("status", meta).stdout
    assert '"UsedInodes"' in status and m.dir in status
    assert lab.stoke("status", f"unix://{cluster.nodes[5].socket}?db=1").stdout == lab.stoke("status", meta).stdout
    assert not keys_outside(cluster)


def test_a_load_that_breaks_off_in_a_cluster_names_the_keys(lab, cluster, file_volume):
    """other volumes lie beside it"""
    whole = lab.stoke("dump", file_volume).stdout.replace('"FSTree"', '"FSTree" ')
    cut = whole[:whole.rindex("}") - 2]
    r = lab.stoke("load", cluster.url(2), input=cut, check=False)
    assert r.returncode == 1 and len(r.stderr.strip().splitlines()) == 1, r.stderr
    assert "remove the keys {2}*" in r.stderr and "empty it (FLUSHDB)" not in r.stderr


def test_a_volume_that_juicefs_made_in_a_cluster(lab, cluster, juicefs):
    os.makedirs(f"{lab.folder}/store")
    run([juicefs, "format", cluster.url(3), "vol", "--storage", "file", "--bucket", f"{lab.folder}/store"], env=lab.env)
    j = lab.juice_mount(juicefs, cluster.url(3))
    write_file(j.path("x"), b"from juicefs")
    m = lab.mount(cluster.url(3, nodes=cluster.nodes[2:3]), flags=META)
    with open(m.path("x"), "rb") as f:
        assert f.read() == b"from juicefs"
    write_file(m.path("y"), b"from stoke")
    with open(j.path("y"), "rb") as f:
        assert f.read() == b"from stoke"


def kill_under_load(m, load, kill):
    load.goes_on()
    kill()
    killed = time.monotonic()
    load.goes_on(20)
    took = time.monotonic() - killed
    load.stop()
    assert load.longest < 20, load.longest
    assert m.running()
    print(f"fail-over and four more each: {took:.1f} s; longest call {load.longest:.1f} s; "
          f"{load.check(load.folder, killed)} changes went with the server")


def test_a_primary_killed_under_load_is_replaced(lab, sentinels, juicefs):
    meta = sentinels.url(1)
    lab.format(meta, "vol")
    m = lab.mount(meta, flags=META)
    os.mkdir(m.path("d"))
    with Load(m.path("d")) as load:
        kill_under_load(m, load, sentinels.primary().kill)
    assert sentinels.primary().running()
    sentinels.sentinels[0].kill()
    assert lab.stoke("status", meta).returncode == 0
    j = lab.juice_mount(juicefs, meta)  # the same URL
    assert sorted(os.listdir(j.path("d"))) == sorted(os.listdir(m.path("d")))
    run([juicefs, "fsck", meta], env=lab.env)


def test_a_primary_that_hangs_is_left(lab, sentinels):
    """no reset tells of it: connections just stay silent"""
    meta = sentinels.url(1)
    lab.format(meta, "vol")
    m = lab.mount(meta, flags=META)
    os.mkdir(m.path("d"))
    primary = sentinels.primary()
    with Load(m.path("d")) as load:
        kill_under_load(m, load, lambda: primary.signal(signal.SIGSTOP))
        assert load.longest < 10


def test_a_master_of_a_cluster_that_steps_down_or_is_killed_under_load_is_replaced(lab, cluster):
    meta = cluster.url(1)
    lab.format(meta, "vol")
    m = lab.mount(meta, flags=META)
    os.mkdir(m.path("d"))
    with Load(m.path("d")) as load:
        load.goes_on()
        master = cluster.owner()
        replica = cluster.nodes[cluster.nodes.index(master) + 3]
        replica.client().execute_command("CLUSTER", "FAILOVER")  # the master waits until its replica has everything
        wait_for("new master", lambda: cluster.owner() is replica)
        load.goes_on()
        assert not load.errors
        wait_for("its replica", lambda: replica.client().info("replication")["connected_slaves"] == 1)
        kill_under_load(m, load, replica.kill)
    assert not keys_outside(cluster)


def test_replicas_answer_a_mount_that_only_reads(lab, sentinels):
    meta = sentinels.url(1)
    lab.format(meta, "vol")
    m = lab.mount(meta, flags=META)
    write_file(m.path("a"), b"one")
    replicas = [n.client() for n in sentinels.nodes[1:]]
    wait_for("copies", lambda: all(r.info("replication")["slave_repl_offset"] == sentinels.nodes[0].client().info("replication")
                                   ["master_repl_offset"] for r in replicas))
    ro = lab.mount(sentinels.url(1, "route-read=replica"), "ro", flags=[*META, "--read-only"])
    before = [r.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"] for r in replicas]
    for _ in range(20):
        with open(ro.path("a"), "rb") as f:
            assert f.read() == b"one"
    after = [r.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"] for r in replicas]
    assert sum(after) - sum(before) >= 20
    with pytest.raises(OSError, match="Read-only"):
        write_file(ro.path("b"), b"")
    # the replica that answers goes away: the other one does, or the primary
    sentinels.nodes[1 if after[0] > before[0] else 2].kill()
    with open(ro.path("a"), "rb") as f:
        assert f.read() == b"one"


def test_replicas_of_a_cluster_answer_a_mount_that_only_reads(lab, cluster):
    meta = cluster.url(1)
    lab.format(meta, "vol")
    m = lab.mount(meta, flags=META)
    write_file(m.path("a"), b"one")
    master = cluster.nodes.index(cluster.owner())
    replica = cluster.nodes[master + 3].client()
    wait_for("everybody to know the replicas", lambda: all(
        str(n.client().execute_command("CLUSTER NODES")).count("slave") >= 3 for n in cluster.nodes))
    wait_for("copy", lambda: replica.info("replication")["slave_repl_offset"] == cluster.nodes[master].client().info("replication")
             ["master_repl_offset"])
    ro = lab.mount(cluster.url(1, "route-read=replica"), "ro", flags=[*META, "--read-only"])
    before = replica.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    for _ in range(20):
        with open(ro.path("a"), "rb") as f:
            assert f.read() == b"one"
    assert replica.info("commandstats")["cmdstat_evalsha"]["calls"] - before >= 20


def test_tls_with_certificates_on_both_sides(lab, certificates, juicefs):
    server = lab.add(redis_lab.tls_server(f"{lab.folder}/tls", certificates))
    meta = f"rediss://127.0.0.1:{server.port}/1?{certificates.query()}"
    lab.format(meta, "vol")
    d = lab.daemon(meta, 1)
    m = lab.group_mount(meta, socket=d.socket, flags=META)
    j = lab.juice_mount(juicefs, meta)
    write_file(m.path("a"), noise(100_000))
    with open(j.path("a"), "rb") as f:
        assert f.read() == noise(100_000)
    names = os.listdir(m.path())
    os.rename(j.path("a"), j.path("b"))
    assert "a" in names and "b" in os.listdir(m.path())
    assert lab.stoke("status", meta).stdout.count('"Addr') == 1  # the group is in the same database
    assert any(b"_group" in k for k in server.client(db=1).keys("*"))


def refused(lab, meta, *says):
    r = lab.stoke("status", meta, check=False)
    assert r.returncode
    assert all(s in r.stderr for s in says), r.stderr
    assert len(r.stderr.strip().splitlines()) == 1, r.stderr


def test_what_the_server_refuses_is_told_in_its_words(lab, redis, file_volume):
    c = redis.client(1)
    c.execute_command("ACL", "SETUSER", "half", "on", ">word", "~*", "+@all", "-hsetnx", "-zadd", "-incr", "-incrby", "-evalsha", "-eval")
    os.makedirs(f"{lab.folder}/mnt")
    r = lab.stoke("mount", file_volume.replace("redis://", "redis://half:word@"), f"{lab.folder}/mnt", check=False)
    assert r.returncode == 1 and "permissions" in r.stderr.splitlines()[-1] and "word@" not in r.stderr, r.stderr
    c.execute_command("ACL", "SETUSER", "whole", "on", ">word", "~*", "+@all")
    m = lab.mount(file_volume.replace("redis://", "redis://whole:word@"), flags=["--attr-cache", "0", "--entry-cache", "0"])
    os.mkdir(m.path("before"))
    c.execute_command("ACL", "SETUSER", "whole", "-evalsha", "-eval")
    for i in range(20):
        with pytest.raises(OSError):
            os.mkdir(m.path(f"d{i}"))
    c.execute_command("ACL", "SETUSER", "whole", "+evalsha", "+eval")
    os.mkdir(m.path("after"))
    # once for each pool of connections
    assert 1 <= m.text().count("permissions to run the 'evalsha'") <= 2, m.text()
    assert m.stop() == 0


def test_tls_errors_are_one_clear_line(lab, certificates, redis):
    server = lab.add(redis_lab.tls_server(f"{lab.folder}/tls", certificates))
    c, where = certificates, f"rediss://127.0.0.1:{server.port}/1"
    other = redis_lab.Certificates(f"{lab.folder}/other")
    lab.format(f"{where}?{c.query()}", "vol")
    refused(lab, f"{where}?tls-ca-cert-file={c.ca}", "certificate required")
    refused(lab, f"{where}?{other.query()}", "server's certificate")
    refused(lab, f"{where}?{c.query()}&tls-server-name=elsewhere", "server's certificate", "mismatch")
    refused(lab, f"{where}?tls-ca-cert-file={c.ca}&tls-cert-file={other.client[0]}&tls-key-file={other.client[1]}", "TLS", "alert")
    refused(lab, f"{where}?tls-ca-cert-file={c.ca}&tls-cert-file={c.client[0]}&tls-key-file={other.client[1]}", "tls-key-file")
    refused(lab, f"{where}?tls-ca-cert-file=/nowhere.pem", "tls-ca-cert-file /nowhere.pem")
    refused(lab, f"rediss://127.0.0.1:{redis.port}/1?{c.query()}&dial_timeout=300ms", "does the server speak TLS")
    refused(lab, f"redis://127.0.0.1:{server.port}/1", f"127.0.0.1:{server.port}/1: ")
    sealed = f"{lab.folder}/sealed.key"
    c.openssl("ec", "-in", c.client[1], "-aes128", "-passout", "pass:geheim", "-out", sealed)
    refused(lab, f"{where}?tls-ca-cert-file={c.ca}&tls-cert-file={c.client[0]}&tls-key-file={sealed}", "passphrase")
    trusting = f"{where}?insecure-skip-verify=1&tls-cert-file={c.client[0]}&tls-key-file={c.client[1]}"
    assert lab.stoke("status", trusting).returncode == 0
    by_name = f"rediss://localhost:{server.port}/1?{c.query()}"
    assert lab.stoke("status", by_name).returncode == 0


def test_a_tls_server_that_comes_back_is_used_again(lab, certificates):
    options = ["--appendonly", "yes", "--appendfsync", "always"]
    server = lab.add(redis_lab.tls_server(f"{lab.folder}/tls", certificates, *options))
    meta = f"rediss://127.0.0.1:{server.port}/1?{certificates.query()}"
    lab.format(meta, "vol")
    m = lab.mount(meta, flags=META)
    os.mkdir(m.path("d"))
    with Load(m.path("d"), 2) as load:
        load.goes_on()
        server.restart(lambda: time.sleep(0.5))
        load.goes_on()
        load.stop()
        assert load.check(m.path("d")) == 0


def test_a_user_with_acl_over_tcp_and_a_unix_socket(lab, juicefs):
    acl = ["--user", "app", "on", ">ge+heim", "~*", "&*", "+@all", "-@dangerous", "+info", "+keys", "--user", "default", "off"]
    server = lab.add(redis_lab.Node(f"{lab.folder}/acl", acl[:-3]))
    server.client().execute_command("ACL", "SETUSER", "default", "resetkeys", "-@all", "+ping")
    unix, tcp = f"unix://app:ge%2Bheim@{server.socket}?db=2", f"redis://app:ge%2Bheim@127.0.0.1:{server.port}/2"
    lab.format(unix, "vol")
    m = lab.mount(unix, flags=META)
    j = lab.juice_mount(juicefs, tcp)
    write_file(m.path("a"), b"x")
    with open(j.path("a"), "rb") as f:
        assert f.read() == b"x"
    with open(f"/proc/{m.pid}/cmdline", "rb") as f:
        assert b"heim" not in f.read()
    with open(f"/proc/{m.pid}/cmdline", "rb") as f:
        assert b"app:" in f.read()
    # the password from the environment, and from a file
    bare = f"redis://app@127.0.0.1:{server.port}/2"
    assert lab.stoke("status", bare, env={"META_PASSWORD": "ge+heim"}).returncode == 0
    with open(f"{lab.folder}/password", "w") as f:
        f.write(" ge+heim\n")
    assert lab.stoke("status", bare, env={"META_PASSWORD_FILE": f"{lab.folder}/password"}).returncode == 0
    d = lab.daemon(tcp, 1)
    for log in (m.text(), d.text(), lab.stoke("status", tcp.replace("heim", "heimer"), check=False).stderr):
        assert "heim" not in log
    with open(f"/proc/{d.pid}/cmdline", "rb") as f:
        assert b"heim" not in f.read()


def test_sentinels_with_passwords(lab):
    s = lab.add(redis_lab.Sentinels(f"{lab.folder}/s", replicas=1, password="geheim", sentinel_password="auch-geheim"))
    env = {"SENTINEL_PASSWORD": "auch-geheim"}
    lab.format(s.url(1), "vol", env=env)
    assert lab.stoke("status", s.url(1), env=env).returncode == 0
    r = lab.stoke("status", s.url(1), check=False)
    assert r.returncode and "NOAUTH" in r.stderr and "geheim" not in r.stderr
    r = lab.stoke("status", s.url(1).replace("@main,", "@nobody,"), env=env, check=False)
    assert r.returncode and "no master named 'nobody'" in r.stderr


def test_a_redis_that_is_down_costs_the_time_out_and_no_more(lab):
    server = lab.add(redis_lab.Node(f"{lab.folder}/r", ["--appendonly", "yes", "--appendfsync", "always"]))
    meta = f"redis://127.0.0.1:{server.port}/1"
    lab.format(meta, "vol")
    m = lab.mount(meta, flags=["--meta-timeout", "500ms", *META[2:]])
    write_file(m.path("a"), b"x")

    def away():
        for call in (lambda: os.stat(m.path("nothing")), lambda: os.mkdir(m.path("d")), lambda: os.unlink(m.path("a"))):
            begin = time.monotonic()
            with pytest.raises(OSError, match="Input/output"):
                call()
            assert 0.45 < time.monotonic() - begin < 2  # the kernel looks a name up, then asks
    server.restart(away)
    server.signal(signal.SIGSTOP)
    away()
    server.signal(signal.SIGCONT)
    wait_for("life", lambda: os.path.exists(m.path("a")))
    os.mkdir(m.path("e"))


def test_how_redis_is_set_is_said_at_mount(lab):
    server = lab.add(redis_lab.Node(f"{lab.folder}/r", ["--maxmemory-policy", "allkeys-lru"]))
    meta = f"redis://127.0.0.1:{server.port}/1"
    lab.format(meta, "vol")
    ro = lab.mount(meta, "ro", flags=["--read-only"])
    assert "AOF is off" in ro.text() and "maxmemory-policy is allkeys-lru" in ro.text()
    assert server.client().config_get("maxmemory-policy")["maxmemory-policy"] == "allkeys-lru"
    m = lab.mount(meta)
    assert "it was set to noeviction" in m.text()
    assert server.client().config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
    server.client().config_set("appendonly", "yes")
    again = lab.mount(meta, "again")
    assert "AOF" not in again.text() and "maxmemory" not in again.text()


def test_a_slot_on_its_way_to_another_node_loses_nothing(lab, cluster):
    meta = cluster.url(1)
    lab.format(meta, "vol", flags=["--trash-days", "0"])
    m = lab.mount(meta, flags=META)
    os.mkdir(m.path("d"))
    source = cluster.owner()
    target = next(n for n in cluster.nodes[:3] if n is not source)
    a, b = source.client(), target.client()
    slot = a.execute_command("CLUSTER", "KEYSLOT", "{1}setting")

    def state(node, *words):
        node.client().execute_command("CLUSTER", "SETSLOT", slot, *words)
    with Load(m.path("d"), 2) as load:
        load.goes_on()
        # every key is there still, but none can be made: no script may come half-way
        state(target, "IMPORTING", cluster.id(source))
        state(source, "MIGRATING", cluster.id(target))
        before = load.count()
        with open(f"{TOP}/client/meta/prelude.lua") as f:
            empty = f.read() + "return 7"  # nor one that would find all it needs
        with pytest.raises(Exception, match="non local key"):
            a.eval(empty, 1, "{1}setting", "", "0", "x")
        time.sleep(0.3)
        state(source, "STABLE")
        assert a.eval(empty, 1, "{1}setting", "", "0", "x") == 7
        assert load.count() <= before + 2
        load.goes_on()
        state(source, "MIGRATING", cluster.id(target))
        before, keys = load.count(), 0
        while batch := a.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 20):
            a.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *batch)
            keys += len(batch)
            time.sleep(0.02)
        assert keys > 20 and load.count() <= before + 2
        for n in (target, source, *[n for n in cluster.nodes[:3] if n not in (source, target)]):
            state(n, "NODE", cluster.id(target))
        load.goes_on()
        load.stop()
        assert load.check(m.path("d")) == 0
    assert cluster.owner() is target and not keys_outside(cluster)
    wait_for("deletions", lambda: not b.exists("{1}delfiles"))
    assert int(b.get("{1}totalInodes")) == 1 + len(load.made)
    assert int(b.get("{1}usedSpace")) == 4096 * (1 + len(load.made))


def test_a_replica_that_stayed_behind_is_promoted(lab, sentinels):
    """numbers of slices and inodes come again: caches start empty, and nothing of the days that never were is served"""
    meta = sentinels.url(1)
    lab.format(meta, "vol")
    d = lab.daemon(meta, 1)
    m = lab.group_mount(meta, "early", socket=d.socket, flags=META)
    write_file(m.path("kept"), noise(100_000))
    primary = sentinels.primary()
    offset = primary.client().info("replication")["master_repl_offset"]
    wait_for("copies", lambda: all(n.client().info("replication")["slave_repl_offset"] >= offset for n in sentinels.nodes[1:]))
    for n in sentinels.nodes[1:]:  # they hear nothing any more; sentinels would repair that after 8 s
        n.client().replicaof("NO", "ONE")
    generation, chunks = primary.client(db=1).mget("_gen", "nextchunk")
    late = lab.group_mount(meta, "late", socket=d.socket, flags=[*META, "--heartbeat", "1s"])
    for i in range(3):
        write_file(late.path(f"f{i}"), noise(200_000, 10 + i))
        with open(late.path(f"f{i}"), "rb") as f:
            assert f.read() == noise(200_000, 10 + i)
    assert int(primary.client(db=1).get("nextchunk")) > int(chunks)
    primary.kill()
    wait_for("another primary", lambda: sentinels.primary() is not primary)
    wait_for("another generation", lambda: sentinels.primary().client(db=1).get("_gen") not in (None, generation))
    left = {"kept", ".stats", ".config", ".accesslog", ".control", ".trash"}
    for mount in (m, late, lab.group_mount(meta, "new", socket=d.socket, flags=META)):
        wait_for("what is left", lambda mount=mount: set(os.listdir(mount.path())) <= left)
        with open(mount.path("kept"), "rb") as f:
            assert f.read() == noise(100_000)
    for i in range(3):
        write_file(mount.path(f"f{i}"), noise(200_000, 20 + i))
    for each in (mount, late, m):
        for i in range(3):
            with open(each.path(f"f{i}"), "rb") as f:
                assert f.read() == noise(200_000, 20 + i)
    assert "caches start empty" in late.text()
