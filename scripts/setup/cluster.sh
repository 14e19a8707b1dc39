#!/usr/bin/env bash
# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
# The programs of the test cluster (e2e/cluster): Kubernetes, etcd, containerd and CNI plugins built from Go modules, runc from Debian. The first
# build takes over ten minutes on two cores, nearly all of it the API server; what has not changed is not built again.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
alone cluster

missing=()
command -v runc >/dev/null || missing+=(runc)
command -v ip >/dev/null || missing+=(iproute2)
command -v nsenter >/dev/null || missing+=(util-linux)
[ ${#missing[@]} = 0 ] || packages "${missing[@]}"

cd e2e/cluster
bin=$cache/cluster/bin
mkdir -p "$bin"
sum=$(cat go.mod go.sum $(find . -name '*.go' ! -name '*_test.go' | sort) | sha256sum)
[ "$(cat "$cache/cluster/ready" 2>/dev/null)" != "$sum" ] || exit 0

version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}
set=k8s.io/component-base/version
flags="-X $set.gitVersion=$version -X $set.gitMajor=1 -X $set.gitMinor=${minor%%.*} -X $set.gitTreeState=clean"
flags+=" -X $set.gitCommit=0000000000000000000000000000000000000000 -X $set.buildDate=1970-01-01T00:00:00Z"

# program NAME PACKAGE [FLAGS]
program() {
  say "building $1"
  CGO_ENABLED=0 quiet "cluster-$1.log" nice -n 5 go build -trimpath -buildvcs=false -ldflags "-s -w ${3:-}" -o "$bin/$1" "$2" || die "$1 does not build"
}
program etcd ./etcd
program kube ./kube "$flags"
program dra ./dra
program pause ./pause
program cluster ./up
for tool in containerd/containerd/v2/cmd/containerd containerd/containerd/v2/cmd/containerd-shim-runc-v2 containerd/containerd/v2/cmd/ctr \
  containernetworking/plugins/plugins/ipam/host-local containernetworking/plugins/plugins/main/loopback containernetworking/plugins/plugins/main/ptp; do
  program "${tool##*/}" "github.com/$tool"
done
ln -sf "$(command -v runc)" "$bin/runc"
echo "$sum" >"$cache/cluster/ready"
