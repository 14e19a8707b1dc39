// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package policyhost runs the policy in use as a process of its own and asks it
// for plans. Nothing that the process does can reach further than the error of
// one call: it has a deadline and a bound on its answer, it is killed when it
// hangs, restarted with a growing delay when it dies, left alone for a while by
// a circuit breaker when it keeps failing, and swapped for another policy
// without a moment in which there is none. The last good plan is kept.
//
// The host knows nothing about what a good plan is: the caller passes a check.
package policyhost
