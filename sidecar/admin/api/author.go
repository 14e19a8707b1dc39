// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

// Order is a request that an author is kept of.
type Order interface {
	// By is where the author is. What a caller writes there is a claim: the server puts
	// the user that it knows to be at the other end in its place.
	By() *string
}

// By implements Order.
func (r *ApplyRequest) By() *string { return &r.Author }

// By implements Order.
func (r *PinRequest) By() *string { return &r.Author }

// By implements Order.
func (r *UsePolicyRequest) By() *string { return &r.Author }

// By implements Order.
func (r *ImportRequest) By() *string { return &r.Author }

// By implements Order.
func (r *RollbackRequest) By() *string { return &r.Author }

// By implements Order.
func (r *ReleaseRequest) By() *string { return &r.Author }

// By implements Order.
func (r *CordonRequest) By() *string { return &r.Author }

// By implements Order.
func (r *RestartRequest) By() *string { return &r.Author }

// By implements Order.
func (r *ModelRequest) By() *string { return &r.Author }

// By implements Order.
func (r *CollectRequest) By() *string { return &r.Author }

// By implements Order.
func (r *VerifyRequest) By() *string { return &r.Author }
