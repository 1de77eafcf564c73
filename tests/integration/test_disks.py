# SPDX-License-Identifier: Apache-2.0
"""Cache disks that fail under a reader: every byte right, no read above 2 s, S3 asked only for what has to be fetched again."""
import os
import subprocess
import threading
import time

import pytest
from lab import BLOCK, noise, wait_for, write_file
from test_store import MIB, object_gets

WELL, READ_ONLY, AWAY = 0, 1, 2
FILES, FILE_MIB = 4, 16
BLOCKS = FILES * FILE_MIB * MIB // BLOCK


def disk(d, path, what):
    return d.metrics()[f'stoke_cached_disk_{what}{{dir="{path}"}}']


def state(d, path):
    return disk(d, path, "state")


class Reader(threading.Thread):
    """reads the files over and over, each time from the daemon, and remembers what was wrong and how long the slowest read took"""

    def __init__(self, m, files):
        super().__init__()
        self.m, self.files, self.enough = m, files, threading.Event()
        self.rounds, self.slowest, self.errors = 0, 0.0, []
        self.start()

    def run(self):
        while not self.enough.is_set():
            self.m.drop_caches()
            for name, data in self.files.items():
                self.read(name, data)
            self.rounds += 1

    def read(self, name, data):
        try:
            with open(self.m.path(name), "rb", buffering=0) as f:
                for off in range(0, len(data), MIB):
                    begin = time.monotonic()
                    got = os.pread(f.fileno(), MIB, off)
                    self.slowest = max(self.slowest, time.monotonic() - begin)
                    if got != data[off:off + MIB]:
                        self.errors.append(f"{name} at {off}: other bytes")
        except OSError as e:
            self.errors.append(f"{name}: {e}")

    def more(self, n=2):
        """waits until so many rounds more are over"""
        want = self.rounds + n
        wait_for("rounds", lambda: self.rounds >= want, 120)

    def stop(self):
        self.enough.set()
        self.join()
        assert self.errors == []
        assert self.slowest < 2, self.slowest


@pytest.fixture
def files(lab, file_volume):
    m = lab.mount(file_volume, "writer")
    files = {f"f{i}": noise(FILE_MIB * MIB, i) for i in range(FILES)}
    for name, data in files.items():
        write_file(m.path(name), data)
    m.stop()
    lab.started.remove(m)
    return files


def group_of_one(lab, meta, dirs, local=False):
    """a daemon, and a mount that asks it over TCP, so that each block comes from the daemon's disk; local: that reads its descriptors"""
    d = lab.daemon(meta, 1, cache_dirs=dirs, flags=["--free-space-ratio", "0.01"])
    m = lab.group_mount(meta, "m1", ["--buffer-size", "32"], socket=d.socket if local else None)
    for _ in range(2):
        lab.stoke("warmup", m.path("."))
    wait_for("a full cache", lambda: d.metrics()["stoke_cached_blocks"] >= BLOCKS)
    return d, m


FAULTS = {
    "EIO": ("all error EIO", AWAY),
    "ENOENT": ("all error ENOENT", AWAY),
    "hang": ("all hang", AWAY),
    "read-only": ("readonly", READ_ONLY),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_D04_a_disk_that_fails_is_set_aside_and_taken_back(lab, file_volume, files, kind):
    line, want = FAULTS[kind]
    sick = lab.fault_fs()
    good = f"{lab.folder}/good"
    d, m = group_of_one(lab, file_volume, [sick.path, good])
    on_sick = disk(d, sick.path, "blocks")
    assert 0 < on_sick < BLOCKS
    reader = Reader(m, files)
    reader.more(1)
    before = object_gets(d)
    sick.do(line)
    sick.do("cold") if kind == "EIO" else None
    if kind == "read-only":  # only who writes finds out
        w = lab.mount(file_volume, "m2")
        for i in range(6):
            write_file(w.path(f"new{i}"), noise(BLOCK, 100 + i))
        lab.stoke("warmup", *[m.path(f"new{i}") for i in range(6)], check=False)
    wait_for("set aside", lambda: state(d, sick.path) == want)
    reader.more(2)
    # what was on it was fetched once more, and is on the other disk now
    assert object_gets(d) - before <= (on_sick + 6 if want == AWAY else 12)  # a FILL that fails is asked once more

    def settled():
        middle = object_gets(d)
        reader.more(1)
        return object_gets(d) == middle
    wait_for("a round without S3", settled, 60)
    assert disk(d, sick.path, "set_aside_total") == 1
    assert d.text().count("is set aside") == 1
    sick.do("clear")
    wait_for("taken back", lambda: state(d, sick.path) == WELL)
    assert d.text().count("works again") == 1
    reader.more(1)
    reader.stop()
    assert disk(d, sick.path, "blocks") + disk(d, good, "blocks") >= BLOCKS


def test_D04_a_daemon_whose_only_disk_hangs_serves_without_it_and_ends(lab, file_volume, files):
    sick = lab.fault_fs()
    d, m = group_of_one(lab, file_volume, [sick.path])
    reader = Reader(m, files)
    reader.more(1)
    sick.do("all hang")
    sick.do("cold")
    wait_for("set aside", lambda: state(d, sick.path) == AWAY)
    reader.more(1)
    assert disk(d, sick.path, "given_up_total") > 0
    reader.stop()
    threads = len(os.listdir(f"/proc/{d.pid}/task"))
    assert threads < 60
    begin = time.monotonic()
    d.stop()
    assert time.monotonic() - begin < 15
    lab.started.remove(d)


def test_D04_a_mount_goes_on_when_descriptors_that_it_holds_hang(lab, file_volume, files):
    sick = lab.fault_fs()
    d, m = group_of_one(lab, file_volume, [sick.path], local=True)
    reader = Reader(m, files)
    reader.more(1)
    assert d.metrics()["stoke_cached_descriptors_out"] >= BLOCKS / 2
    sick.do("read hang")
    sick.do("cold")
    wait_for("a read that hangs", lambda: sick.stat()["hung"] > 0)
    reader.more(2)
    sick.do("clear")
    wait_for("taken back", lambda: state(d, sick.path) == WELL)
    before = m.bytes_by_source()["local"]
    wait_for("descriptors again", lambda: m.bytes_by_source()["local"] > before + 4 * FILE_MIB * MIB, 30)
    reader.stop()


def test_a_slow_disk_holds_no_read_up(lab, file_volume, files):
    sick = lab.fault_fs()
    good = f"{lab.folder}/good"
    d, m = group_of_one(lab, file_volume, [sick.path, good])
    reader = Reader(m, files)
    reader.more(1)
    sick.do("read delay 700")
    sick.do("cold")
    wait_for("given up", lambda: disk(d, sick.path, "given_up_total") > 0)
    reader.more(1)
    sick.do("clear")
    wait_for("taken back", lambda: state(d, sick.path) == WELL)
    reader.stop()


def test_D04_a_disk_that_is_broken_at_start_is_left_out_and_taken_in(lab, file_volume, files):
    sick = lab.fault_fs()
    good = f"{lab.folder}/good"
    sick.do("all hang")
    d = lab.daemon(file_volume, 1, cache_dirs=[sick.path, good])
    assert state(d, sick.path) == AWAY and "it hangs: set aside" in d.text()
    m = lab.group_mount(file_volume, "m1", ["--buffer-size", "32"])
    lab.stoke("warmup", m.path("."))
    assert disk(d, good, "blocks") == BLOCKS
    sick.do("clear")
    wait_for("taken in", lambda: state(d, sick.path) == WELL)
    before = object_gets(d)
    reader = Reader(m, files)
    reader.more(1)
    reader.stop()
    assert object_gets(d) == before


def test_bytes_that_a_disk_changes_are_never_seen(lab, file_volume, files):
    sick = lab.fault_fs()
    d, m = group_of_one(lab, file_volume, [sick.path])
    for kind in ("flip", "short"):
        sick.do(f"read {kind}")
        sick.do("cold")
        reader = Reader(m, files)
        reader.more(1)
        sick.do("clear")
        reader.stop()
        assert d.metrics()["stoke_cached_blocks_damaged_total"] > 0


def tmpfs(lab, name, options):
    where = f"{lab.folder}/{name}"
    os.makedirs(where)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", where], check=True)
    return where


@pytest.fixture
def small(lab):
    made = []

    def make(name, options):
        made.append(tmpfs(lab, name, options))
        return made[-1]
    yield make
    for where in made:
        subprocess.run(["umount", "-l", where], check=True)


def test_D01_the_free_space_ratio_is_kept(lab, small, file_volume):
    """an eighth of the size that the catalogue names"""
    where = small("small", "size=128m")
    m = lab.mount(file_volume, "writer")
    files = {f"f{i}": noise(30 * MIB, i) for i in range(5)}
    for name, data in files.items():
        write_file(m.path(name), data)
    d = lab.daemon(file_volume, 1, cache_dirs=[f"{where}/c"], flags=["--free-space-ratio", "0.2"])
    m = lab.group_mount(file_volume, "m1", ["--buffer-size", "32"])
    reader = Reader(m, files)

    def used():
        v = os.statvfs(where)
        return 1 - v.f_bavail / v.f_blocks
    most = 0.0
    while reader.rounds < 2:
        most = max(most, used())
        time.sleep(0.01)
    reader.stop()
    assert 0.4 < most <= 0.8
    assert state(d, f"{where}/c") == WELL


def test_D02_few_inodes_are_no_error(lab, small, file_volume):
    where = small("inodes", "size=256m,nr_inodes=500")
    m = lab.mount(file_volume, "writer")
    os.mkdir(m.path("dir"))
    data = {f"dir/{i}": noise(2000, i) for i in range(500)}
    for name, text in data.items():
        write_file(m.path(name), text)
    d = lab.daemon(file_volume, 1, cache_dirs=[f"{where}/c"])
    m = lab.group_mount(file_volume, "m1")
    for _ in range(2):
        m.drop_caches()
        for name, text in data.items():
            with open(m.path(name), "rb") as f:
                assert f.read() == text
    v = os.statvfs(where)
    assert v.f_ffree >= 0.1 * v.f_files - 2
    assert d.metrics()["stoke_cached_blocks"] > 100 and state(d, f"{where}/c") == WELL


def test_a_full_disk_is_not_sick(lab, file_volume, files):
    sick = lab.fault_fs()
    sick.do("write error ENOSPC")
    d = lab.daemon(file_volume, 1, cache_dirs=[sick.path])
    m = lab.group_mount(file_volume, "m1", ["--buffer-size", "32"])
    reader = Reader(m, files)
    reader.more(1)
    reader.stop()
    assert disk(d, sick.path, "skipped_total") > 0
    assert state(d, sick.path) == WELL and disk(d, sick.path, "set_aside_total") == 0


def test_each_directory_has_its_own_budget(lab, file_volume):
    a, b = f"{lab.folder}/a", f"{lab.folder}/b"
    d = lab.daemon(file_volume, 1, cache_dirs=[a, b], flags=["--cache-size", "64:192", "--free-space-ratio", "0.01"])
    assert disk(d, a, "capacity_bytes") == 64 * MIB and disk(d, b, "capacity_bytes") == 192 * MIB
    m = lab.group_mount(file_volume, "m1")
    write_file(m.path("f"), noise(160 * MIB))
    lab.stoke("warmup", m.path("f"))
    assert 0 < disk(d, a, "bytes") <= 64 * MIB < disk(d, b, "bytes") <= 192 * MIB
    r = subprocess.run([f"{lab.bin}/stoke-cached", file_volume, "--cache-dir", f"{a}:{b}", "--cache-size", "1:2:3",
                        "--socket", f"{lab.folder}/s"], capture_output=True, text=True, env=lab.env)
    assert r.returncode and "one for each of the 2" in r.stderr
