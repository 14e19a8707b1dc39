// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

// What GPUAdvice.Action says.
const (
	AdviceAllocate = "allocate"
	AdviceRelease  = "release"
	AdviceHold     = "hold"
	// AdviceUnknown: too few requests were answered to judge by.
	AdviceUnknown = "unknown"
)

// GPUAdvice says whether the load of late wants more or fewer GPUs.
type GPUAdvice struct {
	Action string `json:"action"`
	// Number is how many GPUs to allocate or release.
	Number int    `json:"number"`
	Reason string `json:"reason"`
	// Release are the GPUs to give back: those without a partition, then the highest
	// ranks.
	Release []string `json:"release"`
	// BadRate is of the Requests of the last Seconds, IdleShare of the GPUs that serve.
	BadRate   float64 `json:"bad_rate"`
	IdleShare float64 `json:"idle_share"`
	Requests  uint64  `json:"requests"`
	Seconds   float64 `json:"seconds"`
	// GPUs are in the order in which requests are given to them.
	GPUs []GPUIdle `json:"gpus"`
}

// GPUIdle is one GPU over the last window.
type GPUIdle struct {
	ID string `json:"id"`
	// Rank is nil for a GPU without a partition.
	Rank      *int    `json:"rank"`
	IdleShare float64 `json:"idle_share"`
	// Release: it is among those to give back.
	Release bool `json:"release"`
}
