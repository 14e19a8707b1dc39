// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// ErrLost means that the connection failed before the server answered.
var ErrLost = errors.New("connection to the partition was lost")

// Lost reports whether an error of Call, of a stream made by NewStream, or of a front that has passed a request to a server itself,
// means that the connection failed, so that the request may be tried elsewhere.
// Everything else is an answer.
func Lost(err error) bool {
	return errors.Is(err, ErrLost) || errors.Is(err, wire.ErrLost) || lostText(err)
}

// lostError keeps the status for callers that pass it on.
type lostError struct{ cause error }

func (e *lostError) Error() string { return fmt.Sprintf("%v: %v", ErrLost, e.cause) }

func (e *lostError) Unwrap() []error { return []error{ErrLost, e.cause} }

func (e *lostError) GRPCStatus() *status.Status { return status.Convert(e.cause) }

// classify wraps errors of a lost connection. Triton has UNAVAILABLE answers of
// its own ("Request timeout expired"); those come with metadata of the server,
// those that grpc-go makes up do not.
func classify(err error, metadata bool) error {
	if lostText(err) || (status.Code(err) == codes.Unavailable && !metadata) {
		return &lostError{err}
	}
	return err
}

// UnsentIsLost is an option of a connection on which Lost is true of unary calls that ended before their message was handed over. Grpc-go makes a call
// again by itself that a server has refused before it began, and returns io.EOF, which is no status, where that one ends so early.
func UnsentIsLost() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		err := invoke(ctx, method, request, reply, conn, options...)
		switch {
		case !errors.Is(err, io.EOF):
			return err
		case ctx.Err() != nil:
			return status.FromContextError(ctx.Err()).Err()
		}
		return &lostError{status.Error(codes.Unavailable, "the call ended before its message was sent")}
	})
}

// lostText recognises grpc-go's own errors by their beginnings: after headers
// have come there is no other way to tell them from answers.
func lostText(err error) bool {
	s := Status(err)
	if s.Code() == codes.Canceled {
		return s.Message() == "grpc: the client connection is closing"
	}
	if s.Code() != codes.Unavailable {
		return false
	}
	for _, beginning := range []string{
		"error reading from server", "connection error", "closing transport", "transport is closing",
		"the connection is draining", "last connection error", "keepalive ping failed", "Socket closed",
		"stream terminated by RST_STREAM", "the stream is rejected because server is draining",
	} {
		if strings.HasPrefix(s.Message(), beginning) {
			return true
		}
	}
	return false
}
