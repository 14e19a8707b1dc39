#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# Measures the GPU of this machine with the kit of scripts/gpu/kit.sh: run.sh KIT RESULTS, in the repository. KIT has programs.tar.xz, triton.tar.xz, or both; RESULTS gets
# probe.txt (what the machine has), gpu.json (conch-bench gpu), e2e-gpu.txt (shares, memory limits and faults under MPS) and serve.txt (a model of PyTorch on
# tritonserver). No step ends the next ones.
set -uo pipefail
kit=${1:?run.sh KIT RESULTS} results=${2:?run.sh KIT RESULTS}
mkdir -p "$results"
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
{
  date
  nvidia-smi
  uname -r
  nproc
  command -v python3 nvidia-cuda-mps-control nvidia-cuda-mps-server
  python3 -c 'import sys, torch, numpy; print(sys.version, sys.base_prefix, torch.__version__, numpy.__version__)'
  ldconfig -p | grep -E 'libpython|libcuda|nvidia-ml'
} >"$results/probe.txt" 2>&1
cat "$results/probe.txt"
if [ -e "$kit/programs.tar.xz" ]; then
  mkdir "$here/programs"
  tar -C "$here/programs" -xJf "$kit/programs.tar.xz"
  timeout 260 "$here/programs/conch-bench" gpu --results "$results" >"$results/gpu.txt" 2>"$results/gpu.err"
  tail -3 "$results/gpu.err"
  grep -c '^figure' "$results/gpu.txt"
  export CUDA_MPS_PIPE_DIRECTORY=$here/mps CUDA_MPS_LOG_DIRECTORY=$here/mps
  mkdir "$here/mps"
  if nvidia-cuda-mps-control -d; then
    sleep 1
    (cd e2e/gpu && CONCH_GPU=1 timeout 100 "$here/programs/gpu.test" -test.v -test.timeout 95s) >"$results/e2e-gpu.txt" 2>&1
    grep -E '^(---|PASS|FAIL|ok)' "$results/e2e-gpu.txt"
    echo quit | nvidia-cuda-mps-control
  fi
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
fi
if [ -e "$kit/triton.tar.xz" ]; then
  mkdir "$here/triton" "$here/models"
  tar -C "$here/triton" -xJf "$kit/triton.tar.xz"
  [ ! -d "$kit/lib" ] || cp -r "$kit/lib" "$here/triton/"
  timeout 150 python3 scripts/gpu/serve.py "$here/triton/tritonserver" "$here/models" 2>&1 | tee "$results/serve.txt"
fi
