// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

import "encoding/json"

// CalibrateRequest orders a scratch partition to be measured in: micro-models, or one model.
type CalibrateRequest struct {
	// Model is the one whose grid is measured; empty: micro-models, for a bundle.
	Model string `json:"model,omitempty"`
	// GPUType may be empty where there is one type alone.
	GPUType string `json:"gpu_type,omitempty"`
	// Shares are thread percentages; none: 100, and 50 and 25 besides where shares are enforced.
	Shares []int `json:"shares,omitempty"`
	// Disturbance is the largest part of the time in which anything executes, above 0 and at most .5.
	Disturbance float64 `json:"disturbance"`
	// LimitSeconds is how long it may take; 0 for no limit.
	LimitSeconds float64 `json:"limit_seconds,omitempty"`
	// Python runs micro-models in the python backend, on the CPU.
	Python bool `json:"python,omitempty"`
}

// CalibrateProgress is how far an order is: Done of All measurements at all shares. All is 0 while it waits.
type CalibrateProgress struct {
	Share int    `json:"share"`
	Done  int    `json:"done"`
	All   int    `json:"all"`
	What  string `json:"what"`
}

// Calibrated is what an order found out.
type Calibrated struct {
	GPUType string `json:"gpu_type"`
	// Server, Measurements and the quantiles of the relative error on micro-models that were left out are of an order for micro-models, and so is Bundle,
	// which tritonctl estimate --bundle reads.
	Server       string          `json:"server,omitempty"`
	Measurements int             `json:"measurements,omitempty"`
	Median       float64         `json:"left_out_median,omitempty"`
	P90          float64         `json:"left_out_p90,omitempty"`
	Bundle       json.RawMessage `json:"bundle,omitempty"`
	// Shares are those of one model.
	Shares []CalibratedShare `json:"shares,omitempty"`
}

// CalibratedShare is what batches took at one thread percentage.
type CalibratedShare struct {
	ThreadPercentage int             `json:"thread_percentage"`
	Batches          []MeasuredBatch `json:"batches"`
}
