#!/bin/sh
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
set -e
if ! getent passwd conch >/dev/null; then
  useradd --system --user-group --no-create-home --home-dir /var/lib/conch --shell /usr/sbin/nologin conch
fi
# The devices of GPUs belong to these groups where a distribution has them.
for group in video render; do
  if getent group "$group" >/dev/null; then usermod --append --groups "$group" conch; fi
done
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  # An upgrade starts the new version; a first installation starts nothing: /etc/conch/conch.yaml comes first.
  systemctl try-restart conch.service
fi
