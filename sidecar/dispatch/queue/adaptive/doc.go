// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package adaptive is Conch's own dispatch discipline: deferred batching that starts
// earlier by as much as that is worth, never takes the partitions that tighter models
// need, and gives up requests only for batches that the load asks for.
//
// It is four pure functions of a Load: StartAt says when a batch may start before a
// further row could no longer join it, Unblocked whether it would be in the way of
// others, MaxRows how many rows it has at most, and Hold what requests are given up
// for. Each is a few rules, each rule a helper, and all their constants are Params; a
// constant that is zero takes its rule away. README.md of the queue says what each
// rule brings.
package adaptive
