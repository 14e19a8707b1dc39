// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package component is what conch is put together from: a list of components, which are made in order, run together, and are ended in reverse
// order. A component uses what comes before it in the list; so it ends, with all that it has accepted, while that still works.
//
// The packages below are components, a package each, and what several of them share. To add one, write its package and give it a line in
// sidecar/wire.go.
package component
