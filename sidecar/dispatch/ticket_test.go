// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// TestATimeoutEndsEveryWait: a request's own timeout ends its wait for a partition of its model, outside the queue.
func TestATimeoutEndsEveryWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d, seen := newDispatcher(t, dispatch.Options{Clock: clock.Timers(), OutageWait: 3 * time.Second}, table(1, func(m *router.Model) { m.Batchable = false }, &triton{address: "127.0.0.1:1"}))
		d.SetPartitionState("p127.0.0.1:1", false, "its server is to come")
		began := time.Now()
		err := infer(t.Context(), t, d, 1, 1, func(m *tritonpb.ModelInferRequest) {
			m.Parameters = map[string]*tritonpb.InferParameter{"sequence_id": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 7}},
				"timeout": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 50_000}}}
		})
		requireCode(t, codes.Unavailable, err)
		require.ErrorContains(t, err, "Request timeout expired")
		require.Equal(t, 50*time.Millisecond, time.Since(began))
		require.Equal(t, map[dispatch.Result]int{dispatch.Dropped: 1}, seen.count(t))
		require.Equal(t, "timeout", seen.outcomes[0].Reason)
	})
}

// TestWaitsDoNotAddUp: a request that has waited for its model's load waits for a partition of it only as long as the load could have taken.
func TestWaitsDoNotAddUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &triton{address: "127.0.0.1:1"}
		cold := table(1, func(m *router.Model) { m.OnDemand, m.Cold, m.Places, m.Batchable = true, true, nil, false }, p)
		d, seen := newDispatcher(t, dispatch.Options{Clock: clock.Timers(), LoadWait: 10 * time.Second}, cold)
		d.SetPartitionState("p127.0.0.1:1", false, "its server is to come")
		began := time.Now()
		time.AfterFunc(8*time.Second, func() {
			loaded := table(2, func(m *router.Model) { m.OnDemand, m.Batchable = true, false }, p)
			require.NoError(t, d.Swap(t.Context(), loaded))
		})
		err := infer(t.Context(), t, d, 1, 1, func(m *tritonpb.ModelInferRequest) {
			m.Parameters = map[string]*tritonpb.InferParameter{"sequence_id": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 7}}}
		})
		requireCode(t, codes.Unavailable, err)
		require.ErrorContains(t, err, "no partition that serves model 'm' is up")
		require.Equal(t, 10*time.Second, time.Since(began))
		require.Equal(t, map[dispatch.Result]int{dispatch.Failed: 1}, seen.count(t))
	})
}
