# SPDX-License-Identifier: Apache-2.0
"""Directories that are read page by page: what stays is listed once, whatever comes and goes
meanwhile; who reads a little is not given all."""
import ctypes
import os
import sys

from lab import commands_of

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../../bench")
import meta as bench_meta  # noqa: E402

libc = ctypes.CDLL("libc.so.6", use_errno=True)
libc.opendir.restype = ctypes.c_void_p
libc.readdir.restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long
libc.readdir.argtypes = libc.telldir.argtypes = libc.rewinddir.argtypes = libc.closedir.argtypes = [ctypes.c_void_p]
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
NAME_AT = 19  # in struct dirent


class Dir:
    def __init__(self, path):
        self.d = libc.opendir(path.encode())
        assert self.d

    def next(self):
        e = libc.readdir(self.d)
        return ctypes.string_at(e + NAME_AT).decode() if e else None

    def rest(self):
        return list(iter(self.next, None))

    def close(self):
        libc.closedir(self.d)


def filled(lab, redis, n, flags=()):
    meta, client = redis.url(0), redis.client(0)
    lab.format(meta, "listing", flags=("--trash-days", "0"))
    m = lab.mount(meta, flags=flags)
    d = m.path("d")
    os.mkdir(d)
    bench_meta.fill_directory(client, os.stat(d).st_ino, 1 << 40, n)
    return m, d, client


def test_what_stays_is_listed_once(lab, redis):
    m, d, client = filled(lab, redis, 30000)
    inode = os.stat(d).st_ino
    stays = {f"file{(1 << 40) + i}" for i in range(0, 30000, 3)} | {".", ".."}
    r = Dir(d)
    names = [r.next() for _ in range(700)]
    # two thirds go and as many others come, so that Redis lays its table anew, more than once
    gone = [f"file{(1 << 40) + i}" for i in range(30000) if i % 3]
    for i in range(0, len(gone), 1000):
        client.hdel(f"d{inode}", *gone[i:i + 1000])
    names += [r.next() for _ in range(500)]
    bench_meta.fill_directory(client, inode, 1 << 41, 60000)
    names += r.rest()
    assert len(names) == len(set(names)) and stays <= set(names)
    # from the start again: what is there now
    libc.rewinddir(r.d)
    again = r.rest()
    assert len(again) == len(set(again)) == 70002 and stays <= set(again)
    r.close()


def test_a_reader_goes_back(lab, redis):
    m, d, client = filled(lab, redis, 5000)
    r = Dir(d)
    places = []
    while True:
        at = libc.telldir(r.d)
        name = r.next()
        if not name:
            break
        places.append((at, name))
    assert len(places) == 5002
    for at, name in places[::997] + places[:3] + places[-2:]:
        libc.seekdir(r.d, at)
        assert r.next() == name
    r.close()


def test_who_reads_a_little_is_not_given_all(lab, redis):
    m, d, client = filled(lab, redis, 40000)

    def a_little():
        r = Dir(d)
        assert r.next() and r.next()
        r.close()
    asked = [c for c in commands_of(client, a_little) if c.startswith("MGET")]
    assert 1 <= len(asked) <= 14, asked
    assert sorted(os.listdir(d))[-1] == f"file{(1 << 40) + 39999}"
    assert len(os.listdir(d)) == 40000
