// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// Cordon keeps new things off a GPU.
type Cordon struct {
	// Drain: what is there goes elsewhere, too.
	Drain  bool      `json:"drain,omitempty"`
	Author string    `json:"author"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// CordonRequest cordons or drains a GPU, or ends that.
type CordonRequest struct {
	GPU string `json:"gpu"`
	// Drain has everything leave it; Undo gives it back. Neither: what is there stays,
	// and nothing new comes.
	Drain bool `json:"drain,omitempty"`
	Undo  bool `json:"undo,omitempty"`
	// DryRun says what would change.
	DryRun bool   `json:"dry_run,omitempty"`
	Author string `json:"author,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// CordonResult is the GPU afterwards, and what leaving it changes or changed.
type CordonResult struct {
	GPU  GPU   `json:"gpu"`
	Diff *Diff `json:"diff,omitempty"`
}

// RestartRequest starts a partition's server anew.
type RestartRequest struct {
	Partition string `json:"partition"`
	Author    string `json:"author,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

// ModelRequest loads or unloads a model.
type ModelRequest struct {
	Model string `json:"model"`
	// Unload takes it out of service, until it is loaded again. Dependents takes the
	// models with it that an ensemble calls and that were loaded only for its sake.
	Unload     bool   `json:"unload,omitempty"`
	Dependents bool   `json:"dependents,omitempty"`
	Author     string `json:"author,omitempty"`
	Reason     string `json:"reason,omitempty"`
}
