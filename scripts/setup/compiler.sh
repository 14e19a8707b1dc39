#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# A C compiler, which Go's race detector needs. Leaves "yes" or "no" in .cache/race.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
alone compiler

works() { echo 'int main(void) { return 0; }' | "${CC:-gcc}" -x c -o /dev/null - >/dev/null 2>&1; }

works || (packages gcc libc6-dev) || true
if works; then
  echo yes >"$cache/race"
else
  say "no C compiler: tests run without the race detector"
  echo no >"$cache/race"
fi
