#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# Installs hadolint, which deploy/docker/Dockerfile is held to, into .cache/bin.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
alone hadolint

say "installing hadolint"
venv "$cache/hadolint" scripts/setup/hadolint.txt || die "pip could not install the wheel of scripts/setup/hadolint.txt"
mkdir -p "$cache/bin"
ln -sf ../hadolint/bin/hadolint "$cache/bin/hadolint"
