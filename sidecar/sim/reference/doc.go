// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package reference answers how much goodput there is to be had: what one model
// on equal GPUs reaches when decisions may take as long as they like. A
// dispatch discipline that decides in microseconds is measured against it.
//
// There are two references, both a beam search over schedules (search.go):
//
//   - Clairvoyant knows every arrival in advance. No dispatcher can, so it is a
//     mark that cannot be reached; it is itself a little below the optimum,
//     which the beam may miss.
//   - Horizon knows what a dispatcher knows. Whenever a GPU is free it searches
//     over the queue and the arrivals that it expects, one per 1/rate, starts the
//     first batch of the best schedule if that is due, and searches again. It
//     plans for a single future, so it is no bound: a rule that leaves room for
//     chance may do better.
//
// Ahead is another system's way, for comparison: a controller that decides what a
// GPU runs before it is free, as Clockwork's does.
//
// Times are virtual, and there are no delays besides l(b). Everything is a
// function of its arguments.
package reference
