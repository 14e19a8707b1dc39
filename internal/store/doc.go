// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package store keeps what has to outlive a process: the desired state, its history, orders, revisions of the repository, and what was learnt. A
// Store is a file of one machine (Bolt), or objects of a cluster (sidecar/apply/driver/kubernetes/configmaps); storetest holds both to the same behaviour.
package store
