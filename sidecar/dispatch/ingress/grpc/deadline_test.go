// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// slowPath answers only when the context of the call has ended.
type slowPath struct{ path }

func (p *slowPath) Begin(ctx context.Context, _ *wire.Turn, r *batch.Request, then func(*wire.Turn, *batch.Response, error)) {
	r.Free()
	context.AfterFunc(ctx, func() { then(nil, nil, status.FromContextError(ctx.Err()).Err()) })
}

// TestDeadlinesAreAnswered: a call whose deadline passes is answered with Triton's text, before the transport resets it. The client's own timer
// may fire first, which is no fault, but not always.
func TestDeadlinesAreAnswered(t *testing.T) {
	client := tritonpb.NewGRPCInferenceServiceClient(serve(t, &slowPath{}, &control{}))
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
		defer cancel()
		_, err := client.ModelInfer(ctx, &tritonpb.ModelInferRequest{ModelName: "m"})
		require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
		return status.Convert(err).Message() == "Deadline Exceeded"
	}, 20*time.Second, time.Millisecond)
}
