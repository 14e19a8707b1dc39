#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# Debian's chromium, which the console is tested in. Debian has one version of it, the present one, so it cannot be pinned further.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
alone browser

[ -z "${CONCH_CHROMIUM:-}" ] || exit 0
if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null; then
  packages chromium fonts-dejavu-core
fi
