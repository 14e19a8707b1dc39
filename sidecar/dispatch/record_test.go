// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// tape records while it is on.
type tape struct {
	on  atomic.Bool
	mu  sync.Mutex
	all []dispatch.Arrival
}

func (r *tape) Recording() bool { return r.on.Load() }
func (r *tape) Record(a dispatch.Arrival) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, a)
}

func TestARecorderHearsWhatATraceNeeds(t *testing.T) {
	p := newTriton(t)
	r := &tape{}
	d, seen := newDispatcher(t, dispatch.Options{Recorder: r}, table(1, func(m *router.Model) { m.SLO = 10 * time.Second }, p))
	send := func(ctx context.Context, rows int, timeoutUs int64) {
		answer, err := d.Infer(ctx, request(t, "1", rows, 1, func(m *tritonpb.ModelInferRequest) {
			if timeoutUs > 0 {
				m.Parameters = map[string]*tritonpb.InferParameter{"timeout": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: timeoutUs}}}
			}
		}))
		require.NoError(t, err)
		answer.Free()
	}
	send(t.Context(), 1, 0) // the recorder is off
	r.on.Store(true)
	before := time.Now()
	send(t.Context(), 2, 0)
	send(t.Context(), 1, 5_000_000)
	send(t.Context(), 1, 50_000_000) // later than the SLO
	hurried, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	send(hurried, 8, 0)
	r.on.Store(false)
	send(t.Context(), 1, 0)

	require.Equal(t, 6, seen.count(t)[dispatch.OK])
	require.Len(t, r.all, 4)
	for i, want := range []struct {
		rows     int
		bytes    int64
		deadline time.Duration
	}{{2, 32, 0}, {1, 16, 5 * time.Second}, {1, 16, 0}, {8, 128, 0}} {
		got := r.all[i]
		require.Equal(t, "m", got.Model)
		require.Equal(t, want.rows, got.Rows)
		require.Equal(t, want.bytes, got.Bytes)
		require.Equal(t, 10*time.Second, got.SLO)
		require.WithinRange(t, got.At, before, time.Now())
		if i < 3 {
			require.Equal(t, want.deadline, got.Deadline)
		}
	}
	require.Greater(t, r.all[3].Deadline, time.Duration(0))
	require.LessOrEqual(t, r.all[3].Deadline, 8*time.Second)
}
