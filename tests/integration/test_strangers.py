# SPDX-License-Identifier: Apache-2.0
"""Who is not of the group gets nothing: wrong secrets, garbage, thousands of idle connections; and secrets stay secret."""
import hashlib
import hmac
import json
import os
import re
import resource
import socket
import struct
import subprocess

import pytest
from lab import BLOCK, SECRET, TOP, noise, rss_mib, wait_for, write_file


def crc32c(data):
    c = 0xFFFFFFFF
    for x in data:
        c ^= x
        for _ in range(8):
            c = (c >> 1) ^ (0x82F63B78 if c & 1 else 0)
    return c ^ 0xFFFFFFFF


def frame(op, body=b"", status=0, flags=0, magic=0x53544B45, length=None, rid=1):
    head = struct.pack(">IBBHQIII", magic, 1, op, status, rid, flags, 0, len(body) if length is None else length)
    return head + struct.pack(">I", crc32c(head)) + body


def hello(group=b"train", volume=bytes(16), nonce=b"n" * 32, node=b"me"):
    return bytes([1, 1, 1, 0]) + volume + nonce + bytes([len(group), len(node)]) + group + node


def connect(d):
    s = socket.create_connection(("127.0.0.1", d.port), timeout=10)
    return s


def read_all(s):
    out = b""
    try:
        while part := s.recv(65536):
            out += part
    except ConnectionError:
        pass
    return out


def read_frame(s):
    head = b""
    while len(head) < 32:
        part = s.recv(32 - len(head))
        if not part:
            return None
        head += part
    op, status, length = head[5], struct.unpack(">H", head[6:8])[0], struct.unpack(">I", head[24:28])[0]
    body = b""
    while len(body) < length:
        body += s.recv(length - len(body))
    return op, status, body


@pytest.fixture
def daemon(lab, s3_volume):
    d = lab.daemon(s3_volume, 1, tls=False)  # what is said here is said in plain; test_security.py and test_served_tls.c speak TLS
    m = lab.group_mount(s3_volume, "m1", tls=False)
    write_file(m.path("f"), noise(BLOCK))
    lab.stoke("warmup", m.path("f"))
    d.key_name = os.path.basename(d.block_files()[0])
    d.volume = bytes.fromhex(re.search(r"/([0-9a-f]{32})/blocks/", d.block_files()[0])[1])
    slice_, index, size = map(int, d.key_name.split("_"))
    d.get = frame(3, d.volume + struct.pack(">QIIII", slice_, index, size, 0, size), rid=2)
    d.mount = m
    return d


def rejected(d):
    return sum(v for k, v in d.metrics().items() if k.startswith("stoke_cached_rejected_total"))


def test_right_secret_is_served(daemon):
    """the other tests of this file would pass if nothing were ever served"""
    s = connect(daemon)
    h = hello(volume=daemon.volume)
    s.sendall(frame(1, h))
    op, status, body = read_frame(s)
    assert (op, status) == (1, 0)
    theirs, proof = body[:-32], body[-32:]
    assert proof == hmac.new(SECRET.encode(), b"daemon" + h + theirs, hashlib.sha256).digest()
    s.sendall(frame(2, hmac.new(SECRET.encode(), b"asker" + h + theirs, hashlib.sha256).digest()) + daemon.get)
    assert read_frame(s)[:2] == (2, 0)
    op, status, body = read_frame(s)
    assert (op, status) == (3, 0) and body[:BLOCK] == noise(BLOCK)


def test_S01_strangers_get_no_block_byte(daemon):
    before = rejected(daemon)
    data = noise(BLOCK)

    def attempt(*parts):
        s = connect(daemon)
        try:
            for part in parts:
                s.sendall(part)
            s.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # closed on us already: as it should be
        answers = read_all(s)
        assert len(answers) < 4096 and data[:64] not in answers
    h = hello(volume=daemon.volume)
    attempt(daemon.get)                                                             # no HELLO
    attempt(frame(1, h), daemon.get)                                                # HELLO without proof
    attempt(frame(1, h), frame(2, b"w" * 32), daemon.get)                           # wrong proof
    attempt(frame(1, hello(group=b"other", volume=daemon.volume)), daemon.get)      # another group
    attempt(frame(1, hello(volume=b"v" * 16)), daemon.get)                          # another volume
    # a replayed handshake: the proof of one connection on another
    s = connect(daemon)
    s.sendall(frame(1, h))
    theirs = read_frame(s)[2][:-32]
    proof = frame(2, hmac.new(SECRET.encode(), b"asker" + h + theirs, hashlib.sha256).digest())
    s.close()
    attempt(frame(1, h), proof, daemon.get)
    wait_for("count of the rejected", lambda: rejected(daemon) - before >= 6)


def test_S02_garbage_is_closed_and_memory_stays(daemon):
    before = rss_mib(daemon.pid)
    for payload in (frame(3, magic=0x47455420), frame(4, length=1 << 31), frame(99), b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096),
                    frame(1, b"", length=2000), frame(1, os.urandom(100))):
        for _ in range(50):
            s = connect(daemon)
            s.sendall(payload)
            assert len(read_all(s)) < 4096
            s.close()
    # one byte, then silence: closed by the daemon, not by us
    s = connect(daemon)
    s.sendall(b"S")
    s.settimeout(15)
    assert read_all(s) == b""
    assert daemon.running() and rss_mib(daemon.pid) < before + 50
    daemon.mount.drop_caches()
    with open(daemon.mount.path("f"), "rb") as f:
        assert f.read() == noise(BLOCK)


def test_S03_idle_connections_keep_nobody_out(daemon):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = 10_000
    if hard != resource.RLIM_INFINITY and hard < want + 500:
        pytest.skip(f"at most {hard} descriptors here, {want + 500} needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (want + 500, hard))
    idle = []
    try:
        for i in range(want):
            s = socket.socket()
            s.settimeout(10)
            s.bind((f"127.0.0.{2 + i % 8}", 0))
            s.connect(("127.0.0.1", daemon.port))
            idle.append(s)
        daemon.mount.drop_caches()
        with open(daemon.mount.path("f"), "rb") as f:
            assert f.read() == noise(BLOCK)
        test_right_secret_is_served(daemon)
    finally:
        for s in idle:
            s.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_S04_secrets_are_nowhere_to_be_seen(lab, rgw, bucket):
    password = "redis-pass-word"
    redis = lab.redis("redis2", password=password)
    meta = redis.url(1)
    lab.format(meta, "vol", rgw, bucket)
    d = lab.daemon(meta, 1)
    m = lab.group_mount(meta, "m1", socket=d.socket)
    write_file(m.path("f"), noise(1000))
    lab.stoke("warmup", m.path("f"))
    status = lab.stoke("status", meta, "--group-secret-file", lab.secret_file(), *lab.tls_flags())
    secrets = [password, rgw.KEY, SECRET]

    def clean(where, text):
        for s in secrets:
            assert s not in text, where
    for p in (d, m):
        with open(f"/proc/{p.pid}/cmdline", "rb") as f:
            clean("argv", f.read().decode(errors="replace"))
        clean("log", p.text())
    clean("status", status.stdout + status.stderr)
    for name in (".config", ".stats"):
        with open(m.path(name)) as f:
            clean(name, f.read())
    clean("metrics", str(d.metrics()) + str(m.metrics()))
    for folder, _, files in os.walk(d.folder):
        for f in files:
            p = os.path.join(folder, f)
            if os.stat(p).st_mode & 0o004 and os.path.isfile(p):
                with open(p, "rb") as fh:
                    clean(p, fh.read().decode(errors="replace"))
    # in Redis the key is sealed
    assert rgw.KEY.encode() not in redis.client(1).get("setting")
    bad = lab.stoke("status", meta.replace(password, "wrong-one"), check=False)
    assert bad.returncode == 1 and "wrong-one" not in bad.stderr and len(bad.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("tls", [False, True])
def test_connections_are_held_in_little_memory(lab, file_volume, tls):
    """300 MiB for 20 000 of plain TCP, measured with fewer; TLS costs more of it"""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    d = lab.daemon(file_volume, 1, tls=tls)
    wait_for("its folders", lambda: os.listdir(d.cache[0]))
    folder = next(os.path.join(p, f) for p, dirs, _ in os.walk(d.cache[0]) for f in dirs if re.fullmatch("[0-9a-f]{32}", f))
    n = 500 if tls else 4000
    if hard != resource.RLIM_INFINITY and hard < 3 * n:
        pytest.skip(f"at most {hard} descriptors here")
    out, mode = os.path.split(lab.bin)
    subprocess.run(["make", "-s", "-C", TOP, f"O={out}", f"MODE={mode}", f"{lab.bin}/bench/conns"], check=True, timeout=600)
    r = subprocess.run([f"{lab.bin}/bench/conns", str(d.port), "train", lab.secret_file(), os.path.basename(folder), str(d.pid), str(n),
                        *lab.tls_flags(tls)[1::2]], text=True, capture_output=True)
    assert r.returncode == 0, r.stderr
    got = json.loads(r.stdout)
    assert got["bytes_each"] * 20_000 < (1 << 30 if tls else 250 << 20), got
