// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package schedulability repeats gpulet's study (sections 3.2 and 5.2) with every policy: of all mixes in which each of nine models has 0, 100 or 200
// requests per second, except the empty one, which can four GPUs serve? A plan is judged by the predicate of plugins/policy/exact, which is the same for all, and
// the number of mixes that any plan could serve is counted beside them by exact search.
//
// gpulet's latencies are not published. Those here are Conch's own ([Table]); [Draw] makes others, to tune a policy on: a policy that is tuned on
// the table that judges it proves nothing.
package schedulability
