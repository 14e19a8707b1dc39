// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

// tensor asks a model of e2e/models with one row whose first element is given.
func tensor(model string, first float32) *tritonpb.ModelInferRequest {
	values := make([]float32, 16)
	values[0] = first
	return &tritonpb.ModelInferRequest{ModelName: model, Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{{
		Name: "INPUT", Datatype: "FP32", Shape: []int64{1, 16}, Contents: &tritonpb.InferTensorContents{Fp32Contents: values},
	}}}
}

func firstOutput(r *tritonpb.ModelInferResponse) float32 {
	if len(r.GetRawOutputContents()) == 0 {
		return 0
	}
	return floats(r.RawOutputContents[0])[0]
}

// One value of one caller makes the model raise for the whole batch, and some callers send what Triton refuses before it runs. Each of
// them alone is told so.
func TestBadTensorFailsItsCallerAlone(t *testing.T) {
	c := start(t, 1, nil, "fragile")
	triton := triton(t, c)
	bad := map[int]func() *tritonpb.ModelInferRequest{
		5: func() *tritonpb.ModelInferRequest { return tensor("fragile", -1) },
		11: func() *tritonpb.ModelInferRequest {
			r := tensor("fragile", 1)
			r.Inputs[0].Shape = []int64{1, 15}
			return r
		},
		17: func() *tritonpb.ModelInferRequest {
			r := tensor("fragile", 1)
			r.Inputs[0].Name = "NOBODY"
			return r
		},
		23: func() *tritonpb.ModelInferRequest { return tensor("fragile", -2) },
	}
	for round := range 6 {
		before, err := c.Usage(t.Context())
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				if request, spoilt := bad[i]; spoilt && round > 0 {
					_, err := triton.ModelInfer(t.Context(), request())
					assert.Error(t, err, "round %d, caller %d", round, i)
					if i == 5 || i == 23 {
						assert.ErrorContains(t, err, "negative input of a caller")
					} else {
						assert.Equal(t, codes.InvalidArgument, status.Code(err), err)
					}
					return
				}
				r, err := triton.ModelInfer(t.Context(), tensor("fragile", float32(i)))
				if assert.NoError(t, err, "round %d, caller %d", round, i) {
					assert.InDelta(t, 2*float32(i)+1, firstOutput(r), 0)
				}
			})
		}
		wg.Wait()
		if round == 0 {
			after, err := c.Usage(t.Context())
			require.NoError(t, err)
			require.Greater(t, after.Since(before).MeanBatch(), 2.0, "callers share executions")
		}
	}
}

func TestKilledServerIsBackAndNobodyNotices(t *testing.T) {
	c := start(t, 2, nil, "emulated")
	a := admin(t, c)
	all := partitions(t, a)
	require.Len(t, all, 2)
	victim := all[0].ID
	since := lastEvent(t, a)
	result := underLoad(t, c, 60, 8*time.Second, func() {
		old := serverOf(t, c, victim)
		kill(t, old)
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			for _, p := range partitions(t, a) {
				if p.ID == victim {
					assert.True(collect, p.Up, p.Reason)
					assert.Equal(collect, []string{"emulated"}, p.Models)
				}
			}
			assert.GreaterOrEqual(collect, len(eventKinds(t, a, since)), 2, "death and return are events")
		}, 15*time.Second, 50*time.Millisecond)
		require.NotEqual(t, old, serverOf(t, c, victim))
	})
	requireAllAnswered(t, result)
	events := strings.Join(eventKinds(t, a, since), "\n")
	require.Contains(t, events, victim)

	// The server that came back serves: with the other one gone, requests are still answered.
	for _, p := range partitions(t, a) {
		if p.ID != victim {
			kill(t, serverOf(t, c, p.ID))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	r, err := triton(t, c).ModelInfer(ctx, tensor("emulated", 3))
	require.NoError(t, err)
	require.InDelta(t, 7, firstOutput(r), 0)
}

// moodySettings makes the test binary the policy "moody" of conch.yaml.
func moodySettings(t *testing.T) map[string]any {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return map[string]any{"policy": map[string]any{
		"name": "moody", "executable": self, "deadline": "300ms", "parameters": map[string]any{"mood": "well"},
	}}
}

func TestFailingPolicyChangesNothingForTraffic(t *testing.T) {
	c := start(t, 1, moodySettings(t), "emulated")
	a := admin(t, c)
	before, err := a.Plan(t.Context())
	require.NoError(t, err)
	for _, mood := range []string{"hang", "exit", "nonsense"} {
		t.Run(mood, func(t *testing.T) {
			since := lastEvent(t, a)
			result := underLoad(t, c, 30, 4*time.Second, func() {
				_, useErr := a.UsePolicy(t.Context(), client.UsePolicyRequest{Name: "moody", Parameters: map[string]string{"mood": mood}, Author: "test"})
				diff, diffErr := a.Diff(t.Context())
				assert.True(t, useErr != nil || diffErr != nil || len(diff.Violations) > 0, "an operator who asks for a plan is told why there is none")
			})
			requireAllAnswered(t, result)
			now, err := a.Plan(t.Context())
			require.NoError(t, err)
			require.Equal(t, before.Revision, now.Revision, "the last good plan serves on")
			require.NotEmpty(t, eventKinds(t, a, since))
		})
	}
	_, err = a.UsePolicy(t.Context(), client.UsePolicyRequest{Name: "static", Author: "test"})
	require.NoError(t, err, "another policy can take over")
}

// The swap changes everything a plan can change: two partitions instead of one, another discipline.
func TestPolicySwapUnderLoadLosesNothing(t *testing.T) {
	c := start(t, 1, map[string]any{"policy": map[string]any{
		"name": "moody", "executable": moodySettings(t)["policy"].(map[string]any)["executable"], "parameters": map[string]any{"mood": "well"},
	}}, "emulated")
	a := admin(t, c)
	require.Len(t, partitions(t, a), 2, "moody plans in halves")
	for _, to := range []struct {
		policy     string
		partitions int
	}{{"static", 1}, {"moody", 2}} {
		result := underLoad(t, c, 25, 6*time.Second, func() {
			_, err := a.UsePolicy(t.Context(), client.UsePolicyRequest{Name: to.policy, Author: "test", Reason: "swap"})
			require.NoError(t, err)
			require.EventuallyWithT(t, func(collect *assert.CollectT) {
				all := partitions(t, a)
				assert.Len(collect, all, to.partitions)
				for _, p := range all {
					assert.True(collect, p.Up, p.Reason)
				}
				plan, err := a.Plan(t.Context())
				assert.NoError(collect, err)
				assert.Equal(collect, to.policy, plan.Policy)
			}, 15*time.Second, 50*time.Millisecond)
		})
		requireAllAnswered(t, result)
	}
}
