// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package configmaps is the store.Store of a release in a cluster. One ConfigMap, the head, has everything that is small, and names further ConfigMaps
// with parts of what is large: a write makes its parts first, and then replaces the head as a whole, or not at all.
//
// A Store follows what the conch that leads writes, and cannot write itself, until it is taken over. The head's resourceVersion is the fence. Who takes it over writes its own name into the head, so that whatever the one before still sends is
// refused by the API server as a conflict, however late it comes: a leader that was paused for longer than its lease, and does not know, writes nothing.
package configmaps
