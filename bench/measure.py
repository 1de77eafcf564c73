# SPDX-License-Identifier: Apache-2.0
"""What the parts of make bench share: rows of the tables, turns, cold caches, ceilings."""
import json
import os
import re
import statistics
import subprocess
import tempfile
import time

import lab as stoke_lab  # run.py says where

MIB = 1 << 20
OUT = {}


def tool(lab, name, *args):
    r = subprocess.run([f"{lab.bin}/bench/{name}", *map(str, args)], text=True, capture_output=True, timeout=600)
    if r.returncode:
        raise RuntimeError(f"{name} {args}: {r.stderr}{r.stdout}")
    return json.loads(r.stdout)


def row(table, what, value, unit, against=None, ratio=None, target=None):
    OUT.setdefault(table, []).append(dict(what=what, value=value, unit=unit, against=against, ratio=ratio, target=target))
    line = f"  {what:<46} {value:>10.{2 if value < 10 else 0}f} {unit:<6}"
    if ratio is not None:
        line += f" {ratio:5.2f} of {against}" + (f"  (target {target})" if target else "")
    print(line, flush=True)


def cpu_seconds(pid):
    """of all its threads that live"""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as f:
            total += int(f.read().split()[0])
    return total / 1e9


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


def null_fuse(lab, files, mib, threads=2, source=None):
    """source: the directory whose files f0, f1, … are passed through"""
    where = f"{lab.folder}/null{'-through' if source else ''}"
    os.makedirs(where, exist_ok=True)
    p = lab.add(stoke_lab.Proc([f"{lab.bin}/bench/fuse_null", where, *map(str, (files, mib, threads)), *([source] if source else [])],
                               f"{where}.log"))
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
