// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forward_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

// TestForeignErrors checks what Conch reads from error texts; foreign_live_test.go provokes them on a real server.
func TestForeignErrors(t *testing.T) {
	type reading struct{ Lost, Lacks, Unloaded, Refused, Failed, DeadStub bool }
	for text, c := range map[string]struct {
		code codes.Code
		want reading
	}{
		"Request for unknown model: 'm' is not found":                      {codes.NotFound, reading{Lacks: true, Unloaded: true, Refused: true}},
		"Request for unknown model: 'm' has no available versions":         {codes.NotFound, reading{Lacks: true, Unloaded: true, Refused: true}},
		"Request for unknown model: 'n' is not found":                      {codes.NotFound, reading{Lacks: true, Refused: true}},
		"Request for unknown model: 'm' version 7 is not found":            {codes.NotFound, reading{Lacks: true, Refused: true}},
		"Request for unknown model: 'm' version 1 is not at ready state":   {codes.Unavailable, reading{Lacks: true, Refused: true}},
		"[request id: a] expected 1 inputs but got 0 inputs for model 'm'": {codes.InvalidArgument, reading{Refused: true}},
		"Request timeout expired":                                          {codes.Unavailable, reading{}},
		"error reading from server: EOF":                                   {codes.Unavailable, reading{Lost: true}},
		"grpc: the client connection is closing":                           {codes.Canceled, reading{Lost: true}},
		"context canceled":                                                 {codes.Canceled, reading{}},
		"Stub process 'm_0_0' is not healthy.":                             {codes.Internal, reading{Failed: true, DeadStub: true}},
		"Failed to process the request(s) for model 'm_0_0', message: no":  {codes.Internal, reading{Failed: true}},
		"input is too dark, says the model":                                {codes.Internal, reading{}},
		"a model that speaks of a Stub process 'x' that is not healthy":    {codes.Internal, reading{}},
		"the model's own: Request for unknown model: 'm' is not found":     {codes.NotFound, reading{}},
	} {
		err := status.Error(c.code, text)
		for range 2 { // unwrapped, and wrapped
			require.Equal(t, c.want, reading{
				Lost: forward.Lost(err), Lacks: forward.LacksModel(err), Unloaded: forward.Unloaded(err, "m"), Refused: forward.Refused(err),
				Failed: forward.FailedExecution(forward.Status(err).Message()), DeadStub: forward.DeadStub(forward.Status(err).Message()),
			}, text)
			err = errors.Join(errors.New("while a test looks"), err)
		}
	}
	require.Equal(t, codes.DeadlineExceeded, forward.Status(context.DeadlineExceeded).Code())
	refuses, unknown := forward.DeniesMemory(status.Error(codes.NotFound, "Unable to find shared memory region: 'conch-1'"), "conch-1")
	require.True(t, refuses && unknown)
	refuses, unknown = forward.DeniesMemory(status.Error(codes.InvalidArgument, "shared memory is not for this output"), "conch-1")
	require.True(t, refuses && !unknown)
}
