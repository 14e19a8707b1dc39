#!/bin/sh
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# rootfs.sh PROGRAMS ROOT: the root file system of the image, of static programs. The Dockerfile and `make image-rootfs` both run it, so that what is
# tested is what is shipped.
set -eu
programs=$1 root=$2
rm -rf "$root"
mkdir -p "$root/usr/bin" "$root/etc/conch" "$root/etc/ssl/certs" "$root/var/lib/conch" "$root/run/conch" "$root/tmp" "$root/proc" "$root/dev" "$root/sys" "$root/models"
for program in conch conch-policies tritonctl; do
  cp "$programs/$program" "$root/usr/bin/$program"
  chmod 0755 "$root/usr/bin/$program"
done
printf 'root:x:0:0:root:/root:/sbin/nologin\nconch:x:65532:65532:conch:/var/lib/conch:/sbin/nologin\n' >"$root/etc/passwd"
printf 'root:x:0:\nconch:x:65532:\n' >"$root/etc/group"
# The certificates of public authorities, for TLS to servers whose authority conch.yaml does not name.
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"; fi
chmod 1777 "$root/tmp"
chown -R 65532:65532 "$root/var/lib/conch" "$root/run/conch" 2>/dev/null || echo "rootfs.sh: not root: the directories of conch's user belong to you" >&2
