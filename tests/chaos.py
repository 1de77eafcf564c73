#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make chaos [MINUTES=10] [SEED=n]: five daemons and three mounts, each on a node of its own, under random faults, while readers
compare every byte and writers read back what they wrote.

Fails on a wrong byte, on any error, on a read of more than 2 s while S3 could be reached or a member had the block (and no other
fault was about), and on programs that end by themselves. When all is healed: every member is active again, each mount reads all
files, each block on a disk is the object's, what happened was counted in metrics, memory and descriptors are within bounds. The seed
gives the same faults in the same order (not the same timing). Ends with what happened: faults by kind, reads, bytes, the slowest."""
import argparse
import contextlib
import json
import mmap
import multiprocessing
import os
import queue
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lab as stoke_lab  # noqa: E402
import netlab  # noqa: E402

SLOW, SHOWN = 2.0, 0.3  # a failure; worth a look
BACK_S, RSS_MIB, FDS_MORE = 15, 1024, 100  # until all are active again; of a process at most; descriptors more than before
MIB = 1 << 20
DAEMONS, MOUNTS = 5, 3


class Outages:
    """when something that reads may have to wait for was away: (since, until or None)"""

    def __init__(self):
        self.spans = []

    def begin(self):
        self.spans.append([time.monotonic(), None])
        return self.spans[-1]

    def end(self, span=None):
        """the last one, or the one that begin() gave"""
        (span or self.spans[-1])[1] = time.monotonic()

    def during(self, fn):
        """one that begins now and ends after fn was called, by who heals it"""
        span = self.begin()

        def heal():
            fn()
            self.end(span)
        return heal

    def touches(self, since, until, after=1.0):
        """after: back-off of who was refused"""
        return any(s < until and (e is None or e + after > since) for s, e in self.spans)


class Watch:
    """counters of all processes, added up over their restarts; the most memory and descriptors each had"""

    def __init__(self):
        self.last, self.sums, self.rss, self.fds = {}, {}, {}, {}

    def look(self, name, p):
        try:
            now = p.metrics()
            self.rss[name] = max(self.rss.get(name, 0), p.rss_mib())
            self.fds.setdefault(name, []).append(len(os.listdir(f"/proc/{p.pid}/fd")))
        except (OSError, ValueError):
            return
        before = self.last.get(name, {})
        for key, n in now.items():
            self.sums[key] = self.sums.get(key, 0) + (n - before.get(key, 0) if n >= before.get(key, 0) else n)
        self.last[name] = now

    def of(self, *words):
        """how often what all of these words are in happened"""
        return sum(n for key, n in self.sums.items() if all(w in key for w in words))


# kind of fault -> one of these must have been counted (words of a metric's name and labels)
COUNTED = {
    "kill": (("stoke_peer_connects_total", "failed"), ("stoke_peer_slow",)),
    "freeze": (("stoke_peer_slow",), ("stoke_hedges",)),
    "cable": (("stoke_peer_slow",), ("stoke_hedges",), ("stoke_peer_connects_total", "failed")),
    "disk": (("stoke_cached_disk_errors",), ("stoke_cached_disk_given_up",), ("stoke_cached_disk_set_aside",),
             ("stoke_cached_disk_skipped",), ("stoke_cached_blocks_damaged",)),
    "drain": (("stoke_cached_moved_out",),),
    "join": (("stoke_cached_moved_in",),),
    "redis": (("stoke_cached_heartbeats_failed",),),
    "s3": (("stoke_object_retries",),),
}


class Worker:
    """Reads or writes in a process of its own: what the chaos itself starts must not inherit open files of a mount, whose
    close waits for the mount. Says what happened through a queue: ("bad", text), ("slow", since, until, text), ("sum", dict)."""

    def __init__(self, chaos, out, stop, seed):
        self.files, self.mounts, self.pause = chaos.files, [m.dir for m in chaos.mounts], chaos.a.pause
        self.out, self.stop, self.rng = out, stop, random.Random(seed)
        self.sum = {"reads": 0, "bytes": 0, "checkpoints": 0}
        self.room = mmap.mmap(-1, 8 * MIB)

    def run(self, fn, m):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            fn(self, m)
        except Exception:
            self.bad(traceback.format_exc())
        self.out.put(("sum", self.sum))

    def bad(self, text):
        self.out.put(("bad", text))

    def read_once(self, fd, name, off, n):
        data, room = self.files[os.path.basename(name)], self.room
        t0 = time.monotonic()
        try:
            got = os.preadv(fd, [memoryview(room)[:n]], off)
        except OSError as e:
            self.bad(f"{name} at {off}: {e} after {time.monotonic() - t0:.2f} s")
            return
        t1 = time.monotonic()
        want = data[off:off + n]
        if got != len(want) or room[:got] != want:
            first = next((i for i in range(min(got, len(want))) if room[i] != want[i]), min(got, len(want)))
            self.bad(f"{name} at {off}: {got} bytes of {len(want)}, the first wrong one at {off + first}")
        self.sum["reads"] += 1
        self.sum["bytes"] += got
        if t1 - t0 > SHOWN:
            self.out.put(("slow", t0, t1, f"{name} at {off}, {got} bytes"))

    def reader(self, m):
        """O_DIRECT: every read comes to the mount"""
        names = sorted(self.files)
        while not self.stop.is_set():
            name = self.rng.choice(names)
            size = len(self.files[name])
            fd = os.open(f"{m}/{name}", os.O_RDONLY | os.O_DIRECT)
            try:
                if self.rng.random() < 0.5:
                    for off in range(0, size, MIB):
                        self.read_once(fd, f"{m}/{name}", off, MIB)
                else:
                    for _ in range(8):
                        self.read_once(fd, f"{m}/{name}", self.rng.randrange(0, size) // 4096 * 4096,
                                       self.rng.choice((4096, 65536, 256 << 10)))
            finally:
                os.close(fd)
            time.sleep(self.rng.random() * self.pause)

    def writer(self, m):
        """a checkpoint: written, synced, read back on another mount"""
        i = 0
        while not self.stop.is_set():
            i = (i + 1) % 4
            data = self.rng.randbytes(self.rng.choice((10_000, 2 * MIB, 5 * MIB + 3)))
            with open(f"{m}/ckpt{i}.tmp", "wb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
            os.rename(f"{m}/ckpt{i}.tmp", f"{m}/ckpt{i}")
            other = self.rng.choice(self.mounts)
            with open(f"{other}/ckpt{i}", "rb") as f:
                if f.read() != data:
                    self.bad(f"{m}/ckpt{i}: {len(data)} bytes came back wrong on {other}")
            self.sum["checkpoints"] += 1
            time.sleep(self.rng.random() * 4 * self.pause)


class Chaos:
    def __init__(self, a, lab):
        self.a, self.lab = a, lab
        self.rng = random.Random(a.seed)
        self.bad, self.slow, self.faults, self.sum = [], [], {}, {}
        self.s3_away, self.redis_away = Outages(), Outages()
        self.healing = []  # (when, what, fn): what ends a fault
        self.busy, self.redis_is_away, self.s3_is_away = set(), False, False
        self.disturbed = [Outages() for _ in range(DAEMONS)]
        self.elsewhere = Outages()  # a node's packets, the sixth member
        self.held = []  # an S3 outage each: what was on which disks when it began
        self.begun = time.monotonic()

    def now(self):
        return time.monotonic() - self.begun

    def say(self, text):
        if self.a.verbose:
            print(f"[{self.now():7.2f}] {text}", flush=True)

    def fail(self, text):
        print(f"[{self.now():7.2f}] FAILED {text}", flush=True)
        self.bad.append(text)

    # --- the cluster ---

    def format_flags(self):
        flags = ["--block-size", f"{self.a.block_size}K", "--trash-days", "0", "--compress", self.a.compress]
        if self.a.encrypt:
            self.lab.env["JFS_RSA_PASSPHRASE"] = "open sesame"
            key = f"{self.lab.folder}/key.pem"
            stoke_lab.run(["openssl", "genrsa", "-aes256", "-passout", "pass:open sesame", "-out", key, "2048"])
            flags += ["--encrypt-rsa-key", key]
        return flags

    def build(self):
        lab = self.lab
        lab.tls = lab.tls or self.a.tls or self.a.encrypt
        self.redis = lab.redis(appendonly=True)
        self.rgw = lab.rgw()
        self.meta = self.redis.url(1)
        lab.format(self.meta, "vol", self.rgw, "vol", flags=self.format_flags())
        self.nodes = [lab.node() for _ in range(DAEMONS + 1)]
        self.disks = [lab.fault_fs(f"disk{i + 1}") for i in range(DAEMONS)]
        self.daemons = [lab.daemon(self.meta, i + 1, node=self.nodes[i], cache_mib=self.a.cache_mib, cache_dirs=[self.disks[i].path])
                        for i in range(DAEMONS)]
        self.sixth = None
        self.mounts = [lab.group_mount(self.meta, f"m{i + 1}", node=self.nodes[i], socket=self.daemons[i].socket,
                                       flags=["--buffer-size", "64"]) for i in range(MOUNTS)]
        self.files = {}
        for i in range(self.a.files):
            data = self.rng.randbytes(self.rng.choice((1, 4096, 100_000, MIB, 3 * MIB + 17, 8 * MIB)))
            with open(self.mounts[i % MOUNTS].path(f"f{i}"), "wb") as f:
                f.write(data)
            self.files[f"f{i}"] = data
        self.slices = {name: self.slices_of(name) for name in self.files}
        self.watch = Watch()
        self.look()

    def slices_of(self, name):
        """[(where in the file, length, slice, its size, where in the slice)]"""
        inode = os.stat(self.mounts[0].path(name)).st_ino
        records = self.redis.client(1).lrange(f"c{inode}_0", 0, -1)
        return [(pos, n, slice_id, size, at) for pos, slice_id, size, at, n in (struct.unpack(">IQIII", x) for x in records)]

    def blocks_of(self, name, off, n):
        block, out = self.a.block_size << 10, set()
        for pos, length, slice_id, size, at in self.slices[name]:
            first, last = max(off, pos), min(off + n, pos + length) - 1
            for b in range((first - pos + at) // block, (last - pos + at) // block + 1) if first <= last else ():
                out.add(f"{slice_id}_{b}_{min(block, size - b * block)}")
        return out

    def on_disks(self):
        """name of a block -> the daemons that have it, and one of the files"""
        out = {}
        for i, disk in enumerate(self.disks):
            for folder, _, files in os.walk(disk.below):
                for f in files:
                    if re.fullmatch(r"\d+_\d+_\d+", f):
                        out.setdefault(f, {})[i] = os.path.join(folder, f)
        return out

    # --- what the programs count ---

    def programs(self):
        daemons = [(f"d{i + 1}", d) for i, d in enumerate(self.daemons) if i not in self.busy]
        return daemons + [(f"m{i + 1}", m) for i, m in enumerate(self.mounts)]

    def look(self, only=None):
        for k, (name, p) in enumerate(self.programs()):
            if only is None or k == only % (DAEMONS + MOUNTS):
                self.watch.look(name, p)

    # --- what the workers say ---

    def hear(self):
        with contextlib.suppress(queue.Empty):
            while True:
                kind, *what = self.out.get_nowait()
                if kind == "bad":
                    self.fail(what[0])
                elif kind == "slow":
                    self.slow.append(what)
                else:
                    self.sum = {k: self.sum.get(k, 0) + n for k, n in what[0].items()}

    def judge(self):
        """no cable of a node with a mount is ever pulled: what a read may wait for is S3, when no member has the block"""
        slow = sorted(((until - since, since - self.begun, what + self.had_it(since, until, what)) for since, until, what in self.slow
                       if not self.s3_away.touches(since, until) or self.had_it(since, until, what)), reverse=True)
        for took, at, what in slow:
            if took > SLOW:
                self.fail(f"{what}: took {took:.2f} s, at {at:.2f}")
        return f"{len(slow)} took more than {SHOWN} s, the slowest {slow[0][0]:.2f} s ({slow[0][2]}, at {slow[0][1]:.2f})" if slow \
            else f"all within {SHOWN} s"

    def had_it(self, since, until, what):
        """S3 was away: who had all blocks of it; "" when nobody had one of them. Who else was disturbed counts, too: beside an owner
        that cannot be reached, what others keep of his is found by hedges only."""
        if not self.s3_away.touches(since, until) or \
                any(o.touches(since - 6, until, 6) for o in (*self.disturbed, self.elsewhere)):
            return ""
        name, off, n = re.fullmatch(r"\S*/(\S+) at (\d+), (\d+) bytes", what).groups()
        blocks, who = self.blocks_of(name, int(off), int(n)), set()
        for (begin, end), held in zip(self.s3_away.spans, self.held):
            if begin > until or (end and end + 1 < since):
                continue
            for b in blocks:
                if b not in held:
                    return ""
                who.update(held[b])
        return f" (S3 was away, but {', '.join(f'd{i + 1}' for i in sorted(who))} had it)" if who else ""

    # --- faults; each makes something wrong and says how long ---

    def after(self, seconds, what, fn):
        self.healing.append((time.monotonic() + seconds, what, fn))

    def pick(self, k=1):
        return self.rng.sample([i for i in range(DAEMONS) if i not in self.busy], k)

    def engage(self, i, seconds, what, fn):
        self.busy.add(i)
        self.disturbed[i].begin()

        def heal():
            if fn() != "later":
                self.settled(i)
        self.after(seconds, what, heal)

    def settled(self, i):
        self.busy.discard(i)
        self.disturbed[i].end()

    def start_again(self, i, since=None):
        """what a daemon needs to start may be away: it is looked after now and then, until it is ready"""
        d = self.daemons[i]
        if since is None:
            since = time.monotonic()
            d.again(wait=False)
        with contextlib.suppress(OSError):
            stoke_lab.http_get(d.http, "/readyz", d.ip)
            self.settled(i)
            return "later"
        if time.monotonic() - since < 60 and d.running():
            self.after(0.1, None, lambda: self.start_again(i, since))
        else:
            self.fail(f"d{i + 1} was not ready within 60 s:\n{d.text()[-2000:]}")
        return "later"

    def fault_kill(self):
        i, = self.pick()
        self.daemons[i].kill()
        self.engage(i, self.rng.uniform(0.2, 7), f"d{i + 1} starts again", lambda: self.start_again(i))
        return f"kill -9 d{i + 1}"

    def fault_restart(self):
        i, = self.pick()

        def restart():
            self.daemons[i].stop()
            return self.start_again(i)
        self.engage(i, 0, f"d{i + 1} is stopped and started", restart)
        return f"restart d{i + 1}"

    def fault_freeze(self):
        i, = self.pick()
        self.daemons[i].signal(signal.SIGSTOP)
        self.engage(i, self.rng.uniform(0.1, 8), f"d{i + 1} SIGCONT", lambda: self.daemons[i].signal(signal.SIGCONT))
        return f"SIGSTOP d{i + 1}"

    def fault_cable(self):
        """of a node without a mount"""
        free = [i for i in range(MOUNTS, DAEMONS) if i not in self.busy]
        if not free:
            return None
        i = self.rng.choice(free)
        self.nodes[i].cut()
        self.engage(i, self.rng.uniform(0.5, 8), f"cable of d{i + 1} in", lambda: self.nodes[i].cut(False))
        return f"cable of d{i + 1} out"

    def fault_drop(self):
        i, j = self.rng.sample(range(DAEMONS), 2)
        self.nodes[i].drop(self.nodes[j])
        self.after(self.rng.uniform(0.5, 6), f"d{i + 1} reaches d{j + 1}",
                   self.elsewhere.during(lambda: self.nodes[i].drop(self.nodes[j], False)))
        return f"packets of node {i + 1} to node {j + 1} are dropped"

    def fault_disk(self):
        i, = self.pick()
        what = self.rng.choice(("all error EIO", "read error EIO", "write error ENOSPC", "read hang", "all hang", "write hang", "readonly",
                                "all delay 300", "read flip", "read short", "lookup error ENOENT"))
        self.disks[i].do("cold")
        self.disks[i].do(what)
        self.engage(i, self.rng.uniform(0.5, 6), f"disk of d{i + 1} is well", lambda: self.disks[i].do("clear"))
        return f"disk of d{i + 1}: {what}"

    def fault_handover(self):
        """the program is replaced in place"""
        i, = self.pick()
        self.daemons[i].signal(signal.SIGUSR2)
        self.engage(i, 0.5, f"d{i + 1} was handed over", lambda: None)
        return f"SIGUSR2 d{i + 1}"

    def fault_roll(self):
        """all programs are replaced, one after the other"""
        def step(i):
            if i not in self.busy:
                self.daemons[i].signal(signal.SIGUSR2)
                self.engage(i, 0.5, None, lambda: None)
            if i + 1 < DAEMONS:
                self.after(0.7, f"SIGUSR2 d{i + 2}", lambda: step(i + 1))
        step(0)
        return "rolling restart: SIGUSR2 d1"

    def fault_weight(self):
        """started again with another weight"""
        i, = self.pick()
        weight = self.rng.choice((25, 50, 100, 200, 400))

        def restart():
            d = self.daemons[i]
            d.stop()
            d.start_argv = [x for x in d.start_argv if not x.startswith("--group-weight")] + [f"--group-weight={weight}"]
            return self.start_again(i)
        self.engage(i, 0, f"d{i + 1} is stopped, and started with weight {weight}", restart)
        return f"weight {weight} for d{i + 1}"

    def fault_join(self):
        """a sixth member comes, and goes in one way or another"""
        d = self.sixth
        if self.redis_is_away or (d and d.running()):
            return None
        if d:
            d.again(wait=False)
        else:
            self.sixth = d = self.lab.daemon(self.meta, DAEMONS + 1, node=self.nodes[DAEMONS], cache_mib=self.a.cache_mib)
        how = self.rng.choice(("kill", "stop", "drain"))

        def leave():
            if how == "drain":
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.lab.stoke("drain", self.meta, f"{d.ip}:{d.port}", check=False, timeout=2)
            d.kill() if how == "kill" else d.stop()
        self.after(self.rng.uniform(1, 10), f"d{DAEMONS + 1} leaves: {how}", self.elsewhere.during(leave))
        return f"d{DAEMONS + 1} joins"

    def fault_blind(self):
        """a node loses S3 or Redis, which all others reach"""
        i = self.rng.randrange(DAEMONS)
        what, address = self.rng.choice((("S3", netlab.S3), ("Redis", netlab.REDIS)))
        self.nodes[i].drop(address)
        self.after(self.rng.uniform(0.5, 4), f"node {i + 1} reaches {what}",
                   self.elsewhere.during(lambda: self.nodes[i].drop(address, False)))
        return f"node {i + 1} loses {what}"

    def fault_drain(self):
        """asked to move all and leave, then stopped, and joins again later"""
        if self.redis_is_away:
            return None
        i, = self.pick()
        d = self.daemons[i]
        p = subprocess.Popen([f"{self.lab.bin}/stoke", "drain", self.meta, f"{d.ip}:{d.port}"], env=self.lab.env,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def heal():
            if p.poll() is None:
                p.terminate()
            p.communicate()
            self.watch.look(f"d{i + 1}", d)
            d.stop()
            return self.start_again(i)
        self.engage(i, self.rng.uniform(1, 6), f"d{i + 1} is stopped and joins again", heal)
        return f"drain d{i + 1}"

    def fault_redis(self):
        if self.redis_is_away:
            return None
        self.redis_is_away = True
        self.redis_away.begin()
        frozen = self.rng.random() < 0.5
        if frozen:
            self.redis.signal(signal.SIGSTOP)
        else:
            self.redis.kill()

        def heal():
            self.redis.signal(signal.SIGCONT) if frozen else self.redis.boot()
            self.redis_away.end()
            self.redis_is_away = False
        self.after(self.rng.uniform(0.3, 4), "Redis is back", heal)
        return "Redis SIGSTOP" if frozen else "kill -9 Redis"

    def fault_s3(self):
        if self.s3_is_away:
            return None
        self.s3_is_away = True
        self.held.append(self.on_disks())
        self.s3_away.begin()
        frozen = self.rng.random() < 0.5
        if frozen:
            self.rgw.signal(signal.SIGSTOP)
        else:
            self.rgw.kill_gateway()

        def heal():
            self.rgw.signal(signal.SIGCONT) if frozen else self.rgw.start_gateway()
            self.s3_away.end()
            self.s3_is_away = False
        self.after(self.rng.uniform(0.3, 4), "S3 is back", heal)
        return "S3 SIGSTOP" if frozen else "kill -9 S3"

    def heal_due(self, everything=False):
        end = time.monotonic() + 70
        while True:
            for item in sorted(self.healing, key=lambda x: x[0]):
                if everything or item[0] <= time.monotonic():
                    self.healing.remove(item)
                    if item[1]:
                        self.say(item[1])
                    item[2]()
            if not everything or not self.healing or time.monotonic() > end:
                return
            time.sleep(0.02)

    def fault(self):
        if len(self.busy) >= DAEMONS - 2:
            return
        kind = self.rng.choice(self.a.kinds)
        what = getattr(self, f"fault_{kind}")()
        if what:
            self.faults[kind] = self.faults.get(kind, 0) + 1
            self.say(what)

    # --- the run ---

    def torment(self):
        end, looked, turn = time.monotonic() + self.a.minutes * 60, 0, 0
        try:
            while time.monotonic() < end and len(self.bad) < 20:
                self.fault()
                pause = time.monotonic() + self.rng.uniform(0.1, self.a.calm)
                while time.monotonic() < pause:
                    self.heal_due()
                    self.hear()
                    now = time.monotonic()
                    if now > looked + 0.3:
                        looked, turn = now, turn + 1
                        self.look(turn)
                    time.sleep(0.02)
        finally:
            self.heal_due(everything=True)

    def run(self):
        self.build()
        self.begun = time.monotonic()
        self.say(f"begun {time.time():.3f}")
        fork = multiprocessing.get_context("fork")
        self.out, stop = fork.Queue(), fork.Event()
        jobs = [(Worker.reader, m.dir) for m in self.mounts for _ in range(2)] + [(Worker.writer, self.mounts[0].dir)]
        workers = [fork.Process(target=Worker(self, self.out, stop, self.a.seed + i).run, args=job) for i, job in enumerate(jobs)]
        for w in workers:
            w.start()
        try:
            self.torment()
        finally:
            stop.set()
            self.end_workers(workers)
        for p in (*self.mounts, *self.daemons):
            if not p.running():
                self.fail(f"{p.log}: ended by itself:\n{p.text()[-2000:]}")
        reads = self.judge()
        if all(p.running() for p in (*self.mounts, *self.daemons)):
            self.healed()
        print(f"chaos: seed {self.a.seed}, {self.now():.0f} s; faults: {', '.join(f'{k} {n}' for k, n in sorted(self.faults.items()))}; "
              f"{self.sum.get('reads', 0)} reads, {self.sum.get('bytes', 0) / MIB:.0f} MiB, {reads}; "
              f"{self.sum.get('checkpoints', 0)} checkpoints; {len(self.bad)} failures", flush=True)
        return not self.bad

    # --- when all is healed ---

    def members(self):
        groups = json.loads(self.lab.stoke("status", self.meta).stdout).get("Groups", [])
        return [m for g in (groups.values() if isinstance(groups, dict) else groups) for m in g.get("Members", [])]

    def healed(self):
        begun = time.monotonic()
        try:
            stoke_lab.wait_for("active members", lambda: len(m := self.members()) == DAEMONS and
                               all(x["State"] == "active" for x in m), BACK_S)
            print(f"all members active {time.monotonic() - begun:.1f} s after the last fault")
        except TimeoutError:
            self.fail(f"not all members are active {BACK_S} s after the last fault: {json.dumps(self.members())}")
        self.read_all()
        self.look()
        self.look_at_counters()
        self.look_at_gets()
        self.compare_blocks()

    def look_at_gets(self):
        whole, ranged = ([k.rsplit("/", 1)[1] for k in keys] for keys in self.rgw.gets(0, "vol"))
        blocks = {b for name, data in self.files.items() for b in self.blocks_of(name, 0, len(data))}
        of_files = sum(k in blocks for k in whole)
        print(f"S3 GETs: {len(whole)} whole, {len(ranged)} of ranges; {of_files} of the whole ones for the {len(blocks)} blocks of the "
              f"files that are read, the others for checkpoints")
        # who only loses S3 or Redis has all that he ever had
        if set(self.faults) <= {"s3", "redis"} and not self.watch.of("stoke_cached_evictions") and \
                of_files > len(blocks) + self.watch.of("stoke_hedges_total"):
            self.fail(f"{of_files} GETs for {len(blocks)} blocks, and {self.watch.of('stoke_hedges_total'):.0f} hedges")

    def read_all(self):
        n = 0
        for m in self.mounts:
            for name, data in self.files.items():
                room = mmap.mmap(-1, 8 * MIB + 4096)
                fd = os.open(m.path(name), os.O_RDONLY | os.O_DIRECT)
                try:
                    got = os.preadv(fd, [room], 0)
                    while got < len(data) and (more := os.preadv(fd, [memoryview(room)[got:]], got)):
                        got += more
                finally:
                    os.close(fd)
                if room[:got] != data:
                    self.fail(f"{m.path(name)}: wrong after everything was healed: {got} bytes of {len(data)}")
                n += 1
        print(f"{n} files read whole once more")

    def compare_blocks(self):
        """each block on a disk with the object, or, where objects are encoded, with the other disks'"""
        plain, n, client = self.a.compress == "none" and not self.a.encrypt, 0, self.rgw.client()
        for name, where in self.on_disks().items():
            slice_id, _, size = (int(x) for x in name.split("_"))
            want = None
            if plain:
                try:
                    key = f"vol/chunks/{slice_id // 1000000}/{slice_id // 1000}/{name}"
                    want = client.get_object(Bucket="vol", Key=key)["Body"].read()
                except client.exceptions.NoSuchKey:
                    pass  # a checkpoint that was replaced
            for i, path in where.items():
                try:
                    with open(path, "rb") as f:
                        got = f.read(size)
                except FileNotFoundError:
                    continue
                want = got if want is None else want
                n += 1
                if got != want:
                    self.fail(f"{path}: the block is damaged on the disk of d{i + 1}")
        print(f"{n} blocks on disks compared")

    def look_at_counters(self):
        for kind, rows in COUNTED.items():
            if self.faults.get(kind, 0) >= 3 and not sum(self.watch.of(*words) for words in rows):
                self.fail(f"{self.faults[kind]} × {kind}, and none of {rows} was counted")
        print("counted: " + ", ".join(f"{name} {self.watch.of('stoke_' + name):.0f}" for name in (
            "hedges_total", "peer_slow_total", "peer_passed_total", "damaged_answers_total", "cached_blocks_damaged", "cached_disk_errors",
            "cached_disk_given_up", "cached_disk_set_aside", "object_retries", "cached_moved_in", "cached_moved_out",
            "cached_heartbeats_failed", "cached_evictions")))
        asan = "asan" in self.lab.bin
        for name, most in self.watch.rss.items():
            if most > RSS_MIB and not asan:
                self.fail(f"{name} had {most:.0f} MiB of memory")
        for name, n in self.watch.fds.items():
            if name[0] == "m" and len(n) > 8 and n[-1] > max(n[:len(n) // 2]) + FDS_MORE:
                self.fail(f"{name} has {n[-1]} descriptors open, {max(n[:len(n) // 2])} at most in the first half")
        print("most memory, descriptors: " + ", ".join(f"{name} {most:.0f} MiB {max(self.watch.fds[name])}" for name, most in
                                                       sorted(self.watch.rss.items())))

    def end_workers(self, workers):
        end = time.monotonic() + 90
        while any(w.is_alive() for w in workers) and time.monotonic() < end:
            self.hear()
            time.sleep(0.05)
        self.hear()
        for w in workers:
            if w.is_alive():
                self.fail("a reader or writer did not come back within 90 s after everything was healed")
                w.kill()


def main():
    kinds = sorted(name[6:] for name in dir(Chaos) if name.startswith("fault_"))
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--minutes", type=float, default=float(os.environ.get("MINUTES") or 10))
    ap.add_argument("--seed", type=int, default=stoke_lab.seed())
    ap.add_argument("--kinds", default=",".join(kinds), help="faults to choose from: " + ", ".join(kinds))
    ap.add_argument("--calm", type=float, default=2.5, help="longest pause between two faults, in seconds")
    ap.add_argument("--pause", type=float, default=0.1, help="longest rest of a reader between two files, in seconds")
    ap.add_argument("--tls", action="store_true", help="TLS between the nodes")
    ap.add_argument("--block-size", type=int, default=1024, help="KiB")
    ap.add_argument("--compress", default="none", help="none, lz4, zstd")
    ap.add_argument("--encrypt", action="store_true", help="an encrypted volume, over TLS")
    ap.add_argument("--files", type=int, default=60)
    ap.add_argument("--cache-mib", type=int, default=300, help="each; less than about 100 and blocks are evicted all the time")
    ap.add_argument("--folder", help="where everything lives, kept; default: a temporary one, kept when the run failed")
    ap.add_argument("-v", "--verbose", action="store_true")
    a = ap.parse_args()
    a.kinds = [k for k in a.kinds.split(",") if k]
    if unknown := set(a.kinds) - set(kinds):
        ap.error(f"no such fault: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="stoke-chaos-") as tmp:
        folder = a.folder or tmp
        with netlab.NetLab(folder) as lab:
            good = Chaos(a, lab).run()
        if not good and not a.folder:
            kept = tempfile.mkdtemp(prefix="stoke-chaos-failed-")
            os.rename(tmp, f"{kept}/lab")
            os.mkdir(tmp)
            print(f"kept: {kept}/lab")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
