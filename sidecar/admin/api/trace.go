// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

// Trailers of a recording.
const (
	TraceRequestsTrailer = "Conch-Trace-Requests"
	TraceLostTrailer     = "Conch-Trace-Lost"
)

// Recorded is the outcome of a recording.
type Recorded struct {
	// Requests are in the trace; Lost arrived too, faster than they could be
	// written.
	Requests uint64 `json:"requests"`
	Lost     uint64 `json:"lost"`
}
