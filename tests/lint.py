#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""make lint: what a compiler does not say. Include arrows, library walls, format, each header alone, length of files and
lines, SPDX lines."""
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# who may include whom (docs/architecture.md §7)
ARROWS = {
    "proto": {"proto"},
    "common": {"common", "proto"},
    "common/object": {"common/object", "common", "proto"},
    "common/block": {"common/block", "common/object", "common", "proto"},
    "client/meta": {"client/meta", "common/block", "common/object", "common", "proto"},
    "client/maint": {"client/maint", "client/meta", "common/block", "common/object", "common", "proto"},
    "client": {"client", "client/maint", "client/meta", "common/block", "common/object", "common", "proto"},
    "client/cmd": {"client/cmd", "client", "client/maint", "client/meta", "common/block", "common/object", "common", "proto"},
    "cached": {"cached", "common/block", "common/object", "common", "proto"},
}
# third-party headers stay behind their wall: header -> files that may include it
WALLS = {
    r"curl/": r"common/object/object_s3\w*\.[ch]",
    r"openssl/": r"common/sigv4\.c|common/object/crypt\w*\.c|common/block/hello\.c|common/redis_tls\.c|common/tls\.c",
    r"xxhash\.h": r"common/hash\.c",
    r"hiredis/": r"common/redis\w*\.c",
    r"event2/": r"common/(loop|http)\.c",
    r"jansson\.h": r"common/block/setting\w*\.[ch]|client/((meta|maint|cmd)/)?\w+\.[ch]|common/object/object_s3_cred\w*\.c|cached/main\.c",
    r"fuse_lowlevel\.h|fuse3/|fuse\.h": r"client/(fuse_\w+|cmd/cmd_mount)\.[ch]",
    r"lz4\.h|zstd\.h": r"common/object/codec\.c",
    r"zlib\.h": r"client/maint/dumpfile\.c",
}
FOLDERS = ("proto", "common", "cached", "client", "tests", "bench")
LINES_MAX = 800
COLUMNS_MAX = {".c": 100, ".h": 100, ".lua": 100, ".py": 140}  # a tab goes to the next multiple of 8
WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def sources(*ends):
    """our files with these endings; golden volumes are JuiceFS's"""
    out = []
    for top in FOLDERS:
        for folder, dirs, files in os.walk(os.path.join(TOP, top)):
            dirs[:] = [d for d in dirs if d not in ("golden", "corpus", "__pycache__")]
            out += [os.path.relpath(os.path.join(folder, f), TOP) for f in files if f.endswith(ends)]
    return sorted(out)


def check_file(path, problems):
    folder = os.path.dirname(path)
    with open(os.path.join(TOP, path), encoding="utf-8") as f:
        lines = f.read().splitlines()
    if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:2]):
        problems.append(f"{path}:1: no SPDX line")
    if len(lines) > LINES_MAX:
        problems.append(f"{path}: {len(lines)} lines, more than {LINES_MAX}: one idea a file")
    for n, line in enumerate(lines, 1):
        if WORDS.search(line):
            problems.append(f"{path}:{n}: unfinished: {line.strip()}")
        m = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
        if not m:
            continue
        name = m.group(2)
        for header, files in WALLS.items():
            if folder in ARROWS and re.match(header, name) and not re.fullmatch(files, path):
                problems.append(f"{path}:{n}: {name} belongs behind another wall ({files})")
        if m.group(1) == '"':
            if "/" not in name:
                problems.append(f"{path}:{n}: includes name their folder: {name}")
            elif folder in ARROWS and os.path.dirname(name) not in ARROWS[folder]:
                problems.append(f"{path}:{n}: {folder} may not include {name}")
            elif not os.path.exists(os.path.join(TOP, name)):
                problems.append(f"{path}:{n}: no such file: {name}")
    if path.endswith(".c") and folder in ARROWS:
        own = path[:-2] + ".h"
        first = next((re.match(r'#include "([^"]+)"', line) for line in lines if line.startswith('#include "')), None)
        if os.path.exists(os.path.join(TOP, own)) and (not first or first.group(1) != own):
            problems.append(f"{path}: its own header {own} comes first")


def check_width(path, problems):
    most = COLUMNS_MAX[os.path.splitext(path)[1]]
    with open(os.path.join(TOP, path), encoding="utf-8") as f:
        for n, line in enumerate(f, 1):
            width = len(line.rstrip("\n").expandtabs(8))
            if width > most:
                problems.append(f"{path}:{n}: {width} columns, more than {most}")


def header_alone(path):
    flags = subprocess.run(["pkg-config", "--cflags", "fuse3", "hiredis"], text=True, capture_output=True).stdout.split()
    r = subprocess.run(["gcc", "-std=gnu17", "-I.", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-DFUSE_USE_VERSION=314",
                        '-DSTOKE_VERSION="0"', *flags, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c", "-"],
                       input=f'#include "{path}"\n', text=True, capture_output=True, cwd=TOP)
    return None if r.returncode == 0 else f"{path}: does not compile alone: {r.stderr.splitlines()[0]}"


def formatted(path):
    r = subprocess.run(["clang-format", "--dry-run", "-Werror", path], text=True, capture_output=True, cwd=TOP)
    return None if r.returncode == 0 else f"{path}: not formatted (clang-format -i)"


def main():
    problems = []
    code = sources(".c", ".h")
    for path in code:
        check_file(path, problems)
    for path in sources(*COLUMNS_MAX):
        if not path.startswith("tests/golden/"):
            check_width(path, problems)
    headers = [p for p in code if p.endswith(".h") and not p.startswith(("tests/", "bench/"))]
    with ThreadPoolExecutor(os.cpu_count()) as ex:
        problems += [p for p in ex.map(header_alone, headers) if p]
        problems += [p for p in ex.map(formatted, code) if p]
    print("\n".join(problems))
    print(f"lint: {len(code)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
