# SPDX-License-Identifier: Apache-2.0
"""The tests' own eye for a volume's faults sees what it is there for."""
import struct

from volume import TRASH, Volume


def directory(parent, nlink=2):
    return struct.pack(">BHIIqIqIqIIQIQ", 0, 2 << 12 | 0o755, 0, 0, 0, 0, 0, 0, 0, 0, nlink, 4096, 0, parent) + b"\0"


def entry(inode):
    return struct.pack(">BQ", 2, inode)


def test_directories_that_no_way_leads_to_are_a_fault(redis):
    c = redis.client()
    c.mset({"i1": directory(1, 3), "i2": directory(1, 3), "i3": directory(2), f"i{TRASH}": directory(1, 3),
            f"i{TRASH + 1}": directory(TRASH), "i4": directory(TRASH + 1), "usedSpace": 4 * 4096, "totalInodes": 4})
    c.hset("d1", "a", entry(2))
    c.hset("d2", "b", entry(3))
    c.hset(f"d{TRASH}", "2020-02-29-23", entry(TRASH + 1))
    c.hset(f"d{TRASH + 1}", "1-4-c", entry(4))
    assert Volume(c).faults() == []
    # a went into b, and b into a, each by another client
    c.delete("d1")
    c.hset("d3", "a", entry(2))
    c.set("i2", directory(3, 3))
    c.set("i3", directory(2, 3))
    assert sorted(Volume(c).faults()) == [f"i{i}: named, but there is no way to it from the root or the trash" for i in (2, 3)]
