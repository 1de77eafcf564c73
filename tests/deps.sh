#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# deps.sh PACKAGE…: installs those that are missing; says nothing when there is nothing to do.
set -eu
missing=
for p; do
	dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || { echo "deps: no apt-get here; install these yourself:$missing" >&2; exit 1; }
echo "deps: installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null
# services that the packages start by themselves are not needed and would hold ports
for s in redis-server ceph.target; do systemctl stop $s 2>/dev/null || true; done
