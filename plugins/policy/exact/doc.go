// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package exact says which loads can be scheduled at all: by a given plan ([World.Holds], [World.Carry]), and by any plan ([World.Schedulable],
// [World.Find]). Both are answered under one predicate that is the same for every policy, so that a policy can be held against the best there is.
//
// # The predicate
//
// A [Schedule] holds ([World.Check]) if
//
//   - every GPU is cut into partitions of the sizes in [Options.Sizes], by default gpulet's 20, 40, 50, 60, 80 and 100%, together at most 100%;
//   - the models of a partition take turns in a round of T microseconds (the duty cycle of Nexus and gpulet): each runs one batch of b rows, which
//     takes l(b, size) times the slowdown by the worst model on another partition of its GPU, and all batches together take at most T;
//   - a row may just miss its turn, waits a whole round and then runs: T + l(b, size) is at most the SLO;
//   - the rows that come in a round fit into the batch: rate x T is at most b;
//   - the rates of a model on all partitions together are at least what was asked for.
//
// Latency is the profile's upper quantile, the slowdown gpulet's linear model ([policy.Interference.Slowdown]) with the utilisation of a whole GPU times the size,
// the largest over batches. Memory, change and the arrivals' randomness are left out: [New] refuses a snapshot whose GPUs could not hold every
// model on each of their partitions.
//
// A plan holds if some schedule on its partitions does, each model only where the plan has it, that divides rates in whole units of [Options.Unit]
// rows per second. A partition whose share is none of the sizes counts as the largest size below it.
//
// # The search
//
// Schedulable looks at every schedule that divides rates in whole units: a superset of what every policy may do with partitions, sizes, replicas and
// turns. For given rates of a partition the least round is a least fixed point (a longer round needs larger batches, which make a longer round), so
// that no batch has to be guessed. What a partition carries is therefore counted through. It is closed downwards, and so is what a GPU carries: the
// sum of its partitions over all cuts and all ways to bound how much they disturb each other. Two GPUs carry the sums of two, kept as one bit per
// load, and four carry a load if it can be divided into two halves that two GPUs carry. No step is a heuristic. Size is what limits it: ten
// models, four equal GPUs, 15 units a model.
//
// A plan that divides rates in other ways could do better, and a plan may say that it does ([World.Keeps]). [World.Impossible] proves that no plan
// carries a load, however rates are divided: it counts every part of a unit as a whole one, which carries at least as much as any division.
package exact
