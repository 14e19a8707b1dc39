// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

// MeasureRequest times generated batches on the servers that conch is attached to.
type MeasureRequest struct {
	// Models to time; none means all that are served.
	Models []string `json:"models,omitempty"`
	// Share is the largest part of a server's time that the batches may take, above 0 and at most .5.
	Share float64 `json:"share"`
	// Repeats is how often each batch size is timed, from 1 to 100.
	Repeats int `json:"repeats"`
	// WithinSeconds is the longest that the order may take, up to an hour: what was timed until then is the answer. 0 sets no end.
	WithinSeconds float64 `json:"within_seconds,omitempty"`
}

// Measured is what was timed of one model on one server.
type Measured struct {
	Model     string `json:"model"`
	GPUType   string `json:"gpu_type"`
	Partition string `json:"partition"`
	// Batches are the generated ones, in order of rows: round trips, of the repeats the fastest quarter on average.
	Batches []MeasuredBatch `json:"batches,omitempty"`
	// Executions are all that the server executed of the model meanwhile, of generated and of clients' rows, by its own statistics: with the
	// time in which a batch waited for other models of the GPU, and without that in which a request waited for its batch.
	Executions []MeasuredBatch `json:"executions,omitempty"`
	// Skipped says why the model was not timed, or not with larger batches.
	Skipped string `json:"skipped,omitempty"`
}

// MeasuredBatch is one batch size.
type MeasuredBatch struct {
	Rows    int     `json:"rows"`
	Seconds float64 `json:"seconds"`
	Repeats int     `json:"repeats"`
}
