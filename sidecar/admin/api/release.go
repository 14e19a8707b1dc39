// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

// ReleaseRequest gives attached servers back to their operator.
type ReleaseRequest struct {
	// DryRun says what would change.
	DryRun bool `json:"dry_run,omitempty"`
	// Undo takes the servers again, in the mode of conch.yaml.
	Undo   bool   `json:"undo,omitempty"`
	Author string `json:"author,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// ReleaseResult is what was, or would be, given back.
type ReleaseResult struct {
	DryRun bool `json:"dry_run,omitempty"`
	// Mode is the mode afterwards.
	Mode    string     `json:"mode"`
	Changes []Released `json:"changes"`
}

// Released is one model on one server.
type Released struct {
	Partition string `json:"partition"`
	Endpoint  string `json:"endpoint"`
	Model     string `json:"model"`
	Change    string `json:"change,omitempty"`
	// Error says why it was not given back.
	Error string `json:"error,omitempty"`
}
