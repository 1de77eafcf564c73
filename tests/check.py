#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make check: runs every stage, shows what failed, and closes with one line: N passed, N failed, N skipped.

A stage is counted in tests: cmocka's, pytest's, one a fuzzer, one for lint, one for analysis. What could not run is said
and counted as skipped."""
import argparse
import contextlib
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PASSED = FAILED = SKIPPED = 0
NOTES = []
ONCE = []  # what failed and passed when it ran again


def count(passed=0, failed=0, skipped=0):
    global PASSED, FAILED, SKIPPED
    PASSED += passed
    FAILED += failed
    SKIPPED += skipped


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def make(build, mode, *targets):
    r = subprocess.run(["make", "-s", f"-j{os.cpu_count()}", f"O={build}", f"MODE={mode}", *targets], cwd=TOP, text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if r.returncode:
        print(r.stdout[-8000:])
        say(f"FAILED make MODE={mode} {' '.join(targets)}")
        count(failed=1)
    return r.returncode == 0


def sanitizer_env():
    env = dict(os.environ)
    env["ASAN_OPTIONS"] = "abort_on_error=1:detect_stack_use_after_return=1:allocator_may_return_null=1"
    env["UBSAN_OPTIONS"] = "print_stacktrace=1:halt_on_error=1"
    env["TSAN_OPTIONS"] = "halt_on_error=1:second_deadlock_stack=1"
    return env


@contextlib.contextmanager
def real_s3(env):
    """env of the tests that talk to a real S3 (Ceph RGW), while it runs; without it they skip, and are counted"""
    try:
        import lab
        folder = tempfile.mkdtemp(prefix="stoke-check-")
        server = lab.Rgw(folder)
    except (OSError, subprocess.SubprocessError, TimeoutError) as e:
        NOTES.append(f"no S3 server here: {e}")
        yield env
        return
    try:
        yield dict(env, STOKE_TEST_S3=f"{server.url}/units", ACCESS_KEY=server.ACCESS, SECRET_KEY=server.KEY)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def run_unit(path, name):
    """(passed, failed, skipped, what to show)"""
    live = real_s3(sanitizer_env()) if path.endswith("_live") else contextlib.nullcontext(sanitizer_env())
    try:
        with live as env:
            r = subprocess.run([path], cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240, env=env)
    except subprocess.TimeoutExpired as e:
        return 0, 1, 0, (e.stdout or b"").decode(errors="replace")[-4000:] + f"\n{name}: no end after 240 s"
    text = r.stdout.decode(errors="replace")
    passed, failed, skipped = (sum(int(n) for n in re.findall(rf"\[\s*{word}\s*\] (\d+) test\(s\)[.,]", text))
                               for word in ("PASSED", "FAILED", "SKIPPED"))
    if (r.returncode or passed + skipped == 0) and not failed:
        failed = 1
    return passed, failed, skipped, text[-6000:] if failed else ""


def units(build, mode):
    if not make(build, mode, "units-built"):
        return
    t0, before = time.time(), (PASSED, FAILED, SKIPPED)
    paths = sorted(glob.glob(f"{build}/{mode}/unit/*/test_*"))
    names = [f"{mode} {os.path.relpath(path, f'{build}/{mode}/unit')}" for path in paths]
    with ThreadPoolExecutor(os.cpu_count()) as ex:
        for name, (passed, failed, skipped, text) in zip(names, ex.map(run_unit, paths, names)):
            if failed:
                print(text)
                second = run_unit(f"{build}/{mode}/unit/{name.split()[1]}", name)
                if not second[1]:
                    passed, failed, skipped, text = second
                    ONCE.append(name)
                else:
                    say(f"FAILED {name}")
            if skipped:
                NOTES.append(f"{name}: {skipped} skipped")
            count(passed, failed, skipped)
    say(f"units {mode}: {PASSED - before[0]} passed, {FAILED - before[1]} failed, {SKIPPED - before[2]} skipped, {time.time() - t0:.0f} s")


def fuzz(build, mode):
    if not make(build, mode, "fuzzers-built"):
        return
    for path in sorted(glob.glob(f"{build}/{mode}/fuzz/fuzz_*")):
        name = os.path.basename(path)
        corpus = f"tests/fuzz/corpus/{name[5:]}"
        r = subprocess.run([path, corpus], cwd=TOP, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240,
                           env=sanitizer_env(), errors="replace")
        if r.returncode:
            print(r.stdout[-4000:])
            say(f"FAILED {name} over {corpus}")
        count(passed=r.returncode == 0, failed=r.returncode != 0)
    say("fuzz corpus replayed")


def step(name, *command, env=None):
    t0 = time.time()
    r = subprocess.run(command, cwd=TOP, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, errors="replace")
    if r.returncode:
        print(r.stdout[-8000:])
    say(f"{'FAILED ' if r.returncode else ''}{name}: {time.time() - t0:.0f} s")
    count(passed=r.returncode == 0, failed=r.returncode != 0)


def chaos(build, mode, minutes=2, seed=1):
    """the same faults each time; one test. Once more when it failed, as with all tests (see again)"""
    if not make(build, mode, "all"):
        return
    t0, name = time.time(), f"chaos, seed {seed}"
    for last in (False, True):
        r = subprocess.run([sys.executable, "tests/chaos.py", "--minutes", str(minutes), "--seed", str(seed)], cwd=TOP, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
                           env=dict(os.environ, STOKE_BIN=os.path.abspath(f"{build}/{mode}")))
        print(r.stdout[-8000:] if r.returncode else r.stdout.strip().split("\n")[-1])
        if r.returncode == 0:
            if last:
                ONCE.append(name)
            break
    say(f"{'FAILED ' if r.returncode else ''}{name}: {time.time() - t0:.0f} s")
    count(passed=r.returncode == 0, failed=r.returncode != 0)


def again(xml, env):
    """What failed is run once more, alone: clusters of processes on a machine that others use, too, miss a deadline now and
    then. What passes then is counted as passed, and named; what fails twice has failed."""
    tree = ET.parse(xml)
    for suite in tree.getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            bad = [kind for kind in ("failure", "error") if case.find(kind) is not None]
            if not bad:
                continue
            name = f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}"
            r = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=300", name], cwd=TOP, env=env,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if r.returncode == 0:
                ONCE.append(name)
                for kind in bad:
                    suite.set(kind + "s", str(int(suite.get(kind + "s")) - 1))
    with open(xml, "wb") as f:
        tree.write(f)


def integration(build, mode, args):
    if not make(build, mode, "all"):
        return
    t0 = time.time()
    xml = os.path.abspath(f"{build}/integration.xml")
    env = dict(os.environ, STOKE_BIN=os.path.abspath(f"{build}/{mode}"))
    # most of them wait most of the time: two at once, a file at a time
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=300", "-n", "2", "--dist", "loadfile",
                    f"--junitxml={xml}", "-o", "junit_family=xunit2", "tests/integration", *args], cwd=TOP, env=env)
    try:
        again(xml, env)
        suites = ET.parse(xml).getroot().iter("testsuite")
    except (OSError, ET.ParseError) as e:
        say(f"FAILED integration: no result: {e}")
        count(failed=1)
        return
    for s in suites:
        failed = int(s.get("failures")) + int(s.get("errors"))
        skipped = int(s.get("skipped"))
        count(int(s.get("tests")) - failed - skipped, failed, skipped)
        for case in s.iter("testcase"):
            if case.find("skipped") is not None:
                NOTES.append(f"{case.get('name')}: {case.find('skipped').get('message')}")
    say(f"integration: {time.time() - t0:.0f} s")


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--build", default="build")
    ap.add_argument("--mode", default="debug", help="of --only units and --only fuzz")
    ap.add_argument("--only", choices=["units", "fuzz", "lint", "analyze", "integration", "chaos"])
    ap.add_argument("args", nargs="*", help="handed to pytest")
    a = ap.parse_args()
    if a.only == "units":
        units(a.build, a.mode)
    elif a.only == "fuzz":
        fuzz(a.build, a.mode)
    elif a.only == "lint":
        step("lint", sys.executable, "tests/lint.py")
    elif a.only == "analyze":
        step("analyze", "make", "-s", "analyze")
    elif a.only == "integration":
        integration(a.build, a.mode, a.args)
    elif a.only == "chaos":
        chaos(a.build, a.mode)
    else:
        step("lint", sys.executable, "tests/lint.py")
        for mode in ("debug", "asan", "tsan"):
            units(a.build, mode)
        fuzz(a.build, "asan")
        step("analyze", "make", "-s", "analyze")
        integration(a.build, "release", a.args)
        chaos(a.build, "release")
    for note in NOTES:
        print(f"skipped: {note}")
    for name in ONCE:
        print(f"failed once, passed when run again: {name}")
    print(f"{PASSED} passed, {FAILED} failed, {SKIPPED} skipped")
    return 1 if FAILED or PASSED == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
