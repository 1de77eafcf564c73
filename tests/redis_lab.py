# SPDX-License-Identifier: Apache-2.0
"""Redis as people run it, on this machine: sentinels, a cluster, TLS with certificates, users with ACL. For tests; stopped by the Lab
that started it, by process id."""
import contextlib
import os
import subprocess

from lab import Proc, free_port, wait_for

MASTER = "main"


class Node(Proc):
    """one redis-server (or sentinel); options: as on its command line, without the dashes"""

    def __init__(self, folder, options=(), conf=None, port=None, password=None, tls=None):
        os.makedirs(folder, exist_ok=True)
        self.folder, self.options, self.conf = folder, list(options), conf
        self.port, self.password, self.tls = port or free_port(), password, tls
        self.socket = f"{folder}/redis.sock"
        self.boot()

    def command(self):
        if self.conf:
            return ["redis-server", self.conf, "--sentinel"]
        return ["redis-server", "--port", "0" if self.tls else str(self.port), "--bind", "127.0.0.1", "--dir", self.folder, "--save", "",
                "--appendonly", "no", "--unixsocket", self.socket, *self.options]

    def boot(self):
        super().__init__(self.command(), f"{self.folder}/redis.log")
        wait_for("redis", lambda: self.client().ping())

    def restart(self, meanwhile=lambda: None):
        """Killed, and started again. The successor is forked first: a fork closes copies of open files, and files of a mount wait
        for Redis when they are closed."""
        line = "read go; exec " + " ".join(f"'{word}'" for word in self.command())
        after = Proc(["sh", "-c", line], f"{self.folder}/redis.log", stdin=subprocess.PIPE)
        self.kill()
        meanwhile()
        self.p, self.pid, self.out = after.p, after.pid, after.out
        self.p.stdin.write(b"\n")
        self.p.stdin.close()
        wait_for("redis", lambda: self.client().ping())

    def client(self, **kw):
        import redis
        if self.tls:
            kw.update(ssl=True, ssl_ca_certs=self.tls.ca, ssl_certfile=self.tls.client[0], ssl_keyfile=self.tls.client[1])
        return redis.Redis(port=self.port, password=self.password, socket_timeout=5, **kw)

    def stop(self, timeout=30):
        self.kill()  # nothing of it is kept
        return 0

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            if self.running():
                os.kill(self.pid, 18)  # SIGCONT: it may have been stopped
        super().kill()


class Certificates:
    """a CA of our own, a certificate for 127.0.0.1 and localhost, one for a client; each (certificate, key)"""

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.ca = f"{folder}/ca.pem"
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=the CA",
                     "-keyout", f"{folder}/ca.key", "-out", self.ca)
        self.server = self.issue("server", "subjectAltName=IP:127.0.0.1,DNS:localhost")
        self.client = self.issue("client", "extendedKeyUsage=clientAuth")

    def openssl(self, *argv):
        subprocess.run(["openssl", *argv], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder, timeout=30)

    def issue(self, name, extension):
        cert, key = f"{self.folder}/{name}.pem", f"{self.folder}/{name}.key"
        with open(f"{self.folder}/{name}.ext", "w") as f:
            f.write(extension + "\n")
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}", "-keyout", key,
                     "-out", f"{name}.csr")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", self.ca, "-CAkey", f"{self.folder}/ca.key", "-CAcreateserial", "-days",
                     "2", "-extfile", f"{name}.ext", "-out", cert)
        return cert, key

    def options(self, port, auth_clients="yes"):
        """of a server that speaks TLS on port"""
        return ["--tls-port", str(port), "--tls-cert-file", self.server[0], "--tls-key-file", self.server[1], "--tls-ca-cert-file",
                self.ca, "--tls-auth-clients", auth_clients]

    def query(self):
        """of a URL"""
        return f"tls-ca-cert-file={self.ca}&tls-cert-file={self.client[0]}&tls-key-file={self.client[1]}"


def tls_server(folder, certificates, *options):
    port = free_port()
    return Node(folder, [*certificates.options(port), *options], port=port, tls=certificates)


class Sentinels:
    """a primary, replicas, three sentinels that notice its end within half a second"""

    def __init__(self, folder, replicas=2, password=None, sentinel_password=None, primary_options=()):
        auth = ["--requirepass", password, "--masterauth", password] if password else []
        common = [*auth, "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]
        self.password, self.sentinel_password = password, sentinel_password
        self.nodes, self.sentinels = [], []
        try:
            self.nodes.append(Node(f"{folder}/n0", common, password=password))
            for i in range(replicas):
                self.nodes.append(Node(f"{folder}/n{i + 1}", [*common, "--replicaof", "127.0.0.1", str(self.nodes[0].port)],
                                       password=password))
            for n in self.nodes[1:]:
                wait_for("replica", lambda n=n: n.client().info("replication")["master_link_status"] == "up")
            for option, value in primary_options:
                for n in self.nodes:
                    n.client().config_set(option, value)
            for i in range(3):
                self.sentinels.append(self.sentinel(f"{folder}/s{i}"))
            wait_for("sentinels", self.complete)
        except BaseException:
            self.stop()
            raise

    def sentinel(self, folder):
        os.makedirs(folder, exist_ok=True)
        port = free_port()
        with open(f"{folder}/sentinel.conf", "w") as f:
            f.write(f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
                    f"sentinel monitor {MASTER} 127.0.0.1 {self.nodes[0].port} 2\n"
                    f"sentinel down-after-milliseconds {MASTER} 500\nsentinel failover-timeout {MASTER} 3000\n")
            if self.password:
                f.write(f"sentinel auth-pass {MASTER} {self.password}\n")
            if self.sentinel_password:
                f.write(f"requirepass {self.sentinel_password}\nsentinel sentinel-pass {self.sentinel_password}\n")
        return Node(folder, conf=f"{folder}/sentinel.conf", port=port, password=self.sentinel_password)

    def state(self, i=0):
        return self.sentinels[i].client().sentinel_master(MASTER)

    def complete(self):
        states = [self.state(i) for i in range(3)]
        return all(s["num-other-sentinels"] == 2 and s["num-slaves"] == len(self.nodes) - 1 for s in states) and states

    def primary(self):
        for s in self.sentinels:
            with contextlib.suppress(Exception):
                port = s.client().sentinel_get_master_addr_by_name(MASTER)[1]
                return next(n for n in self.nodes if n.port == port)
        raise RuntimeError("no sentinel answers")

    def url(self, db=0, query="", scheme="redis"):
        who = f":{self.password}@" if self.password else ""
        hosts = ",".join([MASTER] + [f"127.0.0.1:{s.port}" for s in self.sentinels])
        return f"{scheme}://{who}{hosts}/{db}{'?' + query if query else ''}"

    def stop(self):
        for p in [*self.sentinels, *self.nodes]:
            p.kill()


class Cluster:
    """three masters, three replicas, a small node time-out"""

    def __init__(self, folder, masters=3, node_timeout_ms=1000, options=()):
        self.nodes, self.masters = [], masters
        try:
            for i in range(2 * masters):
                self.nodes.append(Node(f"{folder}/c{i}", ["--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout_ms),
                                                          "--cluster-port", str(free_port()), "--repl-diskless-sync-delay", "0",
                                                          "--repl-ping-replica-period", "1",
                                                          "--cluster-replica-validity-factor", "0", *options]))
            self.join()
        except BaseException:
            self.stop()
            raise

    def join(self):
        first = self.nodes[0].client()
        bus = [int(n.client().config_get("cluster-port")["cluster-port"]) for n in self.nodes]
        for n, b in zip(self.nodes[1:], bus[1:]):
            first.execute_command("CLUSTER MEET", "127.0.0.1", n.port, b)
        wait_for("members", lambda: all(len(self.known(n)) == len(self.nodes) for n in self.nodes))
        per = -(-16384 // self.masters)
        for i in range(self.masters):
            self.nodes[i].client().execute_command("CLUSTER ADDSLOTSRANGE", i * per, min(16384, (i + 1) * per) - 1)
        for i in range(self.masters):
            master = self.id(self.nodes[i])
            wait_for("gossip", lambda i=i, m=master: m in self.known(self.nodes[i + self.masters]))
            self.nodes[i + self.masters].client().execute_command("CLUSTER REPLICATE", master)
        wait_for("cluster", self.ok)
        for n in self.nodes[self.masters:]:
            wait_for("replica", lambda n=n: n.client().info("replication")["master_link_status"] == "up")

    @staticmethod
    def id(node):
        return node.client().execute_command("CLUSTER", "MYID").decode()

    @staticmethod
    def known(node):
        return [line.split()[0] for line in node.client().execute_command("CLUSTER", "NODES").decode().splitlines()]

    def ok(self):
        return all(b"cluster_state:ok" in n.client().execute_command("CLUSTER", "INFO") for n in self.nodes if n.running())

    def owner(self, key="{1}setting"):
        """the master that has the key's slot now"""
        for n in self.nodes:
            if not n.running():
                continue
            try:
                n.client().exists(key)
            except Exception:  # MOVED, or it is down
                continue
            if n.client().role()[0] in (b"master", "master"):
                return n
        return None

    def url(self, db=1, query="", nodes=None):
        hosts = ",".join(f"127.0.0.1:{n.port}" for n in (nodes or self.nodes))
        return f"redis://{hosts}/{db}{'?' + query if query else ''}"

    def stop(self):
        for p in self.nodes:
            p.kill()
