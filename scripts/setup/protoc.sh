#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# Installs protoc and the plugins for Go into .cache/bin; with "python" only grpcio-tools, for the example policy.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
alone protoc
grpc_plugin=v1.6.2

say "installing protoc (grpcio-tools)"
venv "$cache/protoc" scripts/setup/protoc.txt || die "pip could not install the wheels of scripts/setup/protoc.txt"
[ "${1:-}" != python ] || exit 0
say "installing protoc-gen-go and protoc-gen-go-grpc"
quiet protoc-gen-go.log go build -o "$cache/bin/protoc-gen-go" google.golang.org/protobuf/cmd/protoc-gen-go ||
  die "protoc-gen-go (of the protobuf version in go.mod) does not build"
GOBIN=$cache/bin quiet protoc-gen-go-grpc.log go install "google.golang.org/grpc/cmd/protoc-gen-go-grpc@$grpc_plugin" ||
  die "protoc-gen-go-grpc $grpc_plugin does not install"
cat >"$cache/bin/protoc" <<PROTOC
#!/bin/sh
exec "$cache/protoc/bin/python" -m grpc_tools.protoc "\$@"
PROTOC
chmod +x "$cache/bin/protoc"
