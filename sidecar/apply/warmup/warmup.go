// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package warmup runs the first requests of a freshly loaded model: they make
// the backend allocate and compile what it puts off until then, and their times
// give the model a profile before its first client comes.
package warmup

import "time"

// Sample is one timed execution of a batch.
type Sample struct {
	Rows     int
	Duration time.Duration
}

// Result is what a warm-up found out.
type Result struct {
	// Samples are in the order of their execution, the first of every batch size
	// left out.
	Samples []Sample
	// Skipped says why the model was not warmed up, or not measured; empty where
	// it was.
	Skipped string
}
