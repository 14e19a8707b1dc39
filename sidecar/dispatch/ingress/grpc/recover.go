// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// recovering answers a call whose handler panics with INTERNAL: a request must
// never end the process.
func recovering(log *slog.Logger) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
		defer func() {
			if fault := recover(); fault != nil {
				err = panicked(log, info.FullMethod, fault)
			}
		}()
		return next(srv, stream)
	}
}

// panicked logs a panic of a method's handler, and returns the answer to the call.
func panicked(log *slog.Logger, method string, fault any) error {
	log.Error("a gRPC call failed: this is a fault of Conch's", "method", method, "fault", fmt.Sprint(fault), "stack", string(debug.Stack()))
	return status.Errorf(codes.Internal, "internal error while handling %s", method)
}
