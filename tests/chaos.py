#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make chaos [MINUTES=10] [SEED=n]: five daemons and three mounts, each on a node of its own, under random faults, while readers
compare every byte and writers read back what they wrote.

Fails on a wrong byte, on any error, and on a read of more than 2 s while S3 could be reached. The seed gives the same faults in
the same order (not the same timing). Ends with what happened: faults by kind, reads, bytes, the slowest."""
import argparse
import contextlib
import mmap
import multiprocessing
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lab as stoke_lab  # noqa: E402
import netlab  # noqa: E402

SLOW, SHOWN = 2.0, 0.3  # a failure; worth a look
MIB = 1 << 20
DAEMONS, MOUNTS = 5, 3


class Outages:
    """when something that reads may have to wait for was away: (since, until or None)"""

    def __init__(self):
        self.spans = []

    def begin(self):
        self.spans.append([time.monotonic(), None])

    def end(self):
        self.spans[-1][1] = time.monotonic()

    def touches(self, since, until, after=1.0):
        """after: back-off of who was refused"""
        return any(s < until and (e is None or e + after > since) for s, e in self.spans)


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
            self.out.put(("slow", t0, t1, f"{name} at {off}"))

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
                        self.read_once(fd, f"{m}/{name}", self.rng.randrange(0, size) // 4096 * 4096, self.rng.choice((4096, 65536, 256 << 10)))
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

    def build(self):
        lab = self.lab
        lab.tls = lab.tls or self.a.tls
        self.redis = lab.redis(appendonly=True)
        self.rgw = lab.rgw()
        self.meta = self.redis.url(1)
        lab.format(self.meta, "vol", self.rgw, "vol", flags=["--block-size", "1M", "--trash-days", "0"])
        self.nodes = [lab.node() for _ in range(DAEMONS)]
        self.disks = [lab.fault_fs(f"disk{i + 1}") for i in range(DAEMONS)]
        self.daemons = [lab.daemon(self.meta, i + 1, node=node, cache_mib=self.a.cache_mib, cache_dirs=[self.disks[i].path])
                        for i, node in enumerate(self.nodes)]
        self.mounts = [lab.group_mount(self.meta, f"m{i + 1}", node=self.nodes[i], socket=self.daemons[i].socket,
                                       flags=["--buffer-size", "64"]) for i in range(MOUNTS)]
        self.files = {}
        for i in range(self.a.files):
            data = self.rng.randbytes(self.rng.choice((1, 4096, 100_000, MIB, 3 * MIB + 17, 8 * MIB)))
            with open(self.mounts[i % MOUNTS].path(f"f{i}"), "wb") as f:
                f.write(data)
            self.files[f"f{i}"] = data
        time.sleep(1)

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
        slow = sorted(((until - since, since - self.begun, what) for since, until, what in self.slow
                       if not self.s3_away.touches(since, until)), reverse=True)
        for took, at, what in slow:
            if took > SLOW:
                self.fail(f"{what}: took {took:.2f} s, at {at:.2f}")
        return f"{len(slow)} took more than {SHOWN} s, the slowest {slow[0][0]:.2f} s ({slow[0][2]}, at {slow[0][1]:.2f})" if slow \
            else f"all within {SHOWN} s"

    # --- faults; each makes something wrong and says how long ---

    def after(self, seconds, what, fn):
        self.healing.append((time.monotonic() + seconds, what, fn))

    def pick(self, k=1):
        return self.rng.sample([i for i in range(DAEMONS) if i not in self.busy], k)

    def engage(self, i, seconds, what, fn):
        self.busy.add(i)

        def heal():
            fn()
            self.busy.discard(i)
        self.after(seconds, what, heal)

    def fault_kill(self):
        i, = self.pick()
        self.daemons[i].kill()
        self.engage(i, self.rng.uniform(0.2, 7), f"d{i + 1} starts again", lambda: self.daemons[i].again())
        return f"kill -9 d{i + 1}"

    def fault_restart(self):
        i, = self.pick()

        def restart():
            self.daemons[i].stop()
            self.daemons[i].again()
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
        self.after(self.rng.uniform(0.5, 6), f"d{i + 1} reaches d{j + 1}", lambda: self.nodes[i].drop(self.nodes[j], False))
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
            d.stop()
            d.again()
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
        for item in sorted(self.healing, key=lambda x: x[0]):
            if everything or item[0] <= time.monotonic():
                self.healing.remove(item)
                self.say(item[1])
                item[2]()

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
        self.busy, self.redis_is_away, self.s3_is_away = set(), False, False
        end = time.monotonic() + self.a.minutes * 60
        try:
            while time.monotonic() < end and len(self.bad) < 20:
                self.fault()
                pause = time.monotonic() + self.rng.uniform(0.1, self.a.calm)
                while time.monotonic() < pause:
                    self.heal_due()
                    self.hear()
                    time.sleep(0.02)
        finally:
            self.heal_due(everything=True)

    def run(self):
        self.build()
        self.begun = time.monotonic()
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
        print(f"chaos: seed {self.a.seed}, {self.now():.0f} s; faults: {', '.join(f'{k} {n}' for k, n in sorted(self.faults.items()))}; "
              f"{self.sum.get('reads', 0)} reads, {self.sum.get('bytes', 0) / MIB:.0f} MiB, {reads}; "
              f"{self.sum.get('checkpoints', 0)} checkpoints; {len(self.bad)} failures", flush=True)
        return not self.bad

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
    ap.add_argument("--files", type=int, default=60)
    ap.add_argument("--cache-mib", type=int, default=100)
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
