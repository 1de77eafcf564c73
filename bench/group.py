# SPDX-License-Identifier: Apache-2.0
"""make bench, stage group: what the cache group's numbers are beside their ceilings, in one run and in turns. run.py calls it; each
part has a lab of its own: peer, small, fill, ring, conns, hot, mget, tls."""
import os
import re
import resource
import statistics
import subprocess
import tempfile
import threading
import time

import lab as stoke_lab  # run.py says where
import netlab

from measure import (MIB, cpu_seconds, drop, drop_mount_pages, null_fuse, random4k, row, sequential, side_by_side, tool, volume_hex,
                     write_files)

MEMBER = ("--join-now",)


def load(what):
    print(f"{what} (load {os.getloadavg()[0]:.1f} at its start)", flush=True)


def medians(rounds, **what):
    """of each, measured in turns"""
    seen = {k: [] for k in what}
    for _ in range(rounds):
        for k, fn in what.items():
            seen[k].append(fn())
    return {k: statistics.median(v) for k, v in seen.items()}


def volume(lab, rgw, redis, name, db):
    """a volume and a mount that knows no group: what it writes is in S3 alone"""
    meta = redis.url(db)
    lab.format(meta, name, rgw, name)
    return meta, lab.mount(meta, f"{name}-writer")


def small_files(mount, folder, n, size):
    os.mkdir(mount.path(folder))
    data = os.urandom(size + n)
    for i in range(n):
        stoke_lab.write_file(mount.path(folder, f"f{i}"), data[i:i + size])


def group_of(lab, meta, name, first, n, cache_mib=2048, flags=(), **kw):
    return [lab.daemon(meta, first + i, group=name, cache_mib=cache_mib, flags=[*MEMBER, *flags], **kw) for i in range(n)]


def filled(lab, meta, name, folder, **kw):
    """a mount of the group, through which the folder was filled into it"""
    m = lab.group_mount(meta, f"{name}-mount", group=name, **kw)
    lab.stoke("warmup", m.path(folder))
    return m


def fresh(lab, m, meta, name, **kw):
    """that mount again, with nothing in its memory"""
    m.stop()
    lab.started.remove(m)
    return lab.group_mount(meta, f"{name}-mount", group=name, **kw)


def from_peers(m, size, fn):
    """what fn says; the bytes that it read came from peers meanwhile, not from the mount's memory"""
    before = m.bytes_by_source().get("peer", 0)
    result = fn()
    came = m.bytes_by_source()["peer"] - before
    assert came > 0.9 * size, f"only {came / size:.2f} of the bytes came from peers"
    return result


# --- blocks from peers ---

def wire(lab, daemon, group="train"):
    load("wire: block files of one daemon over loopback, whole blocks")
    folder = daemon.cache[0]
    for conns in (1, 4):
        gib = bare_us = ours_s = 0

        def bare():
            nonlocal bare_us
            r = tool(lab, "wire", "bare", folder, conns, 4 // conns)
            bare_us += r["server_cpu_us"]
            return r["mib_s"]

        def once():
            nonlocal gib, ours_s
            before = cpu_seconds(daemon.pid)
            r = tool(lab, "wire", "daemon", folder, conns, 4 // conns, "127.0.0.1", daemon.port, group,
                     daemon.secret_file, volume_hex(daemon))
            gib += r["bytes"] / (1 << 30)
            ours_s += cpu_seconds(daemon.pid) - before
            return r["mib_s"]
        ceiling, served = side_by_side(5, bare, once)
        row("wire", f"bare sendfile → recv, {conns} connections", ceiling, "MiB/s")
        row("wire", f"stoke-cached, {conns} connections, checked", served, "MiB/s", "bare", served / ceiling)
        ours_ms, bare_ms = ours_s / gib * 1000, bare_us / gib / 1000
        row("wire", "  daemon CPU per GiB", ours_ms, "ms", "bare server", ours_ms / bare_ms, "≤ 1.25")


def in_turn(files, n):
    """n of them, others each time, so that none of them is in the mount's memory still"""
    i = 0
    while True:
        yield [files[(i + k) % len(files)] for k in range(n)]
        i += n


def stream_from(lab, m, daemons, what, readers, conns, target):
    files = in_turn([m.path(f"f{i}") for i in range(4)], readers)
    size = sum(map(os.path.getsize, next(files)))
    ceiling, ours = side_by_side(5, lambda: tool(lab, "wire", "bare", daemons[0].cache[0], conns, 1)["mib_s"],
                                 lambda: from_peers(m, size, lambda: sequential(lab, next(files))))
    row("peer", f"bare sendfile → recv, {conns} connections", ceiling, "MiB/s")
    row("peer", f"{what}, {readers} readers", ours, "MiB/s", "that", ours / ceiling, target)


class Streaming:
    """somebody reads these files from start to end, again and again"""

    def __init__(self, lab, files):
        self.lab, self.files, self.on = lab, files, True
        self.rates = []
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while self.on:
            self.rates.append(sequential(self.lab, self.files))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.on = False
        self.thread.join()


def random_from(lab, m, null_files, count=1000):
    files = in_turn([m.path(f"f{i}") for i in range(4)], 1)
    nulls = in_turn(null_files, 1)

    def measure(rounds):
        return medians(rounds, echo=lambda: tool(lab, "wire", "echo", 2000, 32768, 32768)["p50_us"],
                       answer=lambda: tool(lab, "wire", "echo", 2000, 64, 32768)["p50_us"],
                       null=lambda: random4k(lab, next(nulls), count)["p50_us"],
                       ours=lambda: random4k(lab, next(files), count)["p50_us"])
    before = m.metrics()
    idle = measure(5)
    after = m.metrics()
    calls, hits = (after[k] - before.get(k, 0) for k in ('stoke_peer_calls_total{result="ok"}',
                                                         'stoke_source_requests_total{source="ram",op="get",result="hit"}'))
    assert hits < 5 * count / 3, f"{hits:.0f} of {5 * count} random reads were answered from the mount's memory"
    limit = idle["echo"] + idle["null"]
    row("peer", "TCP echo of 32 KiB, p50", idle["echo"], "µs")
    row("peer", "64 bytes there, 32 KiB back, p50", idle["answer"], "µs")
    row("peer", "null FUSE, random 4 KiB, p50", idle["null"], "µs")
    row("peer", "random 4 KiB, p50", idle["ours"], "µs", "echo + null FUSE", idle["ours"] / limit, "≤ 1.5")
    row("peer", "  calls to the daemon a read", calls / (5 * count), "", None, None)
    files = in_turn([m.path(f"f{i}") for i in range(2)], 1)
    with Streaming(lab, [m.path("f2"), m.path("f3")]) as s:
        busy = measure(3)
    row("peer", "  while two readers stream", busy["ours"], "µs", "echo + null FUSE, idle", busy["ours"] / limit, "≤ 2")
    both = busy["echo"] + busy["null"]
    row("peer", "  the same", busy["ours"], "µs", "echo + null FUSE beside the same stream", busy["ours"] / both)
    row("peer", "  what they read meanwhile", statistics.median(s.rates), "MiB/s")


def peer(lab, mib):
    redis, rgw = lab.redis(), lab.rgw()
    meta, writer = volume(lab, rgw, redis, "peer", 1)
    write_files(writer, 4, mib)
    one, four = group_of(lab, meta, "one", 1, 1), group_of(lab, meta, "four", 11, 4)
    mounts = {name: filled(lab, meta, name, "") for name in ("one", "four")}
    wire(lab, one[0], "one")
    load(f"peer: sequential readers of {mib} MiB files through a mount, 1 MiB requests; the mount's memory has none of it")
    stream_from(lab, mounts["one"], one, "from one daemon (1 connection)", 1, 1, "≥ 0.5")
    stream_from(lab, mounts["one"], one, "from one daemon (1 connection)", 4, 1, "≥ 0.7")
    stream_from(lab, mounts["four"], one, "from four daemons (4 connections)", 4, 4, "≥ 0.7")
    null, null_files = null_fuse(lab, 4, mib)
    random_from(lab, fresh(lab, mounts["one"], meta, "one"), null_files)


# --- the parts ---

def small(lab, mib):
    """5000 × 100 KB, 8 threads, from three daemons; the kernel's caches are cold for both"""
    del mib
    n, size, threads = 5000, 100_000, 8
    redis, rgw = lab.redis(), lab.rgw()
    meta, writer = volume(lab, rgw, redis, "small", 1)
    small_files(writer, "small", n, size)
    plain = f"{lab.folder}/plain"
    os.mkdir(plain)
    for i in range(n):
        stoke_lab.write_file(f"{plain}/f{i}", os.urandom(size))
    group_of(lab, meta, "small", 1, 3)
    m = [filled(lab, meta, "small", "small")]
    _, files = null_fuse(lab, n, 1, threads, plain)
    through = os.path.dirname(files[0])

    def read(folder):
        r = tool(lab, "readload", "small", n, *[folder] * threads)
        assert r["errors"] == 0 and r["bytes"] == n * size, r
        return n / r["seconds"]

    def ours():
        m[0] = fresh(lab, m[0], meta, "small")
        drop()
        return from_peers(m[0], n * size, lambda: read(m[0].path("small")))

    def ceiling():
        drop()
        return read(through)

    def warm():
        m[0] = fresh(lab, m[0], meta, "small")
        drop_mount_pages(files[:1])
        return read(m[0].path("small"))
    load(f"small: {n} files of {size} bytes, {threads} threads: open, read, close; kernel caches cold")
    got = medians(3, ext4=ceiling, ours=ours, warm=warm)
    row("small", "the same on ext4 through a null FUSE", got["ext4"], "/s")
    row("small", "from three daemons", got["ours"], "/s", "that", got["ours"] / got["ext4"], "≥ 0.7")
    row("small", "  when the daemons' pages are warm", got["warm"], "/s", "that", got["warm"] / got["ext4"])


def curl_pool(rgw, keys, bucket, keep=None, processes=3, parallel=16):
    """MiB/s of so many curls, each with so many at once; keep: a new directory for what they get"""
    s3 = rgw.client()
    urls = [s3.generate_presigned_url("get_object", Params=dict(Bucket=bucket, Key=k)) for k in keys]
    with tempfile.TemporaryDirectory() as d:
        for i in range(processes):
            with open(f"{d}/{i}", "w") as f:
                f.writelines(f'url = "{u}"\noutput = "{f"{keep}/{i}-{k}" if keep else "/dev/null"}"\n'
                             for k, u in enumerate(urls[i::processes]))
        if keep:
            os.mkdir(keep)
        t = time.monotonic()
        argv = ["curl", "-s", "-f", "-Z", "--parallel-max", str(parallel), "-K"]
        running = [subprocess.Popen([*argv, f"{d}/{i}"], stderr=subprocess.DEVNULL) for i in range(processes)]
        assert not any(p.wait() for p in running)
        return len(keys) * 4 / (time.monotonic() - t)


def fill(lab, mib):
    redis, rgw = lab.redis(), lab.rgw()
    meta, writer = volume(lab, rgw, redis, "fill", 1)
    rounds = 5
    for i in range(rounds):
        with open(writer.path(f"f{i}"), "wb") as f:
            for _ in range(mib):
                f.write(os.urandom(MIB))
    pages = rgw.client().get_paginator("list_objects_v2").paginate(Bucket="fill")
    keys = [o["Key"] for page in pages for o in page.get("Contents", []) if "/chunks/" in o["Key"]]
    group_of(lab, meta, "fill", 1, 3)
    m = lab.group_mount(meta, "fill-mount", group="fill")
    at = iter(range(rounds))
    turn, kept = iter(range(rounds)), iter(range(rounds))
    mark = rgw.log_size()

    def ours():
        path = m.path(f"f{next(at)}")
        t = time.monotonic()
        lab.stoke("warmup", path)
        return mib / (time.monotonic() - t)
    load(f"fill: {mib} MiB from S3 into three daemons by stoke warmup, beside three curls with 16 at once each")

    def curl_keeps():
        i = next(kept)
        return curl_pool(rgw, keys[i::rounds], "fill", f"{lab.folder}/kept{i}")
    got = medians(rounds, curl=lambda: curl_pool(rgw, keys[next(turn)::rounds], "fill"), keeps=curl_keeps, ours=ours)
    gets = sum(map(len, rgw.gets(mark, "fill")))
    row("fill", "curl", got["curl"], "MiB/s")
    row("fill", "curl into files of the daemons' file system", got["keeps"], "MiB/s", "curl", got["keeps"] / got["curl"])
    row("fill", "warm-up", got["ours"], "MiB/s", "curl", got["ours"] / got["curl"], "≥ 0.9")
    row("fill", "  beside curl into files", got["ours"], "MiB/s", "that", got["ours"] / got["keeps"])
    row("fill", "  GETs of S3, all rounds, curl's too", gets, "", "3 × blocks", gets / (3 * len(keys)), "1")


def ring(lab, mib):
    del mib
    load("ring: 1000 members")
    runs = [subprocess.run([f"{lab.bin}/bench/ringbench", "1000"], text=True, capture_output=True, check=True).stdout for _ in range(5)]

    def value(pattern):
        return statistics.median(float(re.search(pattern, r)[1]) for r in runs)
    row("ring", "least arc of fair", value(r"arcs: ([\d.]+)"), "%", None, None)
    row("ring", "largest arc of fair", value(r"… ([\d.]+)"), "%", "100", value(r"… ([\d.]+)") / 100, "0.9 … 1.1")
    for what, pattern, unit, limit in (("look-up of owner and successor", r"all active: (\d+)", "ns", 200),
                                       ("a member comes or goes", r"goes, median of 20: ([\d.]+)", "ms", 20),
                                       ("  worst of 20", r"worst: ([\d.]+)", "ms", 20),
                                       ("both rings", r"two snapshots: ([\d.]+)", "MiB", 32)):
        row("ring", what, value(pattern), unit, str(limit), value(pattern) / limit, "≤ 1")


def conns(lab, mib):
    """half of the descriptors may be connections, so a small limit here means fewer of them"""
    del mib
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    n = 20_000 if hard == resource.RLIM_INFINITY else min(20_000, hard // 2 - 100)
    redis = lab.redis()
    lab.format(redis.url(1), "conns")
    for tls in (False, True):
        d = group_of(lab, redis.url(1), f"conns{int(tls)}", 1 + tls, 1, tls=tls)[0]
        stoke_lab.wait_for("its folders", lambda: os.listdir(d.cache[0]))
        folder = next(os.path.join(p, f) for p, dirs, _ in os.walk(d.cache[0]) for f in dirs if re.fullmatch("[0-9a-f]{32}", f))
        count = n if not tls else min(n, 2000)
        load(f"conns: {count} connections held{' over TLS' if tls else ''}")
        r = tool(lab, "conns", d.port, f"conns{int(tls)}", d.secret_file, os.path.basename(folder), d.pid, count, *lab.tls_flags(tls)[1::2])
        total = r["before_mib"] + r["bytes_each"] * 20_000 / MIB
        name = "TLS" if tls else "plain"
        row("conns", f"{name}: resident with {count}", r["after_mib"], "MiB")
        row("conns", "  one of them", r["bytes_each"], "bytes")
        row("conns", "  so 20 000 of them", total, "MiB", None if tls else "300 MiB", None if tls else total / 300, "≤ 1")


def mget(lab, mib):
    """a daemon that speaks version 1 alone cannot be asked by MGET"""
    del mib
    redis, rgw = lab.redis(), lab.rgw()
    meta, writer = volume(lab, rgw, redis, "mget", 1)
    load("mget: whole small blocks from one daemon, one connection, 32 requests in flight; off: it speaks version 1 alone")
    new, number = lab.bin, 1
    for size, count, rounds in ((4096, 2000, 15), (100_000, 1000, 5)):
        small_files(writer, f"b{size}", count, size)
        daemons = {}
        for on in (True, False):
            name = f"m{size}-{int(on)}"
            lab.bin = new if on else f"{new}/older"
            daemons[on] = group_of(lab, meta, name, number, 1)[0]
            lab.bin = new
            number += 1
            filled(lab, meta, name, f"b{size}")
        seen = {on: [] for on in daemons}
        for _ in range(5):
            for on, d in daemons.items():
                before = cpu_seconds(d.pid)
                r = tool(lab, "wire", "small", d.cache[0], 1, rounds, "127.0.0.1", d.port, f"m{size}-{int(on)}", d.secret_file,
                         volume_hex(d))
                n = r["requests"]
                seen[on].append((n / r["seconds"], (cpu_seconds(d.pid) - before) / n * 1e6, r["cpu_us"] / n))
        on, off = ([statistics.median(v) for v in zip(*seen[k])] for k in (True, False))
        row("mget", f"{size} bytes, without MGET", off[0], "/s")
        row("mget", f"{size} bytes, with", on[0], "/s", "without", on[0] / off[0])
        row("mget", "  daemon CPU a request", on[1], "µs", "without", on[1] / off[1])
        row("mget", "  asker's CPU a request", on[2], "µs", "without", on[2] / off[2])


def tls(lab, mib):
    redis, rgw = lab.redis(), lab.rgw()
    meta, writer = volume(lab, rgw, redis, "tls", 1)
    write_files(writer, 4, mib)
    names = {"plain": False, "tls": True}
    daemons = {k: group_of(lab, meta, k, 1 + v, 1, tls=v)[0] for k, v in names.items()}
    mounts = {k: filled(lab, meta, k, "", tls=v) for k, v in names.items()}
    files = {k: in_turn([m.path(f"f{i}") for i in range(4)], 1) for k, m in mounts.items()}
    rates, cpu = ({k: [] for k in names} for _ in range(2))
    load("tls: one sequential reader through a mount, from one daemon")
    for _ in range(5):
        for k, d in daemons.items():
            before = cpu_seconds(d.pid)
            rates[k].append(from_peers(mounts[k], mib * MIB, lambda: sequential(lab, next(files[k]))))
            cpu[k].append((cpu_seconds(d.pid) - before) / (mib / 1024) * 1000)
    with_tls, plain = (statistics.median(rates[k]) for k in ("tls", "plain"))
    row("tls", "plain", plain, "MiB/s")
    row("tls", "TLS 1.3", with_tls, "MiB/s", "plain", with_tls / plain)
    with_tls, plain = (statistics.median(cpu[k]) for k in ("tls", "plain"))
    row("tls", "daemon CPU per GiB, plain", plain, "ms")
    row("tls", "daemon CPU per GiB, TLS 1.3", with_tls, "ms", "plain", with_tls / plain)
    print(f"  kTLS: {'sending by the kernel' if ktls() else 'this kernel has none: OpenSSL encrypts'}")


def ktls():
    try:
        with open("/proc/net/tls_stat") as f:
            return any(int(line.split()[1]) for line in f if line.startswith("TlsTx"))
    except OSError:
        return False


def hot(lab, mib, mounts=8, members=4, mbit=500, file_mib=100):
    """every node's cable carries so much; all mounts read one file that nobody has yet"""
    del mib
    redis, rgw = lab.redis(), lab.rgw()
    meta, writer = volume(lab, rgw, redis, "hot", 1)
    rounds = 3
    for i in range(2 * rounds):
        with open(writer.path(f"f{i}"), "wb") as f:
            for _ in range(file_mib):
                f.write(os.urandom(MIB))
    nodes = [lab.node() for _ in range(mounts + members)]
    for node in nodes:
        netlab.ip("netns", "exec", node.name, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{mbit}mbit", "burst", "256kb",
                  "latency", "50ms")
    kinds = {"on": (), "off": ("--hot-share", "0")}
    daemons = {k: [lab.daemon(meta, 1 + i + members * (k == "off"), group=k, flags=[*MEMBER, *flags], node=nodes[i])
                   for i in range(members)] for k, flags in kinds.items()}
    readers = {k: [lab.group_mount(meta, f"{k}{i}", group=k, node=nodes[members + i]) for i in range(mounts)] for k in kinds}
    load(f"hot: {mounts} mounts read one {file_mib} MiB file at once, {members} members, {mbit} Mbit/s a node")
    seen = {k: [] for k in kinds}
    at = iter(range(2 * rounds))
    blocks = file_mib // 4
    for _ in range(rounds):
        for k in kinds:
            seen[k].append(hot_round(rgw, daemons[k], readers[k], f"f{next(at)}", file_mib))
    on, off = ([statistics.median(v) for v in zip(*[(r, g) for r, g, _ in seen[k]])] for k in kinds)
    row("hot", "all mounts together, BUSY off", off[0], "MiB/s", f"{members} cables", off[0] / (members * mbit / 8 * 1e6 / MIB))
    row("hot", "all mounts together, BUSY on", on[0], "MiB/s", f"{members} cables", on[0] / (members * mbit / 8 * 1e6 / MIB))
    row("hot", "  beside off", on[0], "MiB/s", "off", on[0] / off[0])
    for k, gets in (("off", off[1]), ("on", on[1])):
        row("hot", f"GETs of S3, BUSY {k}", gets, "", f"{blocks} blocks", gets / blocks, "1")
        shares = [sorted(s) for _, _, s in seen[k]]
        print(f"  bytes sent by member, least to most, BUSY {k}: "
              + " · ".join(f"{100 * statistics.median(v):.0f} %" for v in zip(*shares)))
    print(f"  answers that sent a reader on: {sum(d.metrics()['stoke_cached_sent_on_total'] for d in daemons['on']):.0f}")


def hot_round(rgw, daemons, mounts, name, mib):
    """(MiB/s of all mounts together, GETs of S3, share of the bytes by member)"""
    mark = rgw.log_size()
    sent = [d.metrics()["stoke_cached_sent_bytes_total"] for d in daemons]
    t = time.monotonic()
    running = [subprocess.Popen(["cat", m.path(name)], stdout=subprocess.DEVNULL) for m in mounts]
    assert not any(p.wait() for p in running)
    seconds = time.monotonic() - t
    sent = [d.metrics()["stoke_cached_sent_bytes_total"] - before for d, before in zip(daemons, sent)]
    return len(mounts) * mib / seconds, sum(map(len, rgw.gets(mark, "hot"))), [s / sum(sent) for s in sent]


PARTS = {"peer": peer, "small": small, "fill": fill, "ring": ring, "conns": conns, "hot": hot, "mget": mget, "tls": tls}


def run(folder, bin_dir, names, mib):
    """names: of parts; an empty one: all"""
    for name in PARTS if "" in names else names:
        kind = netlab.NetLab if name == "hot" else stoke_lab.Lab
        with kind(f"{folder}/{name}", bin_dir) as lab:
            PARTS[name](lab, mib)
