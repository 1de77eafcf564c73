#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make check-posix: pjdfstest and fsx, other people's tests of a file system, on a fresh Stoke mount.

Both are crates, built once into a cache outside the tree; they need cargo >= 1.85, and without it each counts as one
skipped. pjdfstest is counted test by test. Closes with one line: N passed, N failed, N skipped.
OPS= and SEED= are fsx's; --where DIR runs them in a directory that is there already (another file system, to compare)."""
import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lab as stoke_lab  # noqa: E402

HOME = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "stoke-tests", "posix")
CRATES = {"pjdfstest": "0.2.2", "fsx": "0.3.2"}
CARGO = (1, 85)

# nobody and daemon are users of every Debian and Ubuntu. Times of a directory move with a grain of 100 ms
# (--skip-dir-mtime), as JuiceFS has it, so the naps are longer than that. The volume has no trash: in the trash a file
# keeps its link count, as JuiceFS has it. Its tests of EROFS remount by mount(8), whose helper would start the mount anew
# instead: they are skipped.
PJDFSTEST = """
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.13
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"""
FSX = """
flen = 1048576
[opsize]
min = 1
max = 65536
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 2
punch_hole = 5
sendfile = 2
posix_fadvise = 1
copy_file_range = 5
"""


class Tally:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.notes = []

    def skip(self, name, why):
        self.skipped += 1
        self.notes.append((name, why))


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def cargo():
    """(path, None), or (None, why it will not do)"""
    path = shutil.which("cargo") or shutil.which(os.path.expanduser("~/.cargo/bin/cargo"))
    if not path:
        return None, "needs cargo >= 1.85, and there is none here"
    text = subprocess.run([path, "--version"], text=True, capture_output=True).stdout
    m = re.search(r"cargo (\d+)\.(\d+)", text)
    if not m or (int(m[1]), int(m[2])) < CARGO:
        return None, f"needs cargo >= 1.85, here is {text.strip() or path}"
    return path, None


def installed(name):
    """path of the crate's program, built when it is not there; None and why when that cannot be"""
    exe = f"{HOME}/{name}-{CRATES[name]}/bin/{name}"
    if os.access(exe, os.X_OK):
        return exe, None
    path, why = cargo()
    if not path:
        return None, why
    say(f"building {name} {CRATES[name]}")
    subprocess.run([path, "install", "--quiet", "--locked", "--version", CRATES[name], "--root", f"{HOME}/{name}-{CRATES[name]}", name],
                   check=True)
    return exe, None


def pjdfstest(exe, where, second, config, tally, patterns):
    """where: a directory of the file system under test; second: of another one"""
    with open(config, "w") as f:
        f.write(PJDFSTEST)
    t0 = time.time()
    r = subprocess.run([exe, "-c", config, "-p", where, "-s", second, *patterns], text=True, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, env=dict(os.environ, NO_COLOR="1", RUST_BACKTRACE="0"), errors="replace", timeout=1500)
    results, last = {}, None
    for line in r.stdout.splitlines():
        m = re.match(r"(\S+::\S+|\S+)\s+(ok|FAILED|skipped)$", line)
        if m:
            last = m[1]
            results[last] = [m[2]]
        elif last and line.startswith("\t"):
            results[last].append(line.strip())
        elif last and results[last][0] == "FAILED" and line.strip() and not line.startswith("Summary"):
            results[last].append(line.strip())
    for name, (outcome, *lines) in results.items():
        if outcome == "FAILED":
            tally.failed += 1
            say(f"FAILED pjdfstest {name}: {'; '.join(lines)[:500]}")
        elif outcome == "skipped":
            tally.skip(f"pjdfstest {name}", "; ".join(lines))
        else:
            tally.passed += 1
    m = re.search(r"Summary: (\d+) failed, (\d+) skipped, (\d+) passed.*?(\d+) total", r.stdout)
    if not m or int(m[4]) != len(results) or not results:
        print(r.stdout[-3000:])
        say(f"FAILED pjdfstest: no summary, or not of the {len(results)} tests seen (exit {r.returncode})")
        tally.failed += 1
    say(f"pjdfstest: {len(results)} tests, {time.time() - t0:.0f} s")


def fsx(exe, where, config, tally, name, ops, seed):
    with open(config, "w") as f:
        f.write(FSX)
    artifacts = os.path.dirname(config)
    t0 = time.time()
    r = subprocess.run([exe, "-f", config, "-N", str(ops), "-S", str(seed), "-P", artifacts, f"{where}/fsx"], text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(os.environ, RUST_LOG="error"), errors="replace",
                       timeout=1500)
    if r.returncode:
        print(r.stdout[:3000])
        print(r.stdout[-3000:])
        say(f"FAILED fsx on {name}: {ops} operations, SEED={seed}, exit {r.returncode}")
        tally.failed += 1
    else:
        tally.passed += 1
    say(f"fsx on {name}: {ops} operations, seed {seed}, {time.time() - t0:.0f} s")


@contextlib.contextmanager
def fresh_mount(folder, storage):
    with stoke_lab.Lab(folder) as lab:
        meta = lab.redis().url(1)
        lab.format(meta, "posix", lab.rgw() if storage == "s3" else None, flags=["--trash-days", "0"])
        m = lab.mount(meta, "m", flags=["--enable-xattr"])
        os.chmod(m.dir, 0o755)
        yield m.dir


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--where", metavar="DIR")
    ap.add_argument("--only", choices=["pjdfstest", "fsx", "fsx-s3"])
    ap.add_argument("patterns", nargs="*", help="names of pjdfstest's to run")
    a = ap.parse_args()
    ops = int(os.environ.get("OPS") or 100_000)
    seed = stoke_lab.seed()
    tally = Tally()
    tools = {}
    for name in CRATES:
        try:
            tools[name], why = installed(name)
        except subprocess.CalledProcessError as e:
            say(f"FAILED to build {name} (exit {e.returncode}): make deps installs what it needs")
            tally.failed += 1
            tools[name] = None
            continue
        if why:
            tally.skip(name, why)
    if any(tools.values()) and os.geteuid():
        ap.error("must run as root: other people's files and devices are part of it")
    folder = tempfile.mkdtemp(prefix="stoke-posix-")

    def place(storage):
        return contextlib.nullcontext(a.where) if a.where else fresh_mount(f"{folder}/{storage}", storage)
    try:
        os.chmod(folder, 0o755)
        os.makedirs(f"{folder}/second")
        runs = [r for r in ("pjdfstest", "fsx", "fsx-s3") if a.only in (None, r) and tools[r.split("-")[0]]]
        if a.where and not a.only:
            runs = [r for r in runs if r != "fsx-s3"]
        if "pjdfstest" in runs or "fsx" in runs:
            with place("file") as where:
                if "pjdfstest" in runs:
                    pjdfstest(tools["pjdfstest"], where, f"{folder}/second", f"{folder}/pjdfstest.toml", tally, a.patterns)
                if "fsx" in runs:
                    fsx(tools["fsx"], where, f"{folder}/fsx.toml", tally, a.where or "a volume in a directory", ops, seed)
        if "fsx-s3" in runs:
            with place("s3") as where:
                fsx(tools["fsx"], where, f"{folder}/fsx.toml", tally, "a volume in S3", max(1, ops // 10), seed)
    except (OSError, RuntimeError, subprocess.SubprocessError) as e:
        say(f"FAILED {e}")
        tally.failed += 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for why in sorted({why for _, why in tally.notes}):
        print(f"skipped: {', '.join(name for name, w in tally.notes if w == why)}: {why}")
    print(f"{tally.passed} passed, {tally.failed} failed, {tally.skipped} skipped")
    return 1 if tally.failed or tally.passed + tally.skipped == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
