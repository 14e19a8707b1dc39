// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/plan"
)

// margins are those that a configuration without any has.
func margins() plan.Margins { return plan.Margins{Loss: .1, Horizon: 300, Payoff: 1.2} }

func TestJudge(t *testing.T) {
	serves := func(goodput float64) *policy.Outcome { return &policy.Outcome{Goodput: goodput} }
	for _, test := range []struct {
		name      string
		change    func(s *policy.Snapshot, next *policy.Plan)
		now, then *policy.Outcome
		want      plan.Verdict
	}{
		{"more than it disturbs", func(_ *policy.Snapshot, next *policy.Plan) {
			next.Partitions[2].Instances = append(next.Partitions[2].Instances, policy.ModelInstance("b", 0))
		}, serves(100), serves(110), plan.VerdictApply},
		{"a little more every second", func(_ *policy.Snapshot, next *policy.Plan) {
			next.Partitions[2].Instances = append(next.Partitions[2].Instances, policy.ModelInstance("b", 0))
		}, serves(100), serves(100.01), plan.VerdictGain},
		{"routes only disturb nobody", func(_ *policy.Snapshot, next *policy.Plan) { next.Dispatch[0].Discipline = "eager" }, serves(100), serves(100), plan.VerdictApply},
		{"half of it", func(_ *policy.Snapshot, next *policy.Plan) { next.Dispatch[0].Discipline = "eager" }, serves(100), serves(50), plan.VerdictLoss},
		{"a little less", func(_ *policy.Snapshot, next *policy.Plan) { next.Dispatch[0].Discipline = "eager" }, serves(100), serves(95), plan.VerdictApply},
		{"a model's last place", func(_ *policy.Snapshot, next *policy.Plan) {
			next.Partitions[0].Instances = next.Partitions[0].Instances[1:]
		}, serves(100), serves(200), plan.VerdictConsent},
		{"the last place of a model that loads on demand", func(s *policy.Snapshot, next *policy.Plan) {
			s.Models[0].OnDemand = true
			next.Partitions[0].Instances = next.Partitions[0].Instances[1:]
			next.AppRoutes = nil
		}, serves(100), serves(200), plan.VerdictApply},
		{"a model without traffic", func(_ *policy.Snapshot, next *policy.Plan) { next.Partitions[2].Instances = nil }, serves(100), serves(100), plan.VerdictApply},
		{"an app without a route", func(s *policy.Snapshot, next *policy.Plan) {
			s.Apps[0].Rate = 3
			next.AppRoutes = nil
		}, serves(100), serves(200), plan.VerdictConsent},
		{"a GPU died, and less is all there is", func(s *policy.Snapshot, next *policy.Plan) {
			s.Nodes[0].Gpus[1].Unavailable = true
			next.Partitions = next.Partitions[:2]
		}, serves(60), serves(60), plan.VerdictApply},
		{"nobody evaluated", func(_ *policy.Snapshot, next *policy.Plan) { next.Dispatch[0].Discipline = "eager" }, nil, nil, plan.VerdictApply},
		{"cheaper, where that is wanted", func(s *policy.Snapshot, next *policy.Plan) {
			s.Objective = policy.Objective_OBJECTIVE_MIN_COST
			next.Partitions[0].Instances = append(next.Partitions[0].Instances, policy.ModelInstance("c", 0))
			next.Partitions = next.Partitions[:2]
		}, &policy.Outcome{Goodput: 100, CostPerHour: 2}, &policy.Outcome{Goodput: 100, CostPerHour: 1}, plan.VerdictApply},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, current := world(), answer()
			s.ChangeCost = &policy.ChangeCost{DefaultLoadSeconds: 2, PartitionStartSeconds: 4}
			next := proto.CloneOf(current)
			test.change(s, next)
			d := plan.Compute(current, next)
			j := plan.Judge(s, d, current, next, test.now, test.then, margins())
			require.Equal(t, test.want, j.Verdict, j.Text)
			require.NotEmpty(t, j.Text)
		})
	}
	require.Equal(t, plan.VerdictApply, plan.Judge(world(), plan.Compute(nil, answer()), nil, answer(), nil, nil, margins()).Verdict)
}

func TestLivingIsWhatCanStillServe(t *testing.T) {
	s, current := world(), answer()
	require.Len(t, plan.Living(s, current).GetPartitions(), 3)
	s.Nodes[0].Gpus[0].Unavailable = true
	s.Models = s.Models[1:]
	living := plan.Living(s, current)
	require.Len(t, living.GetPartitions(), 1)
	require.Equal(t, "p2", living.GetPartitions()[0].GetId())
	require.Equal(t, s.GetRevision(), living.GetSnapshotRevision())
	require.Empty(t, plan.Validate(s, living))
}
