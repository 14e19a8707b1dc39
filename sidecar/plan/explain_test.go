// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/plan"
)

func TestExplainText(t *testing.T) {
	s := world()
	s.Constraints = []*policy.Constraint{{Model: "a", Gpus: []string{"gpu1", "gpu0"}, MaxInstances: 2}}
	refused := answer()
	refused.Partitions[0].Instances = refused.Partitions[0].Instances[1:]
	refused.Unplaced = []*policy.Unplaced{{Model: "a", Tried: 3, Refusals: []*policy.Refusal{{Cause: policy.CauseMemory, Count: 2}, {Cause: policy.CauseUnavailable, Count: 1}}}}
	merged := answer()
	merged.Recipes = []*policy.Recipe{{Name: "g", Members: []string{"a", "b"}}}
	merged.Partitions[0].Instances = []*policy.Instance{policy.ModelInstance("g", 4)}
	merged.Dispatch = []*policy.Dispatch{{Model: "g", Discipline: "eager"}}
	merged.Reasons = []*policy.Reason{{Model: "g", Text: "they share a backbone"}}
	s.Models = append(s.Models,
		&policy.Model{Name: "faces", DependsOn: []string{"b", "c"}},
		&policy.Model{Name: "street", SloUs: 100_000, Late: policy.LatePolicy_LATE_POLICY_DROP, Rate: 20, Burstiness: 1, DependsOn: []string{"a", "b", "c", "faces"}})
	s.Pipelines = []*policy.Pipeline{{Name: "faces", SloUs: 100_000}, {Name: "street", SloUs: 100_000, Rate: 20}}
	s.Statistics.WindowSeconds = 5
	s.Statistics.Pipelines = []*policy.PipelineStatistics{{Pipeline: "street", Requests: 100, LatencyUs: 52_000, Steps: []*policy.StepStatistics{
		{Model: "a", Rows: 1, QueueUs: 4000, ExecutionUs: 10_000, HandOverUs: 500, CriticalShare: 1},
		{Model: "faces", After: []uint32{0}, Rows: 3.25, QueueUs: 12_000, ExecutionUs: 15_000, HandOverUs: 1500, CriticalShare: .9, TakenBytes: 150_528},
		{Model: "b", After: []uint32{0}, Rows: 1, QueueUs: 1000, ExecutionUs: 6000, HandOverUs: 400, CriticalShare: .1, TakenBytes: 4096},
		{Model: "c", After: []uint32{1, 2}, Rows: 1, ExecutionUs: 7000, HandOverUs: 300, CriticalShare: 1, TakenBytes: 80},
	}}}
	for _, test := range []struct {
		golden, model string
		plan          *policy.Plan
	}{
		{"explain_placed.txt", "a", answer()},
		{"explain_twice.txt", "b", answer()},
		{"explain_passed_through.txt", "c", answer()},
		{"explain_refused.txt", "a", refused},
		{"explain_merged.txt", "a", merged},
		{"explain_no_plan.txt", "a", nil},
		{"explain_ensemble.txt", "street", answer()},
		{"explain_ensemble_idle.txt", "faces", answer()},
		{"explain_ensemble_whole.txt", "e", answer()},
	} {
		t.Run(test.golden, func(t *testing.T) {
			e, err := plan.Explain(s, test.plan, test.model)
			require.NoError(t, err)
			golden(t, test.golden, e.Text())
		})
	}
}

func TestExplain(t *testing.T) {
	_, err := plan.Explain(world(), answer(), "z")
	require.ErrorIs(t, err, plan.ErrUnknownModel)

	e, err := plan.Explain(world(), answer(), "a")
	require.NoError(t, err)
	require.Len(t, e.Placements, 1)
	at := e.Placements[0]
	require.Equal(t, "p0", at.Partition)
	require.Equal(t, "A100", at.GPUType)
	require.InDelta(t, 4000*100./60, at.Profile.OneUS, 1e-6, "the profile is read at the partition's share")
	require.Equal(t, "observed", at.Profile.Source)
	require.Equal(t, uint32(1), at.Profile.LargestInSLO)
	require.InDelta(t, 0.025, e.Measured.BadRate, 1e-9)
	require.InDelta(t, 0.01, e.Expected.BadRate, 1e-9)
	text, err := json.Marshal(e)
	require.NoError(t, err)
	require.Contains(t, string(text), `"largest_in_slo":1`)
}
