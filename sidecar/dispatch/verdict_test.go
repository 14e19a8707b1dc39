// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Texts are those of Triton 2.51.
func TestErrorsAreCountedAsTritonDoes(t *testing.T) {
	for _, c := range []struct {
		code    codes.Code
		text    string
		backend string
		want    verdict
	}{
		{codes.Internal, "negative input", "python", succeeded},
		{codes.InvalidArgument, "the picture is empty", "python", succeeded},
		{codes.Internal, "Failed to process the request(s) for model 'error_0_0', message: RuntimeError: the whole execution fails", "python", failedBackend},
		{codes.Internal, "Stub process 'm_0_0' is not healthy.", "python", failedBackend},
		{codes.Internal, "onnx runtime error 2: no", "onnxruntime", failedBackend},
		{codes.InvalidArgument, "[request id: <id_unknown>] inference input 'INPUT0' data-type is 'INT32', but model 'identity' expects 'FP32'", "python", uncounted},
		{codes.InvalidArgument, "unexpected shape for input 'A' for model 'm'", "onnxruntime", uncounted},
		{codes.NotFound, "Request for unknown model: 'm' version 2 is not found", "python", uncounted},
		{codes.Unavailable, "Request for unknown model: 'm' version 1 is not at ready state", "python", uncounted},
		{codes.NotFound, "Unable to find shared memory region: 'zz'", "python", uncounted},
		{codes.Unavailable, "[request id: a] Exceeds maximum queue size", "python", uncounted},
		{codes.Unavailable, "Request timeout expired", "python", failedRejected},
		{codes.Unavailable, "partition gpu0 was lost: Socket closed", "python", failedOther},
		{codes.Canceled, "context canceled", "python", failedCanceled},
	} {
		require.Equal(t, c.want, verdictOf(&Outcome{Result: Failed}, status.Error(c.code, c.text), c.backend, true), c.text)
	}
	require.Equal(t, failedOther, verdictOf(&Outcome{Result: Failed}, errors.New("no partition is up"), "python", false))
	require.Equal(t, succeeded, verdictOf(&Outcome{Result: Late}, nil, "", true))
	require.Equal(t, failedRejected, verdictOf(&Outcome{Result: Dropped}, nil, "", false))
	require.Equal(t, failedCanceled, verdictOf(&Outcome{Result: Cancelled}, nil, "", false))
	require.Equal(t, failedRejected, verdictOf(&Outcome{Result: Refused, Reason: "queue_bytes"}, nil, "", false))
	require.Equal(t, uncounted, verdictOf(&Outcome{Result: Refused, Reason: "draining"}, nil, "", false))
	require.Equal(t, uncounted, verdictOf(&Outcome{Result: Refused, Reason: reasonLevel}, nil, "", false), "a request that Triton's own queue refuses is not counted")
}
