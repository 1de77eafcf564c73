# SPDX-License-Identifier: Apache-2.0
"""Nodes as network namespaces: every node has its own address; Redis, S3 and the test itself are on the hub.

The thread that makes a NetLab moves into a network namespace of its own (the hub, with a bridge) until the lab is closed, and
so does everything it starts; nothing of it touches the network of the host. Needs root."""
import contextlib
import ctypes
import os
import subprocess

import lab

HUB = "10.77.0.1"  # the test itself
REDIS, S3 = "10.77.0.2", "10.77.0.3"  # what runs on the hub has addresses of its own, which a node may lose
CLONE_NEWNET = 0x40000000


def ip(*argv):
    r = subprocess.run(["ip", *argv], text=True, capture_output=True)
    if r.returncode:
        raise RuntimeError(f"ip {' '.join(argv)}: {r.stderr.strip()}")
    return r.stdout


class Node:
    """one host: a namespace, with a cable to the hub's bridge"""

    def __init__(self, number):
        self.name, self.ip = f"stoke-{os.getpid()}-{number}", f"10.77.0.{10 + number}"
        self.cable = f"n{number}"
        self.enter = ["nsenter", f"--net=/run/netns/{self.name}", "--"]
        ip("netns", "add", self.name)
        try:
            ip("link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
            ip("link", "set", self.cable, "master", "hub", "up")
            for argv in (("link", "set", "lo", "up"), ("addr", "add", f"{self.ip}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
                ip("-n", self.name, *argv)
        except BaseException:
            self.stop()
            raise

    def cut(self, on=True):
        """the cable is pulled, or put in again"""
        ip("link", "set", self.cable, "down" if on else "up")

    def drop(self, other, on=True):
        """What this node sends to the other one (or to an address) is lost on the way (no answer of any kind comes), everything
        else arrives."""
        other = getattr(other, "ip", other)
        if on:
            ip("-n", self.name, "neigh", "replace", other, "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
        else:
            with contextlib.suppress(RuntimeError):
                ip("-n", self.name, "neigh", "del", other, "dev", "eth0")

    def stop(self):
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)


class NetLab(lab.Lab):
    def __init__(self, folder, bin_dir=None):
        super().__init__(folder, bin_dir)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.nodes = []
        if self.libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        try:
            ip("link", "set", "lo", "up")
            ip("link", "add", "hub", "type", "bridge")
            for address in (HUB, REDIS, S3):
                ip("addr", "add", f"{address}/24", "dev", "hub")
            ip("link", "set", "hub", "up")
        except BaseException:
            self.leave()
            raise

    def node(self):
        self.nodes.append(Node(len(self.nodes) + 1))
        return self.nodes[-1]

    def redis(self, name="redis", **kw):
        return super().redis(name, host=REDIS, **kw)

    def rgw(self):
        return self.add(lab.Rgw(f"{self.folder}/rgw", host=S3))

    def leave(self):
        for node in self.nodes:
            node.stop()
        self.libc.setns(self.home, 0)
        os.close(self.home)

    def close(self):
        try:
            super().close()
        finally:
            self.leave()
