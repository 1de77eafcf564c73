# SPDX-License-Identifier: Apache-2.0
"""Who may talk: TLS with certificates on both sides, secrets and certificates that change while everybody goes on."""
import os
import signal
import socket

from lab import BLOCK, SECRET, noise, wait_for, write_file


def counter(d, name):
    return sum(v for k, v in d.metrics().items() if k.startswith(name))


def fill(lab, mount, names):
    for i, name in enumerate(names):
        write_file(mount.path(name), noise(BLOCK, i + 1))
    lab.stoke("warmup", *[mount.path(n) for n in names])


def check(mount, names):
    mount.drop_caches()
    for i, name in enumerate(names):
        with open(mount.path(name), "rb") as f:
            assert f.read() == noise(BLOCK, i + 1)


def put_file(path, text):
    """replaced in one step, as docs/security.md says"""
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
        f.write(text)
    os.rename(path + ".new", path)


def test_S01_group_over_TLS(lab, s3_volume, rgw):
    daemons = [lab.daemon(s3_volume, n, tls=True) for n in (1, 2)]
    mount = lab.group_mount(s3_volume, "m1", tls=True)
    names = [f"f{i}" for i in range(6)]
    fill(lab, mount, names)
    before = sum(counter(d, "stoke_cached_sent_bytes_total") for d in daemons)
    check(mount, names)
    assert sum(counter(d, "stoke_cached_sent_bytes_total") for d in daemons) - before >= len(names) * BLOCK
    # plain TCP is refused, counted, and said; so are certificates of another CA
    d = daemons[0]
    rejected = counter(d, "stoke_cached_rejected_total")
    with socket.create_connection(("127.0.0.1", d.port), timeout=10) as s:
        s.sendall(b"STKE" + bytes(60))
        assert s.recv(100) == b""
    plain = lab.group_mount(s3_volume, "m2", tls=False)
    check(plain, names)  # from S3
    other = lab.group_mount(s3_volume, "m3", tls=lab.certificate("node", "otherca"))
    check(other, names)
    assert counter(d, "stoke_cached_rejected_total") >= rejected + 3
    assert "plain TCP" in d.text() and "TLS handshake refused" in d.text()
    status = lab.stoke("status", s3_volume, "--group-secret-file", lab.secret_file(), *lab.tls_flags(True)).stdout
    assert '"Blocks"' in status or '"blocks"' in status


def test_S01_secret_and_certificate_are_exchanged_without_a_stop(lab, s3_volume):
    secret, new = f"{lab.folder}/the-secret", "another secret of the laboratory"
    cert = lab.certificate()
    put_file(secret, SECRET + "\n")
    flags = ["--group-secret-file", secret]
    daemons = [lab.daemon(s3_volume, n, tls=cert, flags=flags) for n in (1, 2)]
    mount = lab.group_mount(s3_volume, "m1", flags, tls=cert)
    names = [f"f{i}" for i in range(4)]
    fill(lab, mount, names)

    def from_peers():
        """a fresh mount, so that every connection is new"""
        m = lab.group_mount(s3_volume, "fresh", flags, tls=cert)
        check(m, names)
        got = m.bytes_by_source()
        m.stop()
        return got.get("s3", 0) == 0 and got.get("peer", 0) >= len(names) * BLOCK

    assert from_peers()
    put_file(secret, f"{new}\n{SECRET}\n")
    assert from_peers()  # the mounts have both lines, the daemons the old one
    for d in daemons:
        d.signal(signal.SIGHUP)
        wait_for("secret", lambda d=d: "secret" in d.text().split("signal 1")[-1])
        assert from_peers()
    put_file(secret, f"{new}\n")
    for d in daemons:
        d.signal(signal.SIGHUP)
        assert from_peers()
    wait_for("the mount to look", lambda: mount.text().count("are used from now on") >= 2)
    check(mount, names)
    # a damaged file changes nothing
    put_file(secret, "short\n")
    daemons[0].signal(signal.SIGHUP)
    wait_for("complaint", lambda: "stay in use" in daemons[0].text() or "as before" in daemons[0].text())
    put_file(secret, f"{new}\n")
    assert from_peers()
