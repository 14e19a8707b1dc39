#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# Builds helm, which the chart of deploy/helm is tested with, into .cache/bin.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
alone helm
version=v3.22.0

say "building helm $version (some minutes, once)"
GOBIN=$cache/bin quiet helm.log go install "helm.sh/helm/v3/cmd/helm@$version" || die "helm $version could not be built from the Go module proxy"
