// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package plan judges and compares plans. It holds the middle of the plan way,
// between the policy that answered and the steps that apply the answer:
//
//   - [Validate] says what is wrong with a plan, for a policy is not trusted;
//   - [Judge] says whether a valid plan is worth what it disturbs, or waits for an
//     operator;
//   - [Compute] says what differs between two plans, in the order in which it
//     must be done so that nothing stops serving before its successor serves;
//   - [Explain] says why one model is where it is.
//
// Everything here is a pure function of its arguments: no clock, no network, no
// state.
package plan
