#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# Installs Triton's official clients (tritonclient, perf_analyzer) into .cache/clients, and proves that both start.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
alone clients
root=$(cd "$cache" && pwd -P)/clients

# Nothing to do where nothing changed since, and the tree did not move.
if [ -e "$root/ready" ] && [ "$(cat "$root/ready")" = "$root" ] && [ -x "$root/perf_analyzer" ] &&
  [ -z "$(find scripts/setup/{lib.sh,clients.sh,clients.txt} -newer "$root/ready" -print -quit)" ]; then
  exit 0
fi
rm -f "$root/ready"
mkdir -p "$root"
hint="The end-to-end tests drive Conch with Triton's official clients (tritonclient 2.51.0)."

say "installing tritonclient 2.51.0 and perf_analyzer from the Python package index (65 MB, once)"
venv "$root/venv" scripts/setup/clients.txt || die "pip could not install the wheels of scripts/setup/clients.txt. $hint"
quiet clients.log "$root/venv/bin/python" -c 'import tritonclient.grpc.aio, tritonclient.http.aio, tritonclient.utils.shared_memory' ||
  die "tritonclient does not import. $hint"

# perf_analyzer is linked with two libraries that its wheel lacks. The server's wheel has them, under names of its own.
libs=$(ls -d "${root%/clients}"/triton/venv/lib/python3.*/site-packages/nvidia_pytriton.libs 2>/dev/null | head -1) || true
if [ -z "$libs" ]; then
  say "installing the libraries of perf_analyzer (55 MB, once)"
  grep '^nvidia-pytriton' scripts/setup/triton.txt >"$root/libs.txt"
  venv "$root/libs" "$root/libs.txt" || die "pip could not install nvidia-pytriton, which has the libraries of perf_analyzer. $hint"
  libs=$(ls -d "$root"/libs/lib/python3.*/site-packages/nvidia_pytriton.libs)
fi
mkdir -p "$root/lib"
link() {
  local from; from=$(ls "$libs"/$1 | head -1)
  ln -sfn "$from" "$root/lib/$2"
}
link 'libcudart-*.so.12*' libcudart.so.12
link 'libb64-*.so.0d' libb64.so.0d
{
  echo '#!/bin/sh'
  echo '# Written by scripts/setup/clients.sh.'
  echo "LD_LIBRARY_PATH=\"$root/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}\"; export LD_LIBRARY_PATH"
  echo "exec \"$root/venv/bin/perf_analyzer\" \"\$@\""
} >"$root/perf_analyzer"
chmod +x "$root/perf_analyzer"
quiet perf_analyzer.log "$root/perf_analyzer" --version || die "perf_analyzer does not start. $hint"
echo "$root" >"$root/ready"
