// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster brings up a real Kubernetes on this machine for tests: etcd, API server, controller manager and scheduler in a network namespace
// of their own (the hub), and nodes with containerd, runc, a kubelet and a DRA driver of emulated GPUs, each in another. Pods have addresses of
// their own and reach those of other nodes; nothing of it reaches beyond this machine, and no image comes from anywhere else. It needs root.
//
// It is a module of its own, for what it depends on is no dependency of Conch's. `make cluster` builds and starts it.
package cluster
