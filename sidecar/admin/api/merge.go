// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

// MergeVerifyRequest orders models of conch's repository to be merged and verified on a scratch server. What is made is not kept.
type MergeVerifyRequest struct {
	// Members are names of models, two or more.
	Members []string `json:"members"`
	// Bound is the largest difference relative to the largest element of an output, Open the size of dimensions that requests decide, Seed that
	// of the generated rows; 0 takes the defaults of tritonctl merge verify.
	Bound float64 `json:"bound,omitempty"`
	Open  int64   `json:"open,omitempty"`
	Seed  uint64  `json:"seed,omitempty"`
}

// MergeProgress is how far that is: a step, or Done of All batches.
type MergeProgress struct {
	Done int    `json:"done"`
	All  int    `json:"all"`
	What string `json:"what"`
}

// MergeVerified is a merge that answered as its members do.
type MergeVerified struct {
	Members []string `json:"members"`
	// Digest of recipe and members' content: a group that conch makes of them is the same one.
	Digest        string  `json:"digest"`
	Runner        string  `json:"runner"`
	Runs          int     `json:"runs"`
	MaxDifference float64 `json:"max_difference"`
	Bound         float64 `json:"bound"`
	SharedBytes   int64   `json:"shared_bytes"`
	MergedBytes   int64   `json:"merged_bytes"`
	SeparateBytes int64   `json:"separate_bytes"`
}
