#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the man pages from what the programs print with --help, so that options are described in one place: man.py BIN_DIR OUT_DIR"""
import os
import re
import subprocess
import sys

NO_PAGE = {"version", "help"}
MORE = {
    "stoke-mount": """META is the volume's Redis, as JuiceFS types it: redis://[user]:[password]@host[:port]/db, host:port/db,
rediss://... (TLS; ?tls-ca-cert-file=, tls-cert-file=, tls-key-file=, tls-server-name=, insecure-skip-verify=), unix:///path/redis.sock?db=N,
redis://MASTER,host1,host2:port/db (sentinels) or redis://host1:port,host2:port/db (a cluster; one of its nodes will do). A password typed in META is
blanked in the process list; REDIS_PASSWORD, META_PASSWORD and META_PASSWORD_FILE are used when META has none, SENTINEL_PASSWORD for the sentinels.
.PP
An encrypted volume needs the passphrase of its key in JFS_RSA_PASSPHRASE.
.PP
With --cache-group and --socket the mount is beside a member of the group; without --socket it only consumes. With --cache-dir and no
group it starts a private stoke-cached that ends with it. Without any of them it reads from the object store.
.PP
SIGTERM, SIGINT and umount store what was written before the process ends. When that takes longer than two seconds the log says every ten
seconds how much is not stored yet and how long the mount goes on trying: for five and a half minutes after the last thing that could be
stored. A second SIGTERM or SIGINT, at least a second after the first, gives up at once. A mount that gave up names in its log the files
whose data is lost, leaves the tree and ends with status 1; its session lapses.""",
    "stoke-tier": """set moves a file, or what will be made in a directory, and with --recursive all that lies below it, to a tier: directories are set at once,
then the objects of files are read and stored again under the class and tag of the tier, then the files are set. What was broken off is done again by
the same command. restore asks the object store to make archived objects readable for --days; it takes hours, and only S3 has it.""",
    "stoke-umount": """Returns when the mount's process has ended, so that everything that was written is stored, or has been given up: then the mount's
log names the files. A process that still stores after --wait goes on; two SIGTERMs, a second apart, make it give up.""",
    "stoke-format": """The keys of the object store come from the environment variables ACCESS_KEY, SECRET_KEY and SESSION_TOKEN. They are kept in the
volume's setting, sealed as JuiceFS seals them. Running it again with the same NAME changes nothing.""",
    "stoke-warmup": """Exit status: 0 when every block is where it belongs (with --check: is there already), 1 when a block is missing or a path could not be
read, 2 for wrong usage.""",
    "stoke-fsck": """Exit status: 0 when nothing is wrong, 1 when something is (one line each, with inode and path), 2 for wrong usage. Nothing is changed
without --repair.""",
    "stoke-gc": """Counts without --delete and --compact. Objects younger than an hour are left alone: they may belong to a write under way.""",
    "stoke-load": """The database must be empty. The loaded volume is another one for every cache. A load that failed leaves a part behind, which cannot
be mounted.""",
    "stoke-config": """A change is taken by mounts and daemons with their next heartbeat (12 s). Secrets: --secret-key env and --session-token env take
them from SECRET_KEY and SESSION_TOKEN; what is typed is blanked in the process list.""",
    "stoke-info": """Asks the mount that the path lies in; root or the mount's user only. So do summary, rmr, clone and compact.""",
    "stoke-status": """Prints JSON: Setting (secrets as ****), Sessions, Statistic, Groups with their members. What each member holds is asked of the
members and needs the group's secret.""",
    "stoke-cached": """One daemon a node and volume. It owns the node's cache disks, is a member of its group under --group-ip and --group-port, and serves
the mounts of its node through --socket. SIGTERM makes it leave the group, finish what is being served, and end.
.PP
A cache directory holds blocks in files named for what they are; they may be removed at any time while the daemon is stopped.""",
}


def escape(s):
    return s.replace("\\", "\\e").replace("-", "\\-").replace("\n.", "\n\\&.")


def page(name, section, text):
    head, _, options = text.partition("\noptions:\n")
    usage = re.match(r"usage: (.*)", head)[1]
    summary = " ".join(head.split("\n", 1)[1].split())
    out = [f'.TH {name.upper()} {section}', ".SH NAME", f"{escape(name)} \\- {escape(summary)}", ".SH SYNOPSIS", f".B {escape(usage)}"]
    if name in MORE:
        out += [".SH DESCRIPTION", MORE[name].replace("--", "\\-\\-")]
    out.append(".SH OPTIONS")
    for entry in re.split(r"\n(?=  \S|      --)", options.rstrip()):
        lines = entry.split("\n")
        m = re.match(r"\s*(\S.*?)(?:\s{2,}(.*))?$", lines[0])
        if not m:
            continue
        words = " ".join([m[2] or "", *(line.strip() for line in lines[1:])]).strip()
        out += [".TP", f".B {escape(m[1])}", escape(words)]
    return "\n".join(out) + "\n"


def main():
    bin_dir, out_dir = sys.argv[1:]
    os.makedirs(out_dir, exist_ok=True)
    listed = subprocess.run([f"{bin_dir}/stoke", "help"], text=True, capture_output=True, check=True).stdout
    commands = [c for c in re.findall(r"(?m)^  (\w+) ", listed) if c not in NO_PAGE]
    pages = [(f"stoke-{c}", 1, ["stoke", c, "--help"]) for c in commands] + [("stoke-cached", 8, ["stoke-cached", "--help"])]
    for name, section, argv in pages:
        text = subprocess.run([f"{bin_dir}/{argv[0]}", *argv[1:]], text=True, capture_output=True, check=True).stdout
        with open(f"{out_dir}/{name}.{section}", "w") as f:
            f.write(page(name, section, text))
    with open(f"{out_dir}/stoke.1", "w") as f:
        f.write('.TH STOKE 1\n.SH NAME\nstoke \\- mount JuiceFS volumes and read them through a cache group\n.SH SYNOPSIS\n.B stoke COMMAND '
                '[options] \\&...\n.SH SEE ALSO\n' + ",\n".join(f".BR {n} ({s})" for n, s, _ in pages) + "\n")


if __name__ == "__main__":
    main()
