#!/bin/sh
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
if [ "$1" = purge ]; then
  rm -rf /var/lib/conch
  if getent passwd conch >/dev/null; then userdel conch; fi
fi
