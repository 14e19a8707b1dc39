// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

// Estimate is what a model's graph says of it on one GPU type, before it was executed.
type Estimate struct {
	GPUType string `json:"gpu_type"`
	// Reason says why there is no estimate; nothing below is set with it.
	Reason string `json:"reason,omitempty"`
	// RelativeBound is the relative error that nine of ten models stay below; Basis says on what it was found.
	RelativeBound float64 `json:"relative_error_bound,omitempty"`
	Basis         string  `json:"basis,omitempty"`
	// Memory at the largest batch, in bytes; GPUMemoryBytes is all that there is.
	ParameterBytes  float64 `json:"parameter_bytes,omitempty"`
	ActivationBytes float64 `json:"activation_bytes,omitempty"`
	WorkspaceBytes  float64 `json:"workspace_bytes,omitempty"`
	ArenaBytes      float64 `json:"arena_bytes,omitempty"`
	ContextBytes    float64 `json:"context_bytes,omitempty"`
	GPUMemoryBytes  float64 `json:"gpu_memory_bytes,omitempty"`
	Fits            bool    `json:"fits"`
	// Points are sorted by thread percentage, then by batch.
	Points   []EstimatePoint `json:"points,omitempty"`
	Warnings []string        `json:"warnings,omitempty"`
}

// EstimatePoint is one batch size at one share; requirements and utilisations are fractions of the GPU.
type EstimatePoint struct {
	Batch                int     `json:"batch"`
	ThreadPercentage     int     `json:"thread_percentage"`
	LatencySeconds       float64 `json:"latency_seconds"`
	ErrorBoundSeconds    float64 `json:"error_bound_seconds"`
	Creq                 float64 `json:"creq"`
	Mreq                 float64 `json:"mreq"`
	BandwidthUtilization float64 `json:"bandwidth_utilization"`
	L2Utilization        float64 `json:"l2_utilization"`
}
