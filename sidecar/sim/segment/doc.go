// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package segment simulates the discipline `segment`: Abacus (SC'21), which runs the models of one GPU at the same time and decides, operator by
// operator, what overlaps. Only the simulator has it: a Triton runs a model's graph as a whole.
//
// A [Query] is a batch of one model with a deadline, and is executed as a sequence of operators. A group is a list of [Slice]s, at most one of each
// model, that run at once and end together. A [Predictor] says how long a group takes. Two schedulers choose what runs next:
//
//   - [Controller] is Abacus's (sections 6.2 and 6.3): the query with the least headroom goes entirely into the group, and as many operators of others
//     as fit into its headroom, found by multi-way search; a query that cannot make its deadline even alone is dropped.
//   - [Sequential] runs one query after the other, in the order of arrival (FCFS), length (SJF) or deadline (EDF).
//
// Top-down: [World.Run] (run.go) is the GPU on virtual time, controller.go and sequential.go what it asks, search.go the multi-way search.
// The predictors are [Published], the MLP that the paper's authors trained, read from a directory (its weights have no licence and are not here),
// and [Occupancy], a few lines of arithmetic for tests and examples. README.md says what the paper leaves open and what was decided.
//
// Times are virtual; a run is a function of its arguments.
package segment
