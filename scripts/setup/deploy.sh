#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# Builds nfpm, which `make package` makes packages with, and actionlint, which checks .github/workflows, into .cache/bin.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
alone deploy
nfpm=v2.43.0 actionlint=v1.7.12

for tool in "github.com/goreleaser/nfpm/v2/cmd/nfpm@$nfpm" "github.com/rhysd/actionlint/cmd/actionlint@$actionlint"; do
  say "building ${tool##*/}"
  GOBIN=$cache/bin quiet deploy-tools.log go install "$tool" || die "$tool could not be built from the Go module proxy"
done
