# SPDX-License-Identifier: Apache-2.0
"""Requests when the object store is silent or wants fewer of them, and blocks that everybody reads at once."""
import errno
import hashlib
import os
import socket
import threading
import time

import pytest
from lab import BLOCK, noise, sha256, wait_for, write_file

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>"


class Gate:
    """The object store behind a door that can say nothing, or SlowDown to the next so many GETs, or for a while."""

    def __init__(self, rgw):
        self.rgw, self.ACCESS, self.KEY = rgw, rgw.ACCESS, rgw.KEY
        self.silent, self.busy, self.said = False, 0, 0
        self.until, self.told = 0.0, []  # SlowDown to every GET until then; when it was said
        self.server = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        self.lock = threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                conn, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.carry, args=(conn,), daemon=True).start()

    def refuses(self, data):
        with self.lock:
            now = time.monotonic()
            if not (self.busy or now < self.until) or not data.startswith(b"GET ") or b"/chunks/" not in data.split(b"\r\n", 1)[0]:
                return False
            self.busy -= self.busy > 0
            self.said += 1
            self.told.append(now)
            return True

    def carry(self, client):
        try:
            with client, socket.create_connection(("127.0.0.1", self.rgw.port)) as server:
                threading.Thread(target=self.back, args=(server, client), daemon=True).start()
                while data := client.recv(1 << 16):
                    while self.silent:
                        time.sleep(0.05)
                    if self.refuses(data):
                        client.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: %d\r\n\r\n" % len(SLOW_DOWN) + SLOW_DOWN)
                    else:
                        server.sendall(data)
        except OSError:
            pass

    @staticmethod
    def back(server, client):
        try:
            while data := server.recv(1 << 16):
                client.sendall(data)
            client.close()
        except OSError:
            pass

    def stop(self):
        self.silent = False
        self.server.close()


@pytest.fixture
def gate(lab, rgw):
    return lab.add(Gate(rgw))


@pytest.fixture
def gated(lab, redis, gate, bucket):
    """META of a volume behind the gate"""
    meta = redis.url(1)
    lab.format(meta, "vol", gate, bucket)
    return meta


def total(daemon, name):
    return sum(v for k, v in daemon.metrics().items() if k.split("{")[0] == name)


def test_a_silent_store_is_an_error_in_time_and_keeps_nobody_from_ending(lab, gated, gate):
    quick = ["--io-retries", "1"]  # 6 s for a read and all its ways
    daemons = [lab.daemon(gated, n, flags=quick) for n in (1, 2)]
    m1 = lab.group_mount(gated, "m1")
    write_file(m1.path("f"), noise(2 * BLOCK))
    m2 = lab.group_mount(gated, "m2", flags=quick)
    with open(m2.path("f"), "rb") as f:
        gate.silent = True
        start = time.monotonic()
        with pytest.raises(OSError) as e:
            os.pread(f.fileno(), 4096, 0)
        took = time.monotonic() - start
    assert e.value.errno == errno.EIO and 4 < took < 9, took
    lines = [line for line in m2.text().splitlines() if "read failed" in line]
    assert lines and "chunks/0/0/" in lines[0] and ("tried" in lines[0] or "time passed" in lines[0]), lines
    # a daemon that is told to end while it waits: 10 s for what it serves, no more, and no failure
    before = [total(d, "stoke_cached_misses_total") for d in daemons]
    reader = threading.Thread(target=sha256, args=(m1.path("f"),))
    reader.start()
    wait_for("a fetch", lambda: [total(d, "stoke_cached_misses_total") for d in daemons] != before)
    start = time.monotonic()
    for d in daemons:
        d.p.terminate()
        lab.started.remove(d)
    assert [d.stop() for d in daemons] == [0, 0] and time.monotonic() - start < 13
    gate.silent = False
    reader.join()
    assert sha256(m1.path("f")) == sha256(m2.path("f"))


def test_D05_what_one_is_told_slows_all(lab, gated, gate):
    daemons = [lab.daemon(gated, n) for n in (1, 2)]
    m1 = lab.group_mount(gated, "m1")
    write_file(m1.path("f"), noise(4096))
    m2 = lab.group_mount(gated, "m2")
    gate.busy = 2
    assert sha256(m2.path("f")) == sha256(m1.path("f"))
    assert gate.said == 2
    told = [total(d, "stoke_object_slow_downs_total") for d in daemons]
    assert sorted(told) == [0, 2], told
    other = daemons[told.index(0)]
    wait_for("fewer reads by the other one", lambda: total(other, "stoke_object_cuts_total") == 1, 5)


def test_D05_a_store_that_wants_fewer_requests_gets_fewer_and_no_read_fails(lab, gated, gate):
    for n in (1, 2):
        lab.daemon(gated, n)
    m1 = lab.group_mount(gated, "m1")
    data = noise(16 * BLOCK)
    write_file(m1.path("f"), data)
    m2 = lab.group_mount(gated, "m2")
    gate.until = time.monotonic() + 4
    assert sha256(m2.path("f")) == hashlib.sha256(data).hexdigest()
    first, last = (sum(at <= gate.until - 4 + s < at + 2 for at in gate.told) for s in (2, 4))
    # many are there at once, then each of them comes back later and later, and not all together
    assert gate.told and last < first, gate.told
    assert max(sum(t <= at < t + 0.01 for at in gate.told if at > gate.until - 3) for t in gate.told) <= 4, gate.told


def test_a_hot_file_is_served_by_two_and_fetched_once(lab, s3_volume, rgw, bucket):
    blocks = 12
    daemons = [lab.daemon(s3_volume, n) for n in (1, 2)]
    m1 = lab.group_mount(s3_volume, "m1")
    data = noise(blocks * BLOCK)
    write_file(m1.path("hot"), data)
    want = hashlib.sha256(data).hexdigest()
    mark, errors = rgw.log_size(), []
    lab.stoke("warmup", m1.path("hot"))
    herd = [lab.group_mount(s3_volume, f"h{i}") for i in range(6)]

    def read(mount):
        if sha256(mount.path("hot")) != want:
            errors.append(mount.dir)
    threads = [threading.Thread(target=read, args=(m,)) for m in herd]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []
    # a mount may have asked by itself, where this machine let both daemons be silent for too long
    hedged = sum(v for m in herd for k, v in m.metrics().items() if k.startswith("stoke_object_requests_total") and 'op="get"' in k)
    assert hedged <= sum(v for m in herd for k, v in m.metrics().items() if k == "stoke_hedges_total")
    whole, ranged = rgw.gets(mark, bucket)
    assert len(set(whole)) == blocks == len(whole) - hedged and not ranged, (len(whole), hedged, len(ranged))
    assert sum(total(d, "stoke_cached_sent_on_total") for d in daemons) > 0
    assert sum(v for m in herd for k, v in m.metrics().items() if k.startswith("stoke_peer_busy_total")) > 0
