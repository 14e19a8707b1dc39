#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# Installs the pinned tritonserver into .cache/triton, writes its launcher .cache/triton/tritonserver, generates the graphs of the
# end-to-end tests into .cache/triton/models, and proves all of it by serving them. With TRITONSERVER=/path in the environment it only
# makes the graphs, into .cache/own, and proves that this server serves them.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
alone triton
own=${TRITONSERVER:-}
root=$cache/${own:+own}
root=${root%/}; [ -n "$own" ] || root=$cache/triton
server=${own:-$root/tritonserver}

# Nothing to do where nothing changed since, and neither the tree nor the server moved.
if [ -e "$root/ready" ] && [ "$(cat "$root/ready")" = "$server" ] && [ -x "$server" ] &&
  [ -z "$(find scripts/setup/{lib.sh,triton.sh,triton.txt,check_triton.py} scripts/models e2e/models internal/pymodels -type f ! -path '*/__pycache__/*' -newer "$root/ready" -print -quit)" ]; then
  exit 0
fi
rm -f "$root/ready"
mkdir -p "$root"

hint="The end-to-end tests, 'make demo TRITON=real' and the live benchmark need a real tritonserver. With one of your own say
TRITONSERVER=/path/to/tritonserver: it needs the python backend, and the Python of that backend needs numpy<2 and onnxruntime."
[ -z "$own" ] || hint="It must have the python backend beside it (backends/python), and the Python of that backend numpy<2 and onnxruntime."

py=$(python)
minor=$("$py" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
want=()
"$py" -c 'import ensurepip, venv' 2>/dev/null || want+=(python3-venv)

if [ -z "$own" ]; then
  [ "$(uname -s)" = Linux ] || die "the pinned tritonserver is built for Linux only. $hint"
  glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/.* //')
  [ -n "$glibc" ] && [ "$(printf '2.35\n%s\n' "$glibc" | sort -V | head -1)" = 2.35 ] ||
    die "the pinned tritonserver needs glibc 2.35 or newer (Debian 12, Ubuntu 22.04); this is ${glibc:-another libc}. $hint"
  # The server's python stub is linked with libpython of the same minor version.
  so=libpython$minor.so.1.0
  libdir=$("$py" -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR") or "")')
  library_path=
  if ! PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -q "$so"; then
    if [ -e "$libdir/$so" ]; then library_path=$libdir; else want+=("libpython$minor"); fi
  fi
fi
[ ${#want[@]} = 0 ] || packages "${want[@]}"

if [ -z "$own" ]; then
  say "installing tritonserver 2.51.0 and ONNX Runtime from the Python package index (130 MB, once)"
  requirements=scripts/setup/triton.txt
else
  say "installing ONNX Runtime from the Python package index, to compare answers with"
  requirements=$root/requirements.txt
  grep -v '^nvidia-pytriton' scripts/setup/triton.txt >"$requirements"
fi
venv "$root/venv" "$requirements" || die "pip could not install the wheels of $requirements. $hint"

if [ -z "$own" ]; then
  home=$("$root/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/pytriton/tritonserver
  stub=$home/python_backend_stubs/$minor/triton_python_backend_stub
  [ -x "$home/bin/tritonserver" ] && [ -e "$stub" ] || die "the wheel holds no tritonserver with a stub for Python $minor. $hint"
  cp "$stub" "$home/backends/python/"
  {
    echo '#!/bin/sh'
    echo '# Written by scripts/setup/triton.sh. The python backend finds its interpreter, and through it numpy, on PATH.'
    echo "PATH=\"$root/venv/bin:\$PATH\"; export PATH"
    [ -z "$library_path" ] || echo "LD_LIBRARY_PATH=\"$library_path\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}\"; export LD_LIBRARY_PATH"
    echo '# exec: whoever starts this is the parent of the server itself, and signals reach it.'
    echo "exec \"$home/bin/tritonserver\" --backend-directory=\"$home/backends\" \"\$@\""
  } >"$server"
  chmod +x "$server"
fi

say "generating the graphs of the end-to-end tests"
quiet generate.log "$root/venv/bin/python" scripts/models/generate.py "$root/models" || die "scripts/models/generate.py failed"

say "starting it: an emulated model, a fragile one, a residual CNN, a transformer encoder"
quiet check.log "$root/venv/bin/python" scripts/setup/check_triton.py "$server" "$root/models" ||
  die "$server does not serve. $hint"
tail -1 "$cache/log/check.log" | sed 's/^/   /' >&2
echo "$server" >"$root/ready"
