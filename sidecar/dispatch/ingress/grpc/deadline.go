// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ahead is by how much a call is answered before its deadline, and aheadShare
// the part of its time that this is at most.
const (
	ahead      = 3 * time.Millisecond
	aheadShare = 10
)

// exceeded answers a call whose deadline passes with DEADLINE_EXCEEDED in
// Triton's words. Grpc-go would reset it as cancelled, which clients of gRPC's
// C core, such as tritonclient, take for CANCELLED where their own timer is
// later than ours.
func exceeded(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx := stream.Context()
	deadline, ok := ctx.Deadline()
	if !ok {
		return next(srv, stream)
	}
	w, ok := grpc.ServerTransportStreamFromContext(ctx).(statusWriter)
	if !ok {
		return next(srv, stream)
	}
	left := time.Until(deadline)
	timer := time.AfterFunc(left-min(ahead, left/aheadShare), func() {
		_ = w.WriteStatus(status.New(codes.DeadlineExceeded, "Deadline Exceeded")) // fails if the call has ended
	})
	defer timer.Stop()
	return next(srv, stream)
}

// statusWriter ends a call whose handler goes on. The transport's stream has the
// method, its interface in the public package has not.
type statusWriter interface {
	WriteStatus(*status.Status) error
}
