// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package record writes the arrivals of live traffic as a trace of sidecar/sim/workload: models, times, rows, bytes and deadlines, never a
// tensor. It is off, and costs the request path one atomic load, unless a recording runs.
package record
