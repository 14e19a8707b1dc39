#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# nginx and HAProxy, which `make bench BENCH=proxy` measures beside Conch. Debian's packages are unpacked into .cache/proxies, not installed: no
# service starts, and no root is needed. Releases are pinned as far as apt allows: Debian removes a package once its security fix is out.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
alone proxies

nginx=1.22.1 haproxy=2.6.12
into=$cache/proxies
[ -e "$into/ready" ] && exit 0

command -v apt-get >/dev/null || die "nginx and HAProxy are unpacked from Debian's packages, and there is no apt-get here. The benchmark runs without them too."
[ "$(id -u)" != 0 ] || quiet apt-update.log apt-get -q update || say "apt-get update failed; trying with the lists that are there"
rm -rf "$into"; mkdir -p "$into/packages"; cd "$into/packages"
wanted=("nginx=$nginx-*" "haproxy=$haproxy-*")
if ! apt-get -s install --no-install-recommends "${wanted[@]}" >/dev/null 2>&1; then
  say "nginx $nginx and haproxy $haproxy are no longer there: taking the releases that are"
  wanted=(nginx haproxy)
fi
# What would be installed is downloaded: the two and those of their libraries that are not here.
missing=$(apt-get -s install --no-install-recommends "${wanted[@]}" | sed -nE 's/^Inst ([^ ]+) (\[[^]]*\] )?\(([^ ]+) .*/\1=\3/p')
say "unpacking $(echo $missing)"
[ -z "$missing" ] || quiet proxies.log apt-get -q download $missing || die "apt-get could not download: $missing"
for p in *.deb; do [ -e "$p" ] && dpkg-deb -x "$p" "$into"; done
cd "$into"
rm -rf packages
for program in nginx haproxy; do
  if [ -e usr/sbin/$program ]; then path='$here'/usr/sbin/$program; else path=$(command -v $program) || die "there is no $program in Debian's packages"; fi
  cat >"$program" <<SCRIPT
#!/bin/sh
here=\$(dirname "\$(readlink -f "\$0")")
LD_LIBRARY_PATH=\$here/usr/lib/$(uname -m)-linux-gnu:\$LD_LIBRARY_PATH exec $path "\$@"
SCRIPT
  chmod +x "$program"
done
./nginx -v 2>&1 | sed 's/^/   /' >&2
./haproxy -v | head -n 1 | sed 's/^/   /' >&2
touch ready
