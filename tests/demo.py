#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make demo: the main job on real data. A Redis, a real S3, three daemons, two mounts; files are copied in through the
first mount, warmed, and read through the second one while a daemon is killed. Prints what each step did and what S3 was
asked; exit 1 if anything is not as promised."""
import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lab as stoke_lab

MIB = 1 << 20


def say(text):
    print(text, flush=True)


def choose_files(limit):
    """some hundred MB of this machine's own files: real ones, of all sizes"""
    out, total = [], 0
    for root in ("/usr/bin", "/usr/lib", "/usr/share"):
        share = limit * (3 if root == "/usr/lib" else 1) // 5
        got = 0
        for path in stoke_lab.tree_files(root):
            try:
                size = os.stat(path).st_size
            except OSError:
                continue
            if size == 0 or got + size > share or not os.access(path, os.R_OK):
                continue
            out.append((path, path.lstrip("/"), size))
            got += size
            if len(out) >= 6000:
                return out
        total += got
    return out


def given_files(root):
    return [(p, os.path.relpath(p, root), os.path.getsize(p)) for p in stoke_lab.tree_files(root)]


def copy_in(files, mount, threads):
    for folder in sorted({os.path.dirname(mount.path("data", name)) for _, name, _ in files}):
        os.makedirs(folder, exist_ok=True)
    with ThreadPoolExecutor(threads) as ex:
        list(ex.map(lambda f: shutil.copyfile(f[0], mount.path("data", f[1])), files))


def read_all(files, root, threads, after=None):
    """sha256 of every file by several readers; after = (bytes, call): called once when so much was read"""
    sums, errors, lock = {}, [], threading.Lock()
    todo = list(reversed(files))
    done = [0, False]

    def reader():
        while True:
            with lock:
                if not todo:
                    return
                _, name, size = todo.pop()
            try:
                digest = stoke_lab.sha256(os.path.join(root, name))
            except OSError as e:
                errors.append(f"{name}: {e}")
                continue
            with lock:
                sums[name] = digest
                done[0] += size
                call = after and not done[1] and done[0] >= after[0]
                if call:
                    done[1] = True
            if call:
                after[1]()

    pool = [threading.Thread(target=reader) for _ in range(threads)]
    for t in pool:
        t.start()
    for t in pool:
        t.join()
    return sums, errors


class Table:
    def __init__(self):
        self.rows, self.bad = [], 0

    def stage(self, name, nbytes, seconds, note=""):
        self.rows.append((name, f"{nbytes / MIB:.0f} MiB", f"{seconds:.1f} s", f"{nbytes / MIB / max(seconds, 1e-3):.0f} MiB/s", note))

    def check(self, name, got, want):
        ok = got == want
        self.bad += not ok
        self.rows.append((name, str(got), "", "", "as promised" if ok else f"EXPECTED {want}"))

    def show(self, name, value):
        self.rows.append((name, str(value), "", "", ""))

    def print(self):
        widths = [max(len(r[i]) for r in self.rows) for i in range(4)]
        say("")
        for r in self.rows:
            say(f"  {r[0]:<{widths[0]}}  {r[1]:>{widths[1]}}  {r[2]:>{widths[2]}}  {r[3]:>{widths[3]}}  {r[4]}".rstrip())


def sources(mount, before=None):
    now = mount.bytes_by_source()
    return {k: v - (before or {}).get(k, 0) for k, v in now.items()}


def run(lab, files, keep):
    table = Table()
    total = sum(size for _, _, size in files)
    say(f"starting Redis and Ceph RGW, formatting, three daemons, two mounts; {len(files)} files, {total / MIB:.0f} MiB")
    redis, rgw = lab.redis(), lab.rgw()
    meta = redis.url(1)
    lab.format(meta, "demo", rgw)
    daemons = [lab.daemon(meta, n) for n in (1, 2, 3)]
    writer = lab.group_mount(meta, "m1", socket=daemons[0].socket)
    # little memory of its own, so that what it reads comes from the daemons and not from an earlier epoch
    reader = lab.group_mount(meta, "m2", flags=["--buffer-size", "64M"])

    t = time.monotonic()
    copy_in(files, writer, 4)
    os.sync()
    table.stage("copied in (mount 1, to S3)", total, time.monotonic() - t)

    want = {name: stoke_lab.sha256(src) for src, name, _ in files}
    blocks = stoke_lab.blocks_of(size for _, _, size in files)

    mark, t = rgw.log_size(), time.monotonic()
    r = lab.stoke("warmup", writer.path("data"), "-p", "16")
    table.stage("warm-up (S3 to daemons)", total, time.monotonic() - t, r.stdout.strip().splitlines()[-1] if r.stdout.strip() else "")
    whole, ranged = rgw.gets(mark)
    table.check("  S3 GETs in warm-up (= unique blocks)", len(whole) + len(ranged), blocks)
    table.check("  the same block twice", len(whole) - len(set(whole)), 0)

    mark, t, before = rgw.log_size(), time.monotonic(), sources(reader)
    sums, errors = read_all(files, reader.path("data"), 4)
    table.stage("epoch 1 (mount 2, from daemons)", total, time.monotonic() - t)
    table.check("  S3 GETs in the epoch", sum(map(len, rgw.gets(mark))), 0)
    table.check("  errors", len(errors), 0)
    table.check("  files with the right sha256", sum(sums.get(n) == d for n, d in want.items()), len(want))
    table.show("  bytes by source", ", ".join(f"{k} {v / MIB:.0f} MiB" for k, v in sorted(sources(reader, before).items()) if v))

    reader.drop_caches()
    mark, before, killed = rgw.log_size(), sources(reader), []

    def kill():
        killed.append(rgw.gets(mark))
        daemons[2].signal(signal.SIGKILL)

    t = time.monotonic()
    sums, errors = read_all(files, reader.path("data"), 4, after=(total // 3, kill))
    table.stage("epoch 2 (daemon 3 killed at a third)", total, time.monotonic() - t)
    whole, ranged = rgw.gets(mark)
    table.check("  S3 GETs before the kill", sum(map(len, killed[0])) if killed else "no kill", 0)
    table.show("  S3 GETs after it (what daemon 3 owned)", len(whole) + len(ranged))
    table.check("  the same block twice", len(whole) - len(set(whole)), 0)
    table.check("  errors", len(errors), 0)
    table.check("  files with the right sha256", sum(sums.get(n) == d for n, d in want.items()), len(want))
    table.show("  bytes by source", ", ".join(f"{k} {v / MIB:.0f} MiB" for k, v in sorted(sources(reader, before).items()) if v))

    mark, t, before = rgw.log_size(), time.monotonic(), sources(writer)
    writer.drop_caches()
    sums, errors = read_all(files, writer.path("data"), 4)
    table.stage("epoch 3 (mount 1, beside daemon 1)", total, time.monotonic() - t)
    table.check("  errors", len(errors), 0)
    table.check("  files with the right sha256", sum(sums.get(n) == d for n, d in want.items()), len(want))
    table.show("  bytes by source", ", ".join(f"{k} {v / MIB:.0f} MiB" for k, v in sorted(sources(writer, before).items()) if v))
    table.print()
    if keep:
        say(f"""
It stays up until you press Enter. Try:
  ls {reader.dir}/data; cat {reader.dir}/.stats
  {lab.bin}/stoke status {meta}
  {lab.bin}/stoke warmup --check {reader.dir}/data
  curl -s http://127.0.0.1:{daemons[0].http}/metrics | grep stoke_""")
        sys.stdin.readline()
    return table.bad


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--bin", required=True, help="where stoke and stoke-cached are")
    ap.add_argument("--mib", type=int, default=400, help="how much of /usr to take (without DATA)")
    a = ap.parse_args()
    data = os.environ.get("DATA")
    files = given_files(data) if data else choose_files(a.mib * MIB)
    if not files:
        say(f"demo: no readable files in {data}")
        return 1
    folder = tempfile.mkdtemp(prefix="stoke-demo-")
    t = time.monotonic()
    try:
        with stoke_lab.Lab(folder, a.bin) as lab:
            bad = run(lab, files, os.environ.get("KEEP") == "1")
    except Exception as e:
        say(f"demo: {e}\n(logs are kept in {folder})")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    say(f"\n{'everything as promised' if not bad else f'{bad} THINGS NOT AS PROMISED'}; {time.monotonic() - t:.0f} s; "
        "everything started was stopped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
