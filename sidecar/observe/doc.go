// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package observe listens to the request path and says what it saw: arrival
// rates and burstiness, latencies, goodput, how busy partitions are, and l(b)
// learnt per model, GPU type and share. It turns that into the snapshot that a
// policy plans from, into the profiles that the request path batches by, and
// into Prometheus metrics.
//
// Everything is fed from outside with the times of the request path; nothing
// here reads a clock.
package observe
