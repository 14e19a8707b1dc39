// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	nethttp "net/http"
	"time"

	"google.golang.org/grpc/peer"
)

// Why a request was Cancelled: the reasons of such an Outcome.
const (
	// GoneDeadline: the caller's own deadline passed.
	GoneDeadline = "deadline"
	// GoneCancel: the caller cancelled its call.
	GoneCancel = "cancel"
	// GoneDisconnect: the caller's connection ended. Over HTTP there is no other
	// way to cancel.
	GoneDisconnect = "disconnect"
)

// deadlineSlack is how much sooner than its deadline a caller may seem to cancel:
// a gRPC client's clock started earlier, and its cancel may arrive before ours.
// Clients with gRPC's C core send their deadline in three digits, rounded up:
// their own deadline may be earlier than ours, by up to 1/roundedUp of the whole
// time.
const (
	deadlineSlack = 10 * time.Millisecond
	roundedUp     = 100
)

// goneReason returns the Gone reason of a caller whose context has ended. Arrived
// is when its request arrived.
func goneReason(ctx context.Context, arrived, now time.Time) string {
	if deadline, ok := ctx.Deadline(); ok && deadline.Sub(now) < deadlineSlack+deadline.Sub(arrived)/roundedUp {
		return GoneDeadline
	}
	if ctx.Value(nethttp.ServerContextKey) != nil {
		return GoneDisconnect
	}
	if p, ok := peer.FromContext(ctx); ok {
		// The addresses of clients' connections implement this (ingress/gate, Conn).
		if c, ok := p.Addr.(interface{ Disconnected() bool }); ok && c.Disconnected() {
			return GoneDisconnect
		}
	}
	return GoneCancel
}
