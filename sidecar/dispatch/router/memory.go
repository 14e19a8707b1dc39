// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/forward/shm"
)

// ErrSilent: a server does not answer, so that it is not known whether it shares memory with Conch.
var ErrSilent = errors.New("the server does not answer")

// CheckMemory reports why a server at an address of gRPC, which others have started, cannot have tensors through shared memory. The error is ErrSilent if it
// does not answer.
func CheckMemory(ctx context.Context, address string, o forward.Options) (err error) {
	if !shm.SameHost(address) {
		return fmt.Errorf("%s is not an address that only this host has (localhost, or unix:PATH)", address)
	}
	o.GRPC = true // these calls are grpc-go's in any case
	conn, err := forward.Dial(address, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	err = shm.Check(ctx, registrar{tritonpb.NewGRPCInferenceServiceClient(conn)})
	if code := status.Code(err); forward.Lost(err) || code == codes.DeadlineExceeded || code == codes.Unavailable {
		return fmt.Errorf("%w: %w", ErrSilent, err)
	}
	return err
}
