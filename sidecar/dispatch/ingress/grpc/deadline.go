// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc

import (
	"context"
	"errors"
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

// reserved is how much of the time that is left of a call is kept for its answer.
func reserved(left time.Duration) time.Duration { return min(ahead, max(0, left/aheadShare)) }

// errExceeded is Triton's answer to a call whose deadline has come.
var errExceeded = status.Error(codes.DeadlineExceeded, "Deadline Exceeded")

// exceeded reserves a part of a call's time for the answer. The handler gets a
// deadline that is earlier by that part, and this deadline alone decides. The
// client then receives DEADLINE_EXCEEDED before its own deadline. At that deadline
// grpc-go would reset the call as cancelled. Clients with gRPC's C core, such as
// tritonclient, report that as CANCELLED if their own timer is later than ours.
//
// The handler of a stream of answers may go on after that, because a server's stream is not cancelled while it sends answers. The transport ends such
// a call for the client.
func exceeded(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	theirs, ok := stream.Context().Deadline()
	if !ok {
		return next(srv, stream)
	}
	ctx, cancel := context.WithDeadline(stream.Context(), theirs.Add(-reserved(time.Until(theirs))))
	defer cancel()
	if w, ok := grpc.ServerTransportStreamFromContext(ctx).(statusWriter); ok && info.IsServerStream {
		defer context.AfterFunc(ctx, func() {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				_ = w.WriteStatus(status.Convert(errExceeded)) // fails if the call has ended
			}
		})()
	}
	return atDeadline(ctx, next(srv, sooner{stream, ctx}))
}

// atDeadline returns how a call ends whose handler has returned err: with errExceeded if the deadline has come, by the clock, because a timer may fire
// late.
func atDeadline(ctx context.Context, err error) error {
	deadline, ok := ctx.Deadline()
	if ok && !time.Now().Before(deadline) && (err == nil || status.Code(err) == codes.Canceled || status.Code(err) == codes.DeadlineExceeded) {
		return errExceeded
	}
	return err
}

// sooner is a call with a deadline before its client's.
type sooner struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s sooner) Context() context.Context { return s.ctx }

// statusWriter ends a call whose handler goes on. The transport's stream has the
// method; the public package's interface does not.
type statusWriter interface {
	WriteStatus(*status.Status) error
}
