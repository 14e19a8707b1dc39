#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# Builds h2spec, a conformance test of HTTP/2, into .cache/bin.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
alone h2spec
version=v2.2.1+incompatible

say "building h2spec $version"
GOBIN=$cache/bin quiet h2spec.log go install "github.com/summerwind/h2spec/cmd/h2spec@$version" ||
  die "h2spec $version could not be built from the Go module proxy"
