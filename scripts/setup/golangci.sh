#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# Builds golangci-lint into .cache/bin. It is built by the Go that builds the project: one built by an older Go refuses newer code.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
alone golangci
version=v2.13.0

say "building golangci-lint $version (some minutes, once)"
GOBIN=$cache/bin quiet golangci.log go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version" ||
  die "golangci-lint $version could not be built from the Go module proxy"
