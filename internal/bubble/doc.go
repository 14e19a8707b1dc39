// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package bubble runs tests in virtual time. It is testing/synctest on a single
// processor.
//
// A receive from a channel of a timer that is due runs the timer itself, on the
// goroutine that receives (runtime.maybeRunChan). With the race detector on, all
// timers of a synctest bubble run in the bubble's single context of the detector,
// which may not run on two threads at once: two goroutines that find a timer due at
// the same instant end the program with "ThreadSanitizer: CHECK failed" or a
// SIGSEGV (Go 1.26.8). On a single processor nothing runs at once. The detector loses
// nothing by it but interleavings: it reports accesses that no event orders,
// whether or not they met.
package bubble
