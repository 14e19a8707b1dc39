#!/bin/sh
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
set -e
# "remove" is Debian's word, "0" RPM's; an upgrade goes on serving.
if [ "$1" = remove ] || [ "$1" = 0 ]; then
  if [ -d /run/systemd/system ]; then systemctl disable --now conch.service; fi
fi
