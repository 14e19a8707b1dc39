// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package adaptive is Conch's own dispatch discipline: deferred batching that starts
// earlier by as much as that is worth, never takes the executors that tighter models
// need, and gives up requests only for batches that the load asks for.
//
// It is four pure functions of a Load: StartAt is when a batch may start although a
// further row could still join it, Unblocked from when on it blocks no other model,
// MaxRows how many rows it has at most, and Hold for which batch requests are given
// up. Each consists of a few rules, each rule is a helper, and all their constants
// are Params; a constant of zero turns its rule off. README.md of the queue has the
// gain of each rule.
package adaptive
