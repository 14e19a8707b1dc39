// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package triton simulates Triton servers as they are without Conch: a queue per server and per model, Triton's dynamic batcher, and callers
// that send each request to the server with the fewest outstanding ones. It is what Conch is compared with.
//
// A model has one instance on each GPU of each server that serves it, and one queue for all of a server's. Of the instances that are idle the one that has
// waited longest takes a batch, as Triton's do, although other models use its GPU and another GPU is idle. Batches execute on a GPU one after the other, in the
// order in which their instances took them. The rate limiter is simulated with one resource per GPU (Server.Limited). Queue policies, priorities, and ragged and
// variable shapes are left out.
package triton
