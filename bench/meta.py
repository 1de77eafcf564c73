# SPDX-License-Identifier: Apache-2.0
"""make bench, stage meta: metadata beside JuiceFS 1.4.2 on the same volume and Redis, in one run and in turns. run.py calls it."""
import os
import statistics
import struct
import subprocess
import time

import lab as stoke_lab

from lab import commands_of  # run.py says where

NO_CACHES = ("--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0")
OPS = ("mkdir", "create", "stat", "open", "rename", "unlink", "rmdir")
TARGET = dict.fromkeys(("mkdir", "create", "rename", "unlink", "rmdir"), "≥ 3") | dict.fromkeys(("stat", "open", "readdir"), "≥ 2")


def drop_dentries():
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("2\n")


def timed(*argv):
    t = time.monotonic()
    r = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=900)
    if r.returncode:
        raise RuntimeError(f"{argv}: {r.stderr.decode()[-500:]}")
    return time.monotonic() - t


class Names:
    """the ceiling: a FUSE file system of names in memory, which the kernel may keep for so many seconds"""

    def __init__(self, lab, name, seconds):
        self.dir = f"{lab.folder}/{name}"
        os.makedirs(self.dir)
        lab.add(stoke_lab.Proc([f"{lab.bin}/bench/fuse_names", self.dir, "1", str(seconds)], f"{self.dir}.log"))
        stoke_lab.wait_for("names in memory", lambda: os.path.ismount(self.dir))

    def path(self, *parts):
        return os.path.join(self.dir, *parts)


class Pair:
    """A Stoke mount and a JuiceFS mount of one volume; the same thing is done on both, in turns, and where nobody has to
    have made it before, on names in memory."""

    def __init__(self, lab, tool, row, ours, theirs, names):
        self.lab, self.tool, self.row, self.mounts, self.names = lab, tool, row, {"stoke": ours, "juicefs": theirs}, names

    def rates(self, what, threads, count, rounds, stages=(), prepare=()):
        """operations per second: the median of the rounds; stages: of bench/metaload"""
        seen = {}
        for n in range(rounds):
            for name, m in (self.mounts | {"names": self.names}).items():
                folder = m.path(f"{name}-{what.replace(' ', '-')}-{threads}-{n}")
                os.makedirs(folder)
                if prepare:
                    self.tool(self.lab, "metaload", folder, threads, count, *prepare)
                    drop_dentries()
                for op, v in self.tool(self.lab, "metaload", folder, threads, count, *stages).items():
                    seen.setdefault(op, {}).setdefault(name, []).append(v)
        for op in seen:
            if op == "errors":
                assert not any(sum(seen[op].values(), [])), f"{what}: errors"
                continue
            a, b, c = (statistics.median(seen[op][name]) for name in ("stoke", "juicefs", "names"))
            self.row("meta", f"{op}{what}, {threads} threads", a, "/s", f"JuiceFS; {c / b:.2f} names in memory", a / b, TARGET.get(op))

    def seconds(self, what, command, rounds=1, target="≥ 2", limit=None):
        """how much sooner it ends; each time with the kernel's names forgotten"""
        seen = {"stoke": [], "juicefs": []}
        for n in range(rounds):
            for name, m in self.mounts.items():
                drop_dentries()
                seen[name].append(timed(*command(m, name)))
        a, b = (statistics.median(seen[name]) for name in ("stoke", "juicefs"))
        self.row("meta", what, a * 1000, "ms", "JuiceFS", b / a, target + (f", {limit}" if limit else ""))


def fill_directory(client, parent, first, n, files=True):
    """n entries straight into Redis, as a client would have made them: 1000 a script"""
    script = client.register_script("""
local function be64(v) return struct.pack('>I8', v) end
local t = struct.pack('>I8I4', tonumber(ARGV[4]), 0)
for i = 0, tonumber(ARGV[3]) - 1 do
	local ino = tonumber(ARGV[2]) + i
	redis.call('SET', 'i' .. string.format('%.0f', ino), '\\0' .. struct.pack('>I2', 4096 + 420) .. string.rep('\\0', 8) ..
		t .. t .. t .. struct.pack('>I4', 1) .. be64(0) .. string.rep('\\0', 4) .. be64(tonumber(ARGV[1])) .. '\\0')
	redis.call('HSET', 'd' .. ARGV[1], 'file' .. string.format('%.0f', ino), '\\1' .. be64(ino))
end""")
    for i in range(0, n, 1000):
        k = min(1000, n - i)
        script(args=[parent, first + i, k, int(time.time())])
    client.incrby("totalInodes", n)
    client.incrby("usedSpace", n * 4096)
    client.set("nextinode", max(int(client.get("nextinode") or 0), first + n))


def inode(path):
    return os.stat(path).st_ino


def round_trips(row, client, m):
    """one at a time, nothing cached in the kernel"""
    print("round trips to Redis of one operation, seen by MONITOR; the kernel's own look-ups before it are told apart")
    d = m.path("trips")
    os.mkdir(d)
    open(f"{d}/warm", "w").close()  # numbers are reserved
    time.sleep(1.5)                 # statistics are flushed

    def write():
        with open(f"{d}/data", "r+b", buffering=0) as f:
            f.write(b"x" * 1000)
            os.fsync(f.fileno())
    os.close(os.open(f"{d}/data", os.O_CREAT | os.O_WRONLY))
    steps = (
        ("look-up with attributes", lambda: os.stat(f"{d}/data"), 1),
        ("create", lambda: os.close(os.open(f"{d}/new", os.O_CREAT | os.O_WRONLY)), 1),
        ("open, read, close", lambda: open(f"{d}/data").read(), 1),
        ("write + fsync of a new slice", write, 1),
        ("chmod", lambda: os.chmod(f"{d}/data", 0o600), 1),
        ("rename", lambda: os.rename(f"{d}/data", f"{d}/other"), 1),
        ("unlink", lambda: os.unlink(f"{d}/other"), 1),
    )
    look_up = None
    for what, fn, most in steps:
        drop_dentries()
        os.stat(d)
        time.sleep(1.2)
        os.stat(d)
        scripts = commands_of(client, fn)
        looked = scripts.count(look_up) if look_up else 0
        row("trips", f"{what} (and {looked} look-ups)" if looked else what, len(scripts) - looked, "", f"≤ {most}")
        if look_up is None:  # the first step is a look-up and nothing else
            look_up = scripts[0]


def memory(row, lab, client, meta, n):
    """a mount that the kernel asked about n inodes"""
    m = lab.mount(meta, "many", flags=("--attr-cache", "300", "--entry-cache", "300", "--dir-entry-cache", "300"))
    before = m.rss_mib()
    top = m.path("many")
    os.makedirs(top)
    first = 1 << 40
    for i in range(0, n, 100000):
        os.mkdir(f"{top}/d{i}")
        fill_directory(client, inode(f"{top}/d{i}"), first + i, min(100000, n - i))
    timed("find", top, "-size", "+1")
    after = m.rss_mib()
    drop_dentries()
    time.sleep(2)
    row("memory", f"mount, {n} inodes looked up", after, "MiB", "300 MiB", after / 300, "≤ 1")
    row("memory", "  after the kernel forgot them", m.rss_mib(), "MiB", "before", m.rss_mib() / before, None)
    m.stop()
    lab.started.remove(m)


def run(lab, redis, juicefs, tool, row, quick=False):
    count, big, many = (1000, 20000, 100000) if quick else (10000, 150000, 1000000)
    rounds = 3
    meta, client = redis.url(2), redis.client(2)
    lab.format(meta, "meta", flags=("--trash-days", "0"))
    ours = lab.mount(meta, "meta-stoke", flags=("--enable-xattr",))
    theirs = lab.juice_mount(juicefs, meta, "meta-juicefs", kernel_caches=True)
    pair = Pair(lab, tool, row, ours, theirs, Names(lab, "names", 1))
    print("meta: operations per second beside JuiceFS 1.4.2, same volume and Redis, default caches")
    for threads in (1, 16):
        pair.rates("", threads, count // threads // (2 if threads == 1 else 1), rounds, OPS)
        pair.rates(" of a directory, entries", threads, count // threads, rounds, ("readdir",), ("create",))
    cold = Pair(lab, tool, row, lab.mount(meta, "cold-stoke", flags=NO_CACHES), lab.juice_mount(juicefs, meta, "cold-juicefs"),
                Names(lab, "cold-names", 0))
    for threads in (1, 16):
        cold.rates(" without the kernel's caches", threads, count // threads // 2, rounds, ("stat", "open"), ("create",))

    print(f"large directories ({big} files), cold")
    folder = ours.path("big")
    os.mkdir(folder)
    fill_directory(client, inode(folder), 1 << 41, big)
    pair.seconds(f"ls -l of {big} files", lambda m, _: ("ls", "-l", m.path("big")), rounds, limit="≤ 1000 ms")
    pair.seconds(f"find of {big} files", lambda m, _: ("find", m.path("big"), "-type", "f", "-newer", "/"), rounds, limit="≤ 1000 ms")
    tree = big // 150 * 100
    for i, (name, m) in enumerate(pair.mounts.items()):
        top = m.path(f"tree-{name}")
        os.mkdir(top)
        for k in range(10):
            os.mkdir(f"{top}/d{k}")
            fill_directory(client, inode(f"{top}/d{k}"), (1 << 42) + (i * 10 + k) * tree, tree // 10)
    pair.seconds(f"du of {tree} files", lambda m, name: ("du", "-s", m.path("tree-stoke")), rounds)
    pair.seconds(f"rm -r of {tree} files", lambda m, name: ("rm", "-r", m.path(f"tree-{name}")))
    round_trips(row, client, ours)
    memory(row, lab, client, meta, many)
