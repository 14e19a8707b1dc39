#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# Packs what is measured on a machine that has an NVIDIA GPU, its driver and a python3 with PyTorch, but neither Go nor a network, into .cache/gpu-kit:
# programs.tar.xz (conch, its policies, the benchmark, the tests of e2e/gpu) and triton.tar.xz (the pinned tritonserver, with the stubs of all Pythons).
# Copy them and the repository there, and run scripts/gpu/run.sh.
set -euo pipefail
source "$(dirname "$0")/../setup/lib.sh"
kit=$cache/gpu-kit
work=$kit/work
rm -rf "$kit"
mkdir -p "$work/programs" "$work/triton/pytriton"
say "building the programs"
for p in conch=sidecar conch-policies=plugins conch-bench=bench; do
  go build -trimpath -ldflags='-s -w' -o "$work/programs/${p%=*}" "./${p#*=}"
done
go test -c -trimpath -ldflags='-s -w' -o "$work/programs/gpu.test" ./e2e/gpu
site=$("$cache/triton/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -r "$site/nvidia_pytriton.libs" "$work/triton/"
cp -r "$site/pytriton/tritonserver" "$work/triton/pytriton/"
cp scripts/gpu/tritonserver "$work/triton/"
say "packing, some minutes"
for part in programs triton; do
  tar -C "$work/$part" -c . | xz -T0 -6 >"$kit/$part.tar.xz"
done
rm -rf "$work"
ls -l "$kit"
