#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# promtool and prometheus, which `make deploy` tests rules and dashboard with. Debian's package is unpacked into .cache/prometheus, not installed: no
# service starts, and no root is needed. The release is pinned as far as apt allows: Debian removes a package once its security fix is out.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
alone prometheus

release=2.42.0
into=$cache/prometheus
[ -e "$into/ready" ] && exit 0

command -v apt-get >/dev/null || die "Prometheus is unpacked from Debian's package, and there is no apt-get here."
[ "$(id -u)" != 0 ] || quiet apt-update.log apt-get -q update || say "apt-get update failed; trying with the lists that are there"
rm -rf "$into"; mkdir -p "$into"; cd "$into"
version=$(apt-cache madison prometheus | awk -v r="$release" '{ split($3, v, /[+-]/); if (v[1] == r) { print $3; exit } }')
[ -n "$version" ] || say "prometheus $release is no longer there: taking the release that is"
quiet prometheus.log apt-get -q download "prometheus${version:+=$version}" || die "apt-get could not download prometheus"
dpkg-deb -x prometheus_*.deb unpacked
mv unpacked/usr/bin/prometheus unpacked/usr/bin/promtool .
rm -rf unpacked prometheus_*.deb
./promtool --version 2>&1 | head -n 1 | sed 's/^/   /' >&2
touch ready
