// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package warmup_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
)

// busy is a server whose batches of b rows take 10 ms and 1 ms a row; all but each third one wait for 30 ms besides.
type busy struct {
	tritonpb.GRPCInferenceServiceClient
	now        time.Time
	calls      int
	busy, idle time.Duration
	fail       error
}

func (b *busy) ModelInfer(_ context.Context, r *tritonpb.ModelInferRequest, _ ...grpc.CallOption) (*tritonpb.ModelInferResponse, error) {
	d := 10*time.Millisecond + time.Duration(r.GetInputs()[0].GetShape()[0])*time.Millisecond
	if b.calls++; b.calls%3 != 0 {
		d += 30 * time.Millisecond
	}
	b.now, b.busy = b.now.Add(d), b.busy+d
	return &tritonpb.ModelInferResponse{}, b.fail
}

func (b *busy) pace(share float64) warmup.Pace {
	return warmup.Pace{Share: share, Repeats: 8, Now: func() time.Time { return b.now }, Sleep: func(_ context.Context, d time.Duration) {
		b.now, b.idle = b.now.Add(d), b.idle+d
	}}
}

func fourRows(maxBatch int32) *tritonpb.ModelConfig {
	return &tritonpb.ModelConfig{Name: "m", MaxBatchSize: maxBatch, Input: []*tritonpb.ModelInput{{Name: "IN", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{4}}}}
}

// TestPaced: the batches take no more of the server's time than they may, and what they waited for is not theirs.
func TestPaced(t *testing.T) {
	b := &busy{}
	all, skipped, err := warmup.Paced(t.Context(), b, fourRows(6), b.pace(.1))
	require.NoError(t, err)
	require.Empty(t, skipped)
	const ms = time.Millisecond
	require.Equal(t, []warmup.Timed{{1, 11 * ms, 8}, {2, 12 * ms, 8}, {4, 14 * ms, 8}, {6, 16 * ms, 8}}, all)
	require.InDelta(t, .1, b.busy.Seconds()/(b.busy+b.idle).Seconds(), 1e-6)

	pace := b.pace(.5)
	pace.Enough = 11500 * time.Microsecond
	all, _, err = warmup.Paced(t.Context(), b, fourRows(64), pace)
	require.NoError(t, err)
	require.Len(t, all, 2, "one batch above what is enough, and no more")
}

func TestPacedStops(t *testing.T) {
	b := &busy{fail: errors.New("no zeros, please")}
	_, _, err := warmup.Paced(t.Context(), b, fourRows(4), b.pace(.1))
	require.ErrorContains(t, err, `time "m" with 1 rows of zeros: no zeros, please`)
	require.Equal(t, 1, b.calls)
	_, _, err = warmup.Paced(t.Context(), b, fourRows(4), b.pace(0))
	require.ErrorContains(t, err, "a share of 0")
	_, skipped, err := warmup.Paced(t.Context(), b, &tritonpb.ModelConfig{Name: "m"}, b.pace(.1))
	require.NoError(t, err)
	require.Equal(t, "the configuration describes no input", skipped)
	ctx, cancel := context.WithCancel(t.Context())
	pace := (&busy{}).pace(.1)
	pace.Sleep = func(context.Context, time.Duration) { cancel() }
	b.fail = nil
	_, _, err = warmup.Paced(ctx, b, fourRows(4), pace)
	require.ErrorIs(t, err, context.Canceled)
}
