# SPDX-License-Identifier: Apache-2.0
"""Daemons restart under readers: nobody notices; with a hand-over of the sockets S3 does not either."""
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from lab import BLOCK, TOP, Proc, noise, wait_for, write_file

FILES = 12


def counter(d, name):
    return sum(v for k, v in d.metrics().items() if k.startswith(name))


class Readers:
    """threads that read the same files over and over, past the kernel's cache, and compare; what went wrong is in errors"""

    def __init__(self, mount, names, n=3):
        self.mount, self.names, self.errors, self.reads, self.stop_now = mount, names, [], 0, False
        self.longest = 0.0
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(n)]
        for t in self.threads:
            t.start()

    def run(self, i):
        while not self.stop_now:
            name = self.names[i % len(self.names)]
            began = time.monotonic()
            try:
                with open(self.mount.path(name), "rb") as f:
                    os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    good = f.read() == noise(BLOCK, self.names.index(name) + 1)
            except OSError as e:
                good = e
            if good is not True:
                self.errors.append((name, good))
            self.longest = max(self.longest, time.monotonic() - began)
            self.reads += 1
            i += 1

    def some(self, n=20):
        """waits until n more were read"""
        until = self.reads + n
        wait_for("reads", lambda: self.reads >= until, 60)

    def stop(self):
        self.stop_now = True
        for t in self.threads:
            t.join()
        assert not self.errors


@pytest.fixture
def group(lab, s3_volume, rgw):
    """three warm daemons, a mount that reads through them, and readers"""
    made = []

    def make(**kw):
        daemons = [lab.daemon(s3_volume, n, **kw) for n in (1, 2, 3)]
        mount = lab.group_mount(s3_volume, "m1", ["--buffer-size", "64"])
        names = [f"f{i}" for i in range(FILES)]
        for i, name in enumerate(names):
            write_file(mount.path(name), noise(BLOCK, i + 1))
        lab.stoke("warmup", *[mount.path(n) for n in names])
        wait_for("all blocks", lambda: sum(len(d.block_files()) for d in daemons) >= FILES)
        made.append(Readers(mount, names))
        made[-1].some(5)
        return daemons, mount, made[-1]
    yield make
    for r in made:
        r.stop_now = True


def handed_over(d):
    """SIGUSR2, and the next program is ready"""
    before = d.text().count("ready in")
    d.signal(signal.SIGUSR2)
    wait_for("next program", lambda: d.text().count("ready in") > before)


def test_rolling_hand_over_asks_S3_nothing(group, rgw):
    daemons, mount, readers = group()
    since = rgw.log_size()
    pids = [d.pid for d in daemons]
    for d in daemons:
        handed_over(d)
        readers.some()
    readers.stop()
    assert [d.pid for d in daemons] == pids and all(d.running() for d in daemons)
    assert rgw.gets(since) == ([], [])
    # nobody was asked in vain, and nobody had to wait long
    assert readers.longest < 5
    assert all("goes on with 2 socket(s)" in d.text() for d in daemons)
    for d in daemons:  # with the index of before, not one made of names
        assert int(re.search(r"(\d+) blocks taken over", d.text())[1]) > 0


def test_rolling_restart_is_not_noticed(group, rgw):
    """S3 is asked for no more than what was asked of a member while it was away, and who comes back is asked again at once"""
    daemons, mount, readers = group()
    since = rgw.log_size()
    for d in daemons:
        held = len(d.block_files())
        before = len(rgw.gets(since)[0])
        d.stop()
        readers.some(5)
        d.again()
        came = counter(d, "stoke_cached_requests_total")
        readers.some()
        assert len(rgw.gets(since)[0]) - before <= held
        wait_for("requests", lambda: counter(d, "stoke_cached_requests_total") > came)
    readers.stop()
    assert readers.longest < 5


@pytest.fixture
def older(lab):
    """programs that speak only the version of the protocol before; one object differs"""
    out, mode = os.path.split(lab.bin)
    subprocess.run(["make", "-s", "-C", TOP, f"O={out}", f"MODE={mode}", "older"], check=True, timeout=600)
    return f"{lab.bin}/older"


def test_G09_rolling_upgrade_between_versions_of_the_protocol(lab, group, older, rgw):
    """all old, then one after the other new, by restarts; then back"""
    now = lab.bin
    try:
        lab.bin = older
        daemons, mount, readers = group()  # the mount stays an old one
        for folder in (now, older):
            for d in daemons:
                d.start_argv[d.start_argv.index(next(a for a in d.start_argv if a.endswith("stoke-cached")))] = f"{folder}/stoke-cached"
                d.stop()
                d.again()
                readers.some()
        lab.bin = now
        new = lab.group_mount(mount.argv[2], "m2", ["--buffer-size", "64"])  # a new one and old daemons
        since = rgw.log_size()
        for i, name in enumerate(readers.names):
            with open(new.path(name), "rb") as f:
                assert f.read() == noise(BLOCK, i + 1)
        assert new.bytes_by_source().get("peer", 0) > 0
        readers.stop()
        assert len(rgw.gets(since)[0]) <= FILES
    finally:
        lab.bin = now


def test_S04_options_come_from_a_file_and_are_checked(lab, file_volume):
    conf = f"{lab.folder}/cached.conf"

    def write(text, mode=0o600):
        with open(os.open(conf, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            f.write(text)
        os.chmod(conf, mode)

    def check(*more, env=None):
        return subprocess.run([f"{lab.bin}/stoke-cached", "--config", conf, "--check-config", *more], text=True, capture_output=True,
                              env=dict(lab.env, **(env or {})))
    good = f"# a comment\nmeta = {file_volume}\ncache-dir = {lab.folder}/c\ncache-group = train\ngroup-secret-file = {lab.secret_file()}\n"
    write(good)
    assert check().returncode == 0
    write(good, 0o644)
    assert check().returncode == 2 and f"{conf}:2: meta does not belong" in check().stderr
    write(good + "cache-dri = /x\n")
    assert check().returncode == 2 and f"{conf}:6: unknown option 'cache-dri'" in check().stderr
    write(good)
    assert "--group-network" in check("--group-network", "203.0.113.0/24").stderr
    assert check("--group-network", "127.0.0.0/8").returncode == 0
    assert "--socket-mode" in check("--socket-mode", "9").stderr
    assert check(env={"STOKE_CACHED_GROUP_NETWORK": "203.0.113.0/24"}).returncode == 1
    assert check("--group-network", "127.0.0.0/8", env={"STOKE_CACHED_GROUP_NETWORK": "203.0.113.0/24"}).returncode == 0
    os.chmod(lab.secret_file(), 0o644)
    assert "chmod" in check().stderr
    os.chmod(lab.secret_file(), 0o600)
    sample = subprocess.run([f"{lab.bin}/stoke-cached", "--print-config"], text=True, capture_output=True, check=True).stdout
    assert "#cache-group =" in sample and all(not line or line.startswith("#") for line in sample.splitlines())


def test_service_manager_is_told(lab, file_volume):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        path = f"{lab.folder}/notify"
        s.bind(path)
        s.settimeout(20)
        lab.env.update(NOTIFY_SOCKET=path, WATCHDOG_USEC="200000")
        d = lab.daemon(file_volume, 1, flags=["--socket-mode", "0600", "--socket-group", str(os.getgid() or 1)])
        heard = []

        def hear(what):
            while not any(h.startswith(what) for h in heard):
                heard.append(s.recv(4096).decode())
            heard.clear()
        hear("READY=1")
        hear("WATCHDOG=1")
        st = os.stat(d.socket)
        assert st.st_mode & 0o777 == 0o600 and st.st_gid == (os.getgid() or 1)
        d.signal(signal.SIGHUP)
        hear("RELOADING=1")
        hear("READY=1")
        handed_over(d)
        hear("READY=1")
        d.stop()
        hear("STOPPING=1")


def test_redis_is_waited_for_and_no_program_is_replaced_without_it(lab):
    redis = lab.redis(appendonly=True)
    lab.format(redis.url(1), "vol")
    d = lab.daemon(redis.url(1), 1)
    redis.kill()
    d.signal(signal.SIGUSR2)
    wait_for("refusal", lambda: "going on as before" in d.text())
    d.kill()
    d.again(wait=False)
    wait_for("word of it", lambda: "waiting 30 s" in d.text())
    redis.boot()
    d.ready()
    redis.kill()
    d.kill()
    said = d.text().count("waiting 30 s")
    d.again(wait=False)
    wait_for("word of it", lambda: d.text().count("waiting 30 s") > said)
    assert d.stop(5) == 1  # SIGTERM is not kept waiting
    redis.boot()


def test_SIGHUP_changes_what_can_change(lab, file_volume):
    conf = f"{lab.folder}/cached.conf"

    def write(rate, limit, share, more=""):
        with open(os.open(conf, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            f.write(f"scrub-rate = {rate}\nrebalance-limit = {limit}\nhot-share = {share}\n{more}")

    def reload():
        before = d.text().count("SIGHUP")
        at = len(d.text())
        d.signal(signal.SIGHUP)
        wait_for("reading again", lambda: d.text().count("SIGHUP") > before and "secret and certificates" in d.text()[at:])
        return d.text()[at:]
    write("0", "1M", 1)
    d = lab.daemon(file_volume, 1, flags=["--config", conf])
    write("2M", "2M", 3)
    said = reload()
    assert "scrub-rate: 2M from now on" in said and "rebalance-limit: 2097152 bytes" in said and "hot-share: 3 from now on" in said
    said = reload()
    assert "from now on" not in said and "restart" not in said
    write("fast", "2M", 3)
    assert "the scrubber goes on as before" in reload()
    write("0", "2M", 3, "group-weight = 7\n")
    said = reload()
    assert "scrub-rate: 0 from now on" in said and "group-weight was changed: that needs a restart" in said
    write("0", "2M", 3, "no-such = 7\n")
    assert "all stays as it was" in reload()


def test_sockets_of_a_service_manager_are_taken(lab, file_volume):
    """LISTEN_FDS, as systemd gives them: the unix socket and the group's"""
    path = f"{lab.folder}/given.sock"
    with socket.socket(socket.AF_UNIX) as local, socket.create_server(("127.0.0.1", 0)) as tcp:
        local.bind(path)
        local.listen()
        give = ("import os,sys\nfor n, fd in enumerate((int(sys.argv[1]), int(sys.argv[2]))):\n os.dup2(fd, 200 + n)\n"
                "for n in (0, 1):\n os.dup2(200 + n, 3 + n)\n"
                "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='2')\nos.execv(sys.argv[3], sys.argv[3:])")
        d = lab.daemon(file_volume, 1)
        d.stop()
        fds = (local.fileno(), tcp.fileno())
        Proc.__init__(d, [sys.executable, "-c", give, *map(str, fds), *d.start_argv], d.log, env=lab.env, pass_fds=fds)
        d.ready()
        port = tcp.getsockname()[1]
    assert f"address 127.0.0.1:{port}" in d.text()
    for kind, address in ((socket.AF_UNIX, path), (socket.AF_INET, ("127.0.0.1", port))):
        with socket.socket(kind) as s:  # we have closed ours: whoever takes this is the daemon
            s.settimeout(10)
            s.connect(address)
            s.sendall(b"nonsense" * 8)
            assert s.recv(100) == b""
    d.stop()
    assert os.path.exists(path)  # the manager's


def test_no_program_is_replaced_while_its_configuration_is_wrong(lab, file_volume):
    conf = f"{lab.folder}/cached.conf"

    def write(text):
        with open(os.open(conf, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            f.write(text)
    write("")
    d = lab.daemon(file_volume, 1, flags=["--config", conf])
    write("scrub-rats = 0\n")
    d.signal(signal.SIGUSR2)
    wait_for("refusal", lambda: "going on as before" in d.text())
    assert "scrub-rats" in d.text() and d.running()
    write("scrub-rate = 0\n")
    handed_over(d)
