// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package warmup_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
)

// busy is a server whose batches of b rows take 10 ms and 1 ms a row; all but each third one wait for 90 ms besides.
type busy struct {
	tritonpb.GRPCInferenceServiceClient
	now   time.Time
	calls int
	took  time.Duration // by the executions alone
	rows  []int64
	fail  error
}

func (b *busy) ModelInfer(_ context.Context, r *tritonpb.ModelInferRequest, _ ...grpc.CallOption) (*tritonpb.ModelInferResponse, error) {
	rows := r.GetInputs()[0].GetShape()[0]
	d := 10*time.Millisecond + time.Duration(rows)*time.Millisecond
	b.took, b.rows = b.took+d, append(b.rows, rows)
	if b.calls++; b.calls%3 != 0 {
		d += 90 * time.Millisecond
	}
	b.now = b.now.Add(d)
	return &tritonpb.ModelInferResponse{}, b.fail
}

func (b *busy) pace(share float64) warmup.Pace {
	return warmup.Pace{Share: share, Repeats: 8, Now: func() time.Time { return b.now }, Sleep: func(_ context.Context, d time.Duration) {
		b.now = b.now.Add(d)
	}}
}

func fourRows(maxBatch int32) *tritonpb.ModelConfig {
	return &tritonpb.ModelConfig{Name: "m", MaxBatchSize: maxBatch, Input: []*tritonpb.ModelInput{{Name: "IN", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{4}}}}
}

// TestPaced: the batches take no more of the server's time than they may, and what they waited for is not theirs: it makes the times no longer, nor, after the
// first batches, the pauses.
func TestPaced(t *testing.T) {
	b := &busy{}
	began := b.now
	all, skipped, err := warmup.Paced(t.Context(), b, fourRows(6), b.pace(.1))
	require.NoError(t, err)
	require.Empty(t, skipped)
	const ms = time.Millisecond
	require.Equal(t, []warmup.Timed{{1, 11 * ms, 8}, {2, 12 * ms, 8}, {4, 14 * ms, 8}, {6, 16 * ms, 8}}, all)
	require.Equal(t, []int64{1, 2, 4, 6, 1, 2}, b.rows[:6], "each size before any again")
	share := b.took.Seconds() / b.now.Sub(began).Seconds()
	require.LessOrEqual(t, share, .1)
	require.Greater(t, share, .03, "a pause for all that a batch waited would leave less than .02")

	pace := b.pace(.5)
	pace.Enough = 11500 * time.Microsecond
	all, _, err = warmup.Paced(t.Context(), b, fourRows(64), pace)
	require.NoError(t, err)
	require.Len(t, all, 2, "one batch above what is enough, and no more")
	pace.Enough = time.Millisecond
	all, _, err = warmup.Paced(t.Context(), b, fourRows(64), pace)
	require.NoError(t, err)
	require.Len(t, all, 2, "one size says nothing of the next")
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
	all, _, err := warmup.Paced(ctx, b, fourRows(4), pace)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, all, 1, "what was timed until then")
}

// TestModelsShareTheTime: eight models of a server that executes four batches at once are timed four at once. One that never ends has its part of the time, and
// what the others leave of theirs is for those that come after.
func TestModelsShareTheTime(t *testing.T) {
	for _, c := range []struct {
		name   string
		within time.Duration
		takes  [8]time.Duration
		want   time.Duration
		cut    []int
	}{
		{"all end", time.Minute, [8]time.Duration{5 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second}, 10 * time.Second, nil},
		{"no end", 0, [8]time.Duration{time.Hour, time.Hour, time.Hour, time.Hour, time.Hour, time.Hour, time.Hour, time.Hour}, 2 * time.Hour, nil},
		{"one hangs", time.Minute, [8]time.Duration{time.Hour, time.Second, time.Second, time.Second, time.Second, time.Second, time.Second, 40 * time.Second}, 42 * time.Second, []int{0}},
		{"none ends", time.Minute, [8]time.Duration{time.Hour, time.Hour, time.Hour, time.Hour, time.Hour, time.Hour, time.Hour, time.Hour}, time.Minute, []int{0, 1, 2, 3, 4, 5, 6, 7}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				began := time.Now()
				var mu sync.Mutex
				var cut []int
				now, most := 0, 0
				warmup.InTurns(t.Context(), len(c.takes), 4, c.within, func(ctx context.Context, model int) {
					mu.Lock()
					now++
					most = max(most, now)
					mu.Unlock()
					ended := true
					select {
					case <-time.After(c.takes[model]):
					case <-ctx.Done():
						ended = false
					}
					mu.Lock()
					defer mu.Unlock()
					now--
					if !ended {
						cut = append(cut, model)
					}
				})
				slices.Sort(cut)
				require.Equal(t, c.cut, cut)
				require.Equal(t, c.want, time.Since(began))
				require.Equal(t, 4, most)
			})
		})
	}
}
