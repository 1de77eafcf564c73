# SPDX-License-Identifier: Apache-2.0
"""A small cluster on this machine for tests, benches and the demo: a real Redis, a real S3 (Ceph RGW), daemons, mounts, the real JuiceFS.

Everything a Lab starts lives below its directory and is stopped, by process id, when the Lab is closed."""
import contextlib
import hashlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BLOCK = 4 << 20
SECRET = "a secret of the laboratory"


def seed():
    """what random tests begin with: SEED= of the environment, "random", or always the same, so that a check is not red by chance"""
    text = os.environ.get("SEED") or "71"
    return int.from_bytes(os.urandom(4), "big") if text == "random" else int(text)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(what, fn, timeout=20.0, step=0.02):
    """Polls fn until it returns something true; its last word is in the error otherwise."""
    end = time.monotonic() + timeout
    last = None
    while True:
        try:
            last = fn()
        except Exception as e:  # what is waited for may not be there yet
            last = None
            error = e
        else:
            error = None
        if last:
            return last
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} within {timeout} s ({error or last!r})")
        time.sleep(step)


def alive(pid):
    """False for zombies too: where pid 1 does not reap, kill -0 lies."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Proc:
    """A program in the foreground with its output in a file."""

    def __init__(self, argv, log, env=None, stdin=subprocess.DEVNULL, **kw):
        self.argv, self.log = argv, log
        self.out = open(log, "ab")
        self.p = subprocess.Popen(argv, stdin=stdin, stdout=self.out, stderr=self.out, env=env, **kw)
        self.pid = self.p.pid

    def running(self):
        return self.p.poll() is None

    def text(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def signal(self, sig):
        if self.running():
            self.p.send_signal(sig)

    def stop(self, timeout=30):
        """SIGTERM and the exit status; SIGKILL when it does not end (an error of the program under test)."""
        if self.running():
            self.p.send_signal(signal.SIGCONT)
            self.p.terminate()
            try:
                self.p.wait(timeout)
            except subprocess.TimeoutExpired:
                self.p.kill()
                self.p.wait()
                raise TimeoutError(f"{self.argv[0]} did not end within {timeout} s after SIGTERM:\n{self.text()[-3000:]}") from None
        self.out.close()
        return self.p.returncode

    def kill(self):
        if self.running():
            self.p.kill()
            self.p.wait()
        self.out.close()


class Redis(Proc):
    def __init__(self, folder, password=None, host="127.0.0.1", appendonly=False):
        os.makedirs(folder, exist_ok=True)
        self.appendonly = appendonly  # what it holds outlives a kill -9
        self.port, self.password, self.folder, self.host = free_port(), password, folder, host
        self.socket = f"{folder}/redis.sock"
        self.boot()

    def boot(self):
        argv = ["redis-server", "--port", str(self.port), "--bind", self.host, "--protected-mode", "no", "--dir", self.folder, "--save", "",
                "--appendonly", "yes" if self.appendonly else "no", "--appendfsync", "no",
                "--unixsocket", self.socket, "--databases", "64", "--maxmemory-policy", "noeviction"]
        if self.password:
            argv += ["--requirepass", self.password]
        super().__init__(argv, f"{self.folder}/redis.log")
        wait_for("redis", lambda: self.client().ping())

    def client(self, db=0):
        import redis
        return redis.Redis(host=self.host, port=self.port, db=db, password=self.password)

    def url(self, db=0):
        return f"redis://{':' + self.password + '@' if self.password else ''}{self.host}:{self.port}/{db}"


def resp_length(b, at=0):
    """bytes of the first whole RESP value of b from at on, or None when it is not all there"""
    eol = b.find(b"\r\n", at)
    if eol < 0:
        return None
    kind, n = b[at:at + 1], b[at + 1:eol]
    end = eol + 2
    if kind in b"$=!" and int(n) >= 0:
        end += int(n) + 2
    elif kind in b"*%~>":
        for _ in range(int(n) * (2 if kind == b"%" else 1)):
            one = resp_length(b, end)
            if one is None:
                return None
            end += one
    return end - at if end <= len(b) else None


class LossyRedis:
    """Between a client and Redis: now and then a connection ends when a script was asked for, before Redis got it or after Redis
    has done it, so that the client cannot know."""

    def __init__(self, redis, chance, seed):
        import random
        self.redis, self.chance, self.rnd = redis, chance, random.Random(seed)
        self.lost_before = self.lost_after = 0
        self.server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def url(self, db=0):
        return f"redis://127.0.0.1:{self.port}/{db}"

    def accept(self):
        while True:
            try:
                conn, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.carry, args=(conn,), daemon=True).start()

    def carry(self, client):
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", self.redis.port)) as server:
            for s in (client, server):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asked, answered, to_lose = b"", b"", []
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for s in ready:
                    data = s.recv(1 << 16)
                    if not data:
                        return
                    if s is client:
                        asked += data
                    else:
                        answered += data
                while n := resp_length(asked):
                    lose = b"EVALSHA" in asked[:24].upper() and self.rnd.random() < self.chance
                    if lose and self.rnd.random() < 0.3:
                        self.lost_before += 1
                        return
                    server.sendall(asked[:n])
                    to_lose.append(lose)
                    asked = asked[n:]
                while n := resp_length(answered):
                    if to_lose.pop(0):
                        self.lost_after += 1
                        return
                    client.sendall(answered[:n])
                    answered = answered[n:]

    def stop(self):
        self.server.close()


class Rgw:
    """One-node Ceph RGW with everything in memory; its access log is the witness for what was asked of S3."""
    ACCESS, KEY = "testaccess", "testsecret1234567890"

    def __init__(self, folder, host="127.0.0.1"):
        self.folder, self.port, self.pids, self.host = folder, free_port(), [], host
        self.mon, self.marks = free_port(), 0
        shutil.rmtree(folder, ignore_errors=True)
        for part in ("mon", "osd"):
            os.makedirs(f"{folder}/{part}")
        self.env = dict(os.environ, CEPH_CONF=f"{folder}/ceph.conf")
        self.url = f"http://{host}:{self.port}"
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def run(self, *argv, **kw):
        return subprocess.run(argv, env=self.env, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, **kw)

    def start(self):
        d, fsid = self.folder, self.run("cat", "/proc/sys/kernel/random/uuid").stdout.strip()
        conf = {
            "fsid": fsid, "mon_host": f"[v2:127.0.0.1:{self.mon}/0]", "mon_initial_members": "a", "public_addr": "127.0.0.1",
            "cluster_addr": "127.0.0.1", "auth_cluster_required": "none", "auth_service_required": "none", "auth_client_required": "none",
            "ms_mon_client_mode": "crc", "ms_mon_cluster_mode": "crc", "ms_mon_service_mode": "crc", "mon_allow_pool_size_one": "true",
            "osd_pool_default_size": 1, "osd_pool_default_min_size": 1, "osd_crush_chooseleaf_type": 0, "osd_pool_default_pg_num": 8,
            "osd_pool_default_pg_autoscale_mode": "off", "mon_max_pg_per_osd": 1000, "paxos_propose_interval": 0.05, "run_dir": d,
            "log_file": f"{d}/$name.log", "admin_socket": f"{d}/$name.asok", "pid_file": f"{d}/$name.pid", "mon_data": f"{d}/mon",
            "osd_data": f"{d}/osd", "keyring": f"{d}/keyring", "osd_objectstore": "memstore", "memstore_device_bytes": 6 << 30,
            "rgw_frontends": f"beast endpoint={self.host}:{self.port} tcp_nodelay=1", "rgw_gc_obj_min_wait": 5,
            "rgw_gc_processor_period": 5,
            "debug_rgw": "1/1", "debug_ms": 0,
        }
        with open(f"{d}/ceph.conf", "w") as f:
            f.write("[global]\n" + "".join(f"{k}={v}\n" for k, v in conf.items()))
        self.run("monmaptool", "--create", "--clobber", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{self.mon}/0]", f"{d}/monmap")
        self.run("ceph-authtool", "-C", f"{d}/keyring", "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        self.run("ceph-mon", "-i", "a", "--mkfs", "--monmap", f"{d}/monmap", "--keyring", f"{d}/keyring")
        self.daemon("mon.a", "ceph-mon", "-i", "a")
        self.run("ceph", "osd", "new", fsid)
        self.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", fsid)
        self.daemon("osd.0", "ceph-osd", "-i", "0")
        self.run("radosgw-admin", "user", "create", "--uid=test", "--display-name=t", f"--access-key={self.ACCESS}",
                 f"--secret-key={self.KEY}")
        self.start_gateway()

    def start_gateway(self):
        self.daemon("client.rgw.a", "radosgw", "-n", "client.rgw.a")
        wait_for("S3", lambda: urllib.request.urlopen(self.url, timeout=5).status == 200, 30)

    def kill_gateway(self):
        """the objects live on, in the OSD"""
        pid = self.pids.pop()
        os.kill(pid, signal.SIGKILL)
        wait_for("end of the gateway", lambda: not alive(pid))
        os.unlink(f"{self.folder}/client.rgw.a.pid")

    def daemon(self, name, *argv):
        self.run(*argv)
        with open(wait_for("pid file", lambda: os.path.exists(f"{self.folder}/{name}.pid") and f"{self.folder}/{name}.pid")) as f:
            self.pids.append(int(f.read()))

    def flush_log(self):
        """the log is written by a thread of its own: a request of ours that shows in it has everything before it there too"""
        self.marks += 1
        word = f"mark-{os.getpid()}-{self.marks}"
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"{self.url}/{word}/", timeout=10)

        def seen():
            with open(f"{self.folder}/client.rgw.a.log", "rb") as f:
                f.seek(max(0, os.path.getsize(f.name) - 65536))
                return word.encode() in f.read()
        wait_for("access log", seen)

    def log_size(self):
        self.flush_log()
        return os.path.getsize(f"{self.folder}/client.rgw.a.log")

    def requests(self, since=0, bucket=None):
        """What S3 was asked since a log_size(): (method, bucket, key, status, ranged) of each request."""
        self.flush_log()
        out = []
        with open(f"{self.folder}/client.rgw.a.log", errors="replace") as f:
            f.seek(since)
            for line in f:
                m = re.search(r'"(\w+) /([^/ ?"]*)/?([^ ?"]*)[^"]*" (\d+) \d+ (.*)', line)
                if m and "beast:" in line and (bucket is None or m[2] == bucket):
                    out.append((m[1], m[2], m[3], int(m[4]), "bytes=" in m[5]))
        return out

    def gets(self, since=0, bucket=None):
        """(keys of whole-block GETs, keys of range GETs)"""
        reqs = [r for r in self.requests(since, bucket) if r[0] == "GET" and "/chunks/" in r[2]]
        return [r[2] for r in reqs if not r[4]], [r[2] for r in reqs if r[4]]

    def client(self):
        import boto3
        import botocore.config
        return boto3.client("s3", endpoint_url=self.url, aws_access_key_id=self.ACCESS, aws_secret_access_key=self.KEY,
                            region_name="us-east-1",
                            config=botocore.config.Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))

    def signal(self, sig):
        os.kill(self.pids[-1], sig)

    def stop(self):
        for pid in reversed(self.pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            wait_for("end of Ceph", lambda pid=pid: not alive(pid))
        self.pids = []


def http_get(port, path="/metrics", host="127.0.0.1"):
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=5) as r:
        return r.read().decode()


def commands_of(client, fn):
    """what Redis was asked meanwhile (of scripts the hash), without scripts' own calls and what clocks do (sessions, statistics)"""
    seen, ready = [], threading.Event()

    def listen():
        with client.monitor() as mon:
            ready.set()
            for c in mon.listen():
                text = c["command"] if isinstance(c["command"], str) else c["command"].decode("latin1")
                if text == "PING end":
                    return
                if c["client_type"] != "lua" and not re.match(r"(GET (usedSpace|totalInodes|setting)$|HSCAN|INFO|PING|SELECT)", text):
                    seen.append(text.split()[1] if text.startswith("EVALSHA") else text[:70])
    t = threading.Thread(target=listen)
    t.start()
    ready.wait()
    time.sleep(0.1)
    fn()
    time.sleep(0.05)
    client.execute_command("PING", "end")
    t.join()
    return seen


def parse_metrics(text):
    """{"name{labels}": value} of Prometheus text"""
    out = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            out[name] = float(value)
    return out


class Daemon(Proc):
    """stoke-cached number n of a group; node: where (netlab.Node), else on this host"""

    def __init__(self, lab, meta, n, group="train", cache_mib=2048, secret=SECRET, wait=True, flags=(), cache_dirs=None, node=None,
                 tls=None):
        self.lab, self.n, self.node, self.ip = lab, n, node, node.ip if node else "127.0.0.1"
        self.folder = f"{lab.folder}/d{n}"
        os.makedirs(self.folder, exist_ok=True)
        self.cache = cache_dirs or [f"{self.folder}/cache"]
        for c in self.cache if cache_dirs is None else []:
            os.makedirs(c, exist_ok=True)
        self.secret_file = lab.secret_file(secret)
        self.port, self.http, self.socket = free_port(), free_port(), f"{self.folder}/sock"
        argv = [*(node.enter if node else ()), f"{lab.bin}/stoke-cached", meta, "--cache-dir", ":".join(self.cache),
                "--cache-size", str(cache_mib),
                "--cache-group", group, "--group-ip", self.ip, "--group-port", str(self.port),
                "--group-secret-file", self.secret_file, "--socket", self.socket,
                "--metrics", f"{self.ip}:{self.http}", *lab.tls_flags(tls), *flags]
        self.start_argv = argv
        super().__init__(argv, f"{self.folder}/log", env=lab.env)
        if wait:
            self.ready()

    def ready(self, timeout=20):
        def up():
            if not self.running():
                raise RuntimeError(f"stoke-cached ended: {self.text()[-2000:]}")
            return http_get(self.http, "/readyz", self.ip)
        wait_for(f"daemon {self.n}", up, timeout)
        return self

    def again(self, wait=True):
        """starts it once more, same place, same port"""
        Proc.__init__(self, self.start_argv, f"{self.folder}/log", env=self.lab.env)
        if wait:
            self.ready()
        return self

    def metrics(self):
        return parse_metrics(http_get(self.http, host=self.ip))

    def rss_mib(self):
        return rss_mib(self.pid)

    def block_files(self):
        return sorted(os.path.join(p, f) for c in self.cache for p, _, files in os.walk(c) for f in files
                      if re.fullmatch(r"\d+_\d+_\d+", f))


def rss_mib(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1]) / 1024


class FaultFs(Proc):
    """A directory behind a file system that fails on command (tests/faultfs.c has the commands): path is what a daemon is given as its
    cache directory, below is where its files really are."""

    def __init__(self, lab, name):
        folder = f"{lab.folder}/{name}"
        self.top, self.below, self.control = f"{folder}/mnt", f"{folder}/below", f"{folder}/control"
        self.path = f"{self.top}/cache"
        for d in (self.top, f"{self.below}/cache"):
            os.makedirs(d, exist_ok=True)
        super().__init__([f"{lab.bin}/faultfs", self.below, self.top, self.control], f"{folder}/log")
        wait_for("faultfs", lambda: os.path.ismount(self.top))

    def do(self, line):
        """one command; its answer without the ok"""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(20)
            s.connect(self.control)
            s.sendall(line.encode() + b"\n")
            answer = s.recv(4096).decode()
        if not answer.startswith("ok"):
            raise RuntimeError(f"faultfs {line}: {answer}")
        return answer[3:]

    def stat(self):
        """operations that hang now, and by name those that came so far"""
        return {k: int(v) for k, v in (w.split("=") for w in self.do("stat").split())}

    def stop(self):
        if self.running():
            self.do("clear")
            subprocess.run(["umount", "-l", self.top], check=False)
            try:
                self.p.wait(5)
            except subprocess.TimeoutExpired:  # somebody has files open: they fail from now on
                pass
        self.kill()


class Mount(Proc):
    """stoke mount in the foreground"""

    def __init__(self, lab, meta, name="m1", flags=(), wait=True, env=None, node=None):
        self.lab, self.dir, self.ip = lab, f"{lab.folder}/{name}", node.ip if node else "127.0.0.1"
        os.makedirs(self.dir, exist_ok=True)
        self.http = free_port()
        argv = [*(node.enter if node else ()), f"{lab.bin}/stoke", "mount", meta, self.dir, "--metrics", f"{self.ip}:{self.http}", *flags]
        super().__init__(argv, f"{lab.folder}/{name}.log", env=dict(lab.env, **(env or {})))
        if wait:
            def up():
                if not self.running():
                    raise RuntimeError(f"stoke mount ended: {self.text()[-2000:]}")
                return os.path.ismount(self.dir) and os.stat(self.dir).st_ino == 1
            wait_for(f"mount {name}", up)

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def stats(self):
        with open(self.path(".stats")) as f:
            return {k: float(v) for k, v in (line.split()[:2] for line in f if line.strip())}

    def metrics(self):
        return parse_metrics(http_get(self.http, host=self.ip))

    def bytes_by_source(self):
        return {m[1]: v for k, v in self.metrics().items() if (m := re.match(r'stoke_bytes_by_source_total\{.*source="(\w+)".*\}', k))}

    def drop_caches(self):
        """the kernel's pages of this mount (and everyone's)"""
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3\n")

    def rss_mib(self):
        return rss_mib(self.pid)

    def stop(self, timeout=60):
        code = super().stop(timeout)
        if os.path.ismount(self.dir):
            subprocess.run(["umount", "-l", self.dir], check=False)
            raise RuntimeError(f"{self.dir} was still mounted after the mount ended")
        return code

    def kill(self):
        super().kill()
        subprocess.run(["umount", "-l", self.dir], check=False, stderr=subprocess.DEVNULL)


class JuiceMount:
    """a real JuiceFS mount (two processes, found by their mount point)"""

    def __init__(self, lab, exe, meta, name="j1", flags=(), env=None, kernel_caches=False):
        caches = [] if kernel_caches else ["--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0"]
        self.dir, self.exe = f"{lab.folder}/{name}", exe
        os.makedirs(self.dir, exist_ok=True)
        run([exe, "mount", meta, self.dir, "-d", "--no-usage-report", "--backup-meta", "0", "--no-syslog",
             "--log", f"{lab.folder}/{name}.log", "--cache-dir", f"{lab.folder}/{name}.cache",
             "--enable-xattr", "--metrics", "127.0.0.1:0", *caches, *flags], env=dict(lab.env, **(env or {})))

    def pids(self):
        out = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as f:
                if self.dir in f.read() and "juicefs" in os.readlink(f"/proc/{pid}/exe"):
                    out.append(int(pid))
        return out

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def stop(self):
        pids = self.pids()
        run([self.exe, "umount", self.dir])
        wait_for("end of juicefs", lambda: not any(alive(p) for p in pids), 30)


def run(argv, check=True, **kw):
    r = subprocess.run(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=kw.pop("timeout", 120), **kw)
    if check and r.returncode:
        raise RuntimeError(f"{' '.join(argv)} -> {r.returncode}\n{r.stdout[-4000:]}")
    return r


class Lab:
    """Keeps what it starts and stops it in reverse order."""

    def __init__(self, folder, bin_dir=None):
        self.folder = os.path.abspath(folder)
        os.makedirs(self.folder, exist_ok=True)
        self.bin = os.path.abspath(bin_dir or os.environ.get("STOKE_BIN") or f"{TOP}/build/debug")
        if not os.access(f"{self.bin}/stoke", os.X_OK):
            raise RuntimeError(f"{self.bin}/stoke is not built: make all, or set STOKE_BIN")
        self.started = []
        self.tls = os.environ.get("TLS") == "1"  # every test can be run with it
        private = ("ACCESS_KEY", "SECRET_KEY", "STOKE_GROUP_SECRET", "REDIS_PASSWORD", "META_PASSWORD")
        self.env = {k: v for k, v in os.environ.items() if k not in private and not k.startswith("AWS_")}

    def add(self, thing):
        self.started.append(thing)
        return thing

    def secret_file(self, secret=SECRET):
        path = f"{self.folder}/secret-{hashlib.sha256(secret.encode()).hexdigest()[:8]}"
        if not os.path.exists(path):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
                f.write(secret + "\n")
        return path

    def certificate(self, name="node", ca="ca"):
        """a folder with cert, key and ca of that name, signed by that CA (which is made when it is missing)"""
        top = f"{self.folder}/tls"
        folder = f"{top}/{name}-{ca}"
        os.makedirs(folder, exist_ok=True)
        new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        if not os.path.exists(f"{top}/{ca}.pem"):
            run([*new, "-subj", f"/CN={ca}", "-keyout", f"{top}/{ca}.key", "-out", f"{top}/{ca}.pem"])
        if not os.path.exists(f"{folder}/cert"):
            run([*new, "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-addext", "basicConstraints=critical,CA:FALSE",
                 "-CA", f"{top}/{ca}.pem", "-CAkey", f"{top}/{ca}.key", "-keyout", f"{folder}/key", "-out", f"{folder}/cert"])
            shutil.copy(f"{top}/{ca}.pem", f"{folder}/ca")
        return folder

    def tls_flags(self, tls=None):
        """tls: True, False, a folder that certificate() made, or None: as the lab is"""
        tls = self.tls if tls is None else tls
        if not tls:
            return []
        folder = tls if isinstance(tls, str) else self.certificate()
        return ["--group-tls-cert", f"{folder}/cert", "--group-tls-key", f"{folder}/key", "--group-tls-ca", f"{folder}/ca"]

    def redis(self, name="redis", **kw):
        return self.add(Redis(f"{self.folder}/{name}", **kw))

    def lossy_redis(self, redis, chance, seed):
        return self.add(LossyRedis(redis, chance, seed))

    def rgw(self):
        return self.add(Rgw(f"{self.folder}/rgw"))

    def daemon(self, meta, n, **kw):
        return self.add(Daemon(self, meta, n, **kw))

    def fault_fs(self, name="disk"):
        return self.add(FaultFs(self, name))

    def mount(self, meta, name="m1", flags=(), **kw):
        return self.add(Mount(self, meta, name, flags, **kw))

    def group_mount(self, meta, name="m1", flags=(), socket=None, group="train", tls=None, **kw):
        more = ["--cache-group", group, "--group-secret-file", self.secret_file(), *self.tls_flags(tls)]
        return self.mount(meta, name, [*more, *(["--socket", socket] if socket else []), *flags], **kw)

    def juice_mount(self, exe, meta, name="j1", flags=(), **kw):
        return self.add(JuiceMount(self, exe, meta, name, flags, **kw))

    def stoke(self, *argv, check=True, env=None, timeout=300, input=None):
        """a command; its result with stdout and stderr as text"""
        r = subprocess.run([f"{self.bin}/stoke", *argv], text=True, capture_output=True, env=dict(self.env, **(env or {})), timeout=timeout,
                           input=input)
        if check and r.returncode:
            raise RuntimeError(f"stoke {' '.join(argv)} -> {r.returncode}\n{r.stdout}{r.stderr}")
        return r

    def format(self, meta, name, rgw=None, bucket=None, flags=(), **kw):
        """a volume in S3 (rgw given) or in a directory"""
        if rgw:
            return self.stoke("format", meta, name, "--storage", "s3", "--bucket", f"{rgw.url}/{bucket or name}", *flags,
                              env={"ACCESS_KEY": rgw.ACCESS, "SECRET_KEY": rgw.KEY}, **kw)
        where = bucket or f"{self.folder}/objects"
        os.makedirs(where, exist_ok=True)
        return self.stoke("format", meta, name, "--storage", "file", "--bucket", where, *flags, **kw)

    def close(self):
        errors = []
        while self.started:
            try:
                self.started.pop().stop()
            except Exception as e:
                errors.append(e)
        if errors:
            raise errors[0]

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        try:
            self.close()
        except Exception:
            if kind is None:  # the first error is the one to show
                raise


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while data := f.read(1 << 20):
            h.update(data)
    return h.hexdigest()


INTERNAL = {".stats", ".config", ".accesslog", ".control", ".trash"}


def tree_files(root):
    """regular files below root, sorted, the mount's own left out"""
    out = []
    for folder, dirs, files in os.walk(root):
        if folder == root:
            dirs[:] = [d for d in dirs if d not in INTERNAL]
            files = [f for f in files if f not in INTERNAL]
        dirs.sort()
        paths = [os.path.join(folder, f) for f in sorted(files)]
        out += [p for p in paths if os.path.isfile(p) and not os.path.islink(p)]
    return out


def blocks_of(sizes, block=BLOCK):
    """blocks that files of these sizes have when each was written from start to end"""
    return sum(chunk_blocks(min(64 << 20, size - at), block) for size in sizes for at in range(0, size, 64 << 20))


def chunk_blocks(n, block):
    return -(-n // block)


def write_file(path, data):
    with open(path, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def noise(n, seed=1):
    """n bytes that do not compress, the same for the same seed"""
    import random
    rnd = random.Random(seed)
    return b"".join(rnd.randbytes(min(1 << 24, n - at)) for at in range(0, n, 1 << 24))

