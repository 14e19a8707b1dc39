// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
)

// both puts b, with a load, on both GPUs with these rates, and says why.
func both(s *policy.Snapshot, p *policy.Plan, first, second float64) {
	s.Models[0].MemoryBytes, s.Models[1].RowRate = 0, 100
	p.Partitions[0].Instances = append(p.Partitions[0].Instances, &policy.Instance{Model: "b", Rate: first})
	p.Partitions[1].Instances[0].Rate = second
	p.Reasons = []*policy.Reason{policy.Short("b", 40)}
}

// The oracle finds every kind of mistake that the suite is there to find.
func TestCheck(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(s *policy.Snapshot, p *policy.Plan)
		want   string
	}{
		{"good", func(*policy.Snapshot, *policy.Plan) {}, ""},
		{"revision", func(_ *policy.Snapshot, p *policy.Plan) { p.SnapshotRevision = 1 }, "answers snapshot 1"},
		{"id", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[1].Id = "gpu0" }, "used twice"},
		{"gpu", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[1].Gpus = []string{"gpu2"} }, "may not be used"},
		{"share", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[1].ThreadPercentage = 0 }, "a share of 0"},
		{"shares", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[1].Gpus = []string{"gpu0"} }, "add up to 200"},
		{"memory", func(s *policy.Snapshot, _ *policy.Plan) { s.Models[0].MemoryBytes = 101 }, "holds 101"},
		{"limit", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[1].MemoryLimitBytes = 9 }, "more than its limit"},
		{"model", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Partitions[0].Instances[0] = policy.ModelInstance("z", 0)
		}, "does not exist"},
		{"batch", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[0].Instances[0].MaxBatch = 5 }, "a batch of 5"},
		{"twice", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Partitions[0].Instances = append(p.Partitions[0].Instances, policy.ModelInstance("a", 1))
		}, "holds a twice"},
		{"ensemble", func(s *policy.Snapshot, _ *policy.Plan) { s.Models[0].DependsOn = []string{"b"} }, "without b"},
		{"no reason", func(_ *policy.Snapshot, p *policy.Plan) { p.Unplaced = nil }, "neither placed nor refused"},
		{"no text", func(_ *policy.Snapshot, p *policy.Plan) { p.Unplaced[0].Text = "" }, "c is refused"},
		{"wrong count", func(_ *policy.Snapshot, p *policy.Plan) { p.Unplaced[0].Tried = 1 }, "refused by 2 of 1"},
		{"not on", func(s *policy.Snapshot, _ *policy.Plan) {
			s.Constraints = []*policy.Constraint{{Model: "a", Gpus: []string{"gpu1"}}}
		}, "may not be on gpu0"},
		{"not that share", func(s *policy.Snapshot, _ *policy.Plan) {
			s.Constraints = []*policy.Constraint{{Model: "*", MaxThreadPercentage: 50}}
		}, "may not have 100%"},
		{"too few", func(s *policy.Snapshot, _ *policy.Plan) {
			s.Constraints = []*policy.Constraint{{Model: "a", MinInstances: 2}}
		}, "2 are wanted"},
		{"too many", func(s *policy.Snapshot, p *policy.Plan) {
			s.Constraints = []*policy.Constraint{{Model: "b", MaxInstances: 1}}
			p.Partitions[0].Instances = append(p.Partitions[0].Instances, policy.ModelInstance("b", 1))
			s.Models[0].MemoryBytes = 0
		}, "1 are allowed"},
		{"not alone", func(s *policy.Snapshot, p *policy.Plan) {
			s.Constraints = []*policy.Constraint{{Model: "b", Exclusive: true}}
			p.Partitions[1].Instances = append(p.Partitions[1].Instances, policy.ModelInstance("a", 1))
			s.Models[0].MemoryBytes = 0
		}, "wants gpu1 for itself"},
		{"merged", func(s *policy.Snapshot, p *policy.Plan) {
			s.Constraints = []*policy.Constraint{{Model: "b", NeverMerge: true}}
			p.Recipes = []*policy.Recipe{{Name: "g", Kind: policy.RecipeKind_RECIPE_KIND_MERGE, Members: []string{"b"}}}
			p.Partitions[1].Instances[0] = policy.ModelInstance("g", 0)
		}, "must not be merged"},
		{"moved", func(s *policy.Snapshot, _ *policy.Plan) {
			s.Constraints = []*policy.Constraint{{Model: "b", Pinned: true}}
		}, "pinned and moved to gpu1"},
		{"no rates", func(s *policy.Snapshot, p *policy.Plan) { both(s, p, 0, 0); p.Reasons = nil }, "add up to 0 of its 100 rows/s"},
		{"rates that add up", func(s *policy.Snapshot, p *policy.Plan) { both(s, p, 60, 40) }, ""},
		{"too much", func(s *policy.Snapshot, p *policy.Plan) { both(s, p, 100, 100) }, "are to serve 200 rows/s, and it has 100"},
		{"too little", func(s *policy.Snapshot, p *policy.Plan) { both(s, p, 60, 0); p.Reasons[0].Text = "on gpu0" }, "add up to 60 of its 100 rows/s"},
		{"too little with a reason", func(s *policy.Snapshot, p *policy.Plan) { both(s, p, 60, 0) }, ""},
		{"discipline", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Dispatch = []*policy.Dispatch{{Model: "z"}}
		}, "a discipline is about"},
		{"reason", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Reasons = []*policy.Reason{{Model: "z"}}
		}, "a reason is about"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &policy.Snapshot{
				Revision: 5,
				Nodes: []*policy.Node{{Name: "n", Gpus: []*policy.GPU{
					{Id: "gpu0", MemoryBytes: 100}, {Id: "gpu1", Index: 1, MemoryBytes: 100}, {Id: "gpu2", Index: 2, Unavailable: true},
				}}},
				Models: []*policy.Model{
					{Name: "a", MemoryBytes: 90, MaxBatchSize: 4}, {Name: "b", MemoryBytes: 20}, {Name: "c", MemoryBytes: 200},
				},
				Current: &policy.Plan{Partitions: []*policy.Partition{
					{Id: "gpu0", Node: "n", Gpus: []string{"gpu0"}, ThreadPercentage: 100, Instances: []*policy.Instance{policy.ModelInstance("b", 0)}},
				}},
			}
			p := &policy.Plan{
				SnapshotRevision: 5,
				Partitions: []*policy.Partition{
					{Id: "gpu0", Node: "n", Gpus: []string{"gpu0"}, ThreadPercentage: 100, Instances: []*policy.Instance{policy.ModelInstance("a", 4)}},
					{Id: "gpu1", Node: "n", Gpus: []string{"gpu1"}, ThreadPercentage: 100, Instances: []*policy.Instance{policy.ModelInstance("b", 0)}},
				},
				Unplaced: []*policy.Unplaced{{
					Model: "c", Tried: 2, Refusals: []*policy.Refusal{{Cause: policy.CauseMemory, Count: 2}}, Text: "0/2 partitions: 2 memory",
				}},
			}
			require.Empty(t, conformance.Check(s, p))
			test.change(s, p)
			found := conformance.Check(s, p)
			if test.want == "" {
				require.Empty(t, found)
				return
			}
			require.NotEmpty(t, found)
			require.Contains(t, found[0], test.want)
		})
	}
}
