// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package evaluate says what would become of plans under given traffic: it is what a policy's Evaluate, control's judgement and
// `tritonctl policy try` ask. [Traffic] is the arrivals, recorded or generated, with a digest; [Evaluator] runs the simulator, and so the
// request path's own queue, once per plan. Outcomes are a function of snapshot, traffic and plan alone.
//
// [Child] does the same in a process of its own at the lowest priority ([Serve] is that process's end), so that the process that serves
// requests never evaluates.
package evaluate
