// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
	"github.com/conch-serving/conch/plugins/static"
	"github.com/conch-serving/conch/sidecar/plan"
)

// world is a snapshot with everything in it that a plan may be wrong about.
func world() *policy.Snapshot {
	profile := func(model, gpuType string, us float64) *policy.Profile {
		return &policy.Profile{Model: model, GpuType: gpuType, Usable: true, Source: policy.ProfileSource_PROFILE_SOURCE_OBSERVED, Points: []*policy.ProfilePoint{
			{Batch: 1, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: us, ErrorBound: us / 10}, LatencyUpperUs: us * 1.2},
			{Batch: 8, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: 3 * us, ErrorBound: us / 5}, LatencyUpperUs: us * 3.6},
		}}
	}
	return &policy.Snapshot{
		Revision: 7,
		Nodes: []*policy.Node{{Name: "n", Gpus: []*policy.GPU{
			{Id: "gpu0", Type: "A100", MemoryBytes: 1000, SharesEnforced: true},
			{Id: "gpu1", Type: "T4", Index: 1, MemoryBytes: 500},
			{Id: "gpu2", Type: "T4", Index: 2, MemoryBytes: 500, Unavailable: true},
		}}},
		Models: []*policy.Model{
			{Name: "a", SloUs: 10_000, MaxBatchSize: 8, Rate: 100, Burstiness: 1, MemoryBytes: 200, ActivationBytesPerRow: 10, Late: policy.LatePolicy_LATE_POLICY_DROP},
			{Name: "b", SloUs: 50_000, MaxBatchSize: 16, Rate: 10, MemoryBytes: 100, Late: policy.LatePolicy_LATE_POLICY_SERVE},
			{Name: "c", MaxBatchSize: 0, MemoryBytes: 100, PassThroughReason: "sequence batching"},
			{Name: "e", DependsOn: []string{"b"}},
		},
		Profiles: []*policy.Profile{profile("a", "A100", 4000), profile("a", "T4", 9000), profile("b", "A100", 6000)},
		Apps:     []*policy.App{{Name: "app", Models: []string{"a", "b"}}},
		Current: &policy.Plan{Partitions: []*policy.Partition{
			{Id: "p0", Node: "n", Gpu: "gpu0", ThreadPercentage: 100, Instances: []*policy.Instance{policy.ModelInstance("b", 0)}},
		}},
		Statistics: &policy.DispatchStatistics{Models: []*policy.ModelStatistics{
			{Model: "a", Goodput: 97.5, BadRate: 0.025, LatencyP99Us: 9800, MeanBatch: 3.2},
		}},
	}
}

// answer is a good plan for world.
func answer() *policy.Plan {
	return &policy.Plan{
		SnapshotRevision: 7, Policy: "test", PolicyVersion: "1",
		Partitions: []*policy.Partition{
			{Id: "p0", Node: "n", Gpu: "gpu0", ThreadPercentage: 60, Instances: []*policy.Instance{
				policy.ModelInstance("a", 8), policy.ModelInstance("b", 4),
			}},
			{Id: "p1", Node: "n", Gpu: "gpu0", ThreadPercentage: 40, Rank: 1, MemoryLimitBytes: 300, Instances: []*policy.Instance{
				policy.ModelInstance("b", 0), policy.ModelInstance("e", 1),
			}},
			{Id: "p2", Node: "n", Gpu: "gpu1", ThreadPercentage: 100, Rank: 2, Instances: []*policy.Instance{policy.ModelInstance("c", 0)}},
		},
		Dispatch: []*policy.Dispatch{
			{Model: "a", Discipline: "deferred", DropPolicy: "prefix"},
			{Model: "b", Discipline: "timeout", Parameters: map[string]string{"max_queue_delay_us": "500"}},
		},
		Predictions: []*policy.Prediction{{Model: "a", Goodput: 99, LatencyP99Us: 9000, MeanBatch: 4, BadRate: 0.01}},
		Reasons: []*policy.Reason{
			{Model: "a", Text: "the fastest GPU"}, {Model: "a", Partition: "p0", Text: "60% is its knee"}, {Partition: "p0", Text: "half full"},
		},
		AppRoutes: []*policy.AppRoute{{App: "app", Models: []string{"a"}}},
	}
}

func codes(vs plan.Violations) (list []plan.Code) {
	for _, v := range vs {
		list = append(list, v.Code)
	}
	return list
}

func TestValidate(t *testing.T) {
	group := func(p *policy.Plan, g *policy.MergeGroup) {
		p.MergeGroups = append(p.MergeGroups, g)
		p.Partitions[0].Instances = []*policy.Instance{{What: &policy.Instance_MergeGroup{MergeGroup: g.Name}}}
		p.Dispatch = nil
	}
	constrain := func(s *policy.Snapshot, c *policy.Constraint) { s.Constraints = append(s.Constraints, c) }
	for _, test := range []struct {
		name   string
		change func(s *policy.Snapshot, p *policy.Plan)
		want   []plan.Code
	}{
		{"good", func(*policy.Snapshot, *policy.Plan) {}, nil},
		{"other revision", func(_ *policy.Snapshot, p *policy.Plan) { p.SnapshotRevision = 6 }, []plan.Code{plan.CodeRevision}},
		{"id twice", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Id = "p0" }, []plan.Code{plan.CodeName}},
		{"no id", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Id = "" }, []plan.Code{plan.CodeName}},
		{"id climbs out", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Id = "../../etc" }, []plan.Code{plan.CodeName}},
		{"id is a parent", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Id = ".." }, []plan.Code{plan.CodeName}},
		{"unknown GPU", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Gpu = "gpu9" }, []plan.Code{plan.CodeUnknown}},
		{"GPU of another node", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Node = "m" }, []plan.Code{plan.CodeUnknown}},
		{"dead GPU", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Gpu = "gpu2" }, []plan.Code{plan.CodeUnavailable}},
		{"share 0", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].ThreadPercentage = 0 }, []plan.Code{plan.CodeShare}},
		{"share 101", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].ThreadPercentage = 101 }, []plan.Code{plan.CodeShare, plan.CodeShare}},
		{"shares of one GPU", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[0].ThreadPercentage = 61 }, []plan.Code{plan.CodeShare}},
		{"instance share", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Instances[0].ThreadPercentage = 101 }, []plan.Code{plan.CodeShare}},
		{"memory of a partition", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[1].MemoryLimitBytes = 99 }, []plan.Code{plan.CodeMemory}},
		{"memory of a GPU", func(s *policy.Snapshot, _ *policy.Plan) { s.Nodes[0].Gpus[0].MemoryBytes = 479 }, []plan.Code{plan.CodeMemory}},
		{"memory of a GPU, just enough", func(s *policy.Snapshot, _ *policy.Plan) { s.Nodes[0].Gpus[0].MemoryBytes = 480 }, nil},
		{"unknown model", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Partitions[2].Instances = append(p.Partitions[2].Instances, policy.ModelInstance("z", 0))
		}, []plan.Code{plan.CodeUnknown}},
		{"empty instance", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Partitions[2].Instances = append(p.Partitions[2].Instances, &policy.Instance{})
		}, []plan.Code{plan.CodeUnknown}},
		{"model twice", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Partitions[2].Instances = append(p.Partitions[2].Instances, policy.ModelInstance("c", 1))
		}, []plan.Code{plan.CodeDuplicate}},
		{"batch too large", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[0].Instances[0].MaxBatch = 9 }, []plan.Code{plan.CodeMaxBatch}},
		{"batch of a model without batches", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Instances[0].MaxBatch = 2 }, []plan.Code{plan.CodeMaxBatch}},
		{"too slow there", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Partitions[2].Instances = append(p.Partitions[2].Instances, policy.ModelInstance("a", 1))
		}, []plan.Code{plan.CodeLatency}},
		{"too slow there, and everywhere", func(s *policy.Snapshot, p *policy.Plan) {
			s.Models[0].SloUs = 100
			p.Partitions[2].Instances = append(p.Partitions[2].Instances, policy.ModelInstance("a", 1))
		}, nil},
		{"too slow there, by a profile that is not usable", func(s *policy.Snapshot, p *policy.Plan) {
			s.Profiles[1].Usable = false
			p.Partitions[2].Instances = append(p.Partitions[2].Instances, policy.ModelInstance("a", 1))
		}, nil},
		{"too slow at its share", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[0].ThreadPercentage = 40 }, []plan.Code{plan.CodeLatency}},
		{"load without a place", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Partitions[0].Instances = p.Partitions[0].Instances[1:]
			p.AppRoutes = nil
		}, []plan.Code{plan.CodeUnplaced}},
		{"load without a place, with a reason", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Partitions[0].Instances = p.Partitions[0].Instances[1:]
			p.AppRoutes = nil
			p.Unplaced = []*policy.Unplaced{{Model: "a", Text: "0/1 partitions: 1 memory"}}
		}, nil},
		{"load without a place, with an empty reason", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Partitions[0].Instances = p.Partitions[0].Instances[1:]
			p.AppRoutes = nil
			p.Unplaced = []*policy.Unplaced{{Model: "a"}}
		}, []plan.Code{plan.CodeUnplaced}},
		{"no load needs no place", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Instances = nil }, nil},
		{"ensemble without its step", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Partitions[1].Instances = p.Partitions[1].Instances[1:]
		}, []plan.Code{plan.CodeDependency}},
		{"ensemble whose step is gone", func(s *policy.Snapshot, _ *policy.Plan) { s.Models[3].DependsOn = []string{"z"} }, []plan.Code{plan.CodeDependency}},
		{"discipline of the contract that is not run yet", func(_ *policy.Snapshot, p *policy.Plan) { p.Dispatch[0].Discipline = "segment" }, []plan.Code{plan.CodeDispatch}},
		{"unknown drop policy", func(_ *policy.Snapshot, p *policy.Plan) { p.Dispatch[0].DropPolicy = "all" }, []plan.Code{plan.CodeDispatch}},
		{"discipline of nobody", func(_ *policy.Snapshot, p *policy.Plan) { p.Dispatch[0].Model = "z" }, []plan.Code{plan.CodeUnknown}},
		{"two disciplines", func(_ *policy.Snapshot, p *policy.Plan) { p.Dispatch[0].Model = "b" }, []plan.Code{plan.CodeDuplicate}},
		{"reason about nothing", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Reasons = append(p.Reasons, &policy.Reason{Model: "z"}, &policy.Reason{Partition: "p9"})
		}, []plan.Code{plan.CodeUnknown, plan.CodeUnknown}},
		{"prediction about nothing", func(_ *policy.Snapshot, p *policy.Plan) { p.Predictions[0].Model = "z" }, []plan.Code{plan.CodeUnknown}},
		{"refusal of nothing", func(_ *policy.Snapshot, p *policy.Plan) { p.Unplaced = []*policy.Unplaced{{Model: "z", Text: "no"}} }, []plan.Code{plan.CodeUnknown}},
		{"route of an unknown app", func(_ *policy.Snapshot, p *policy.Plan) { p.AppRoutes[0].App = "z" }, []plan.Code{plan.CodeUnknown}},
		{"route to a model without a place", func(_ *policy.Snapshot, p *policy.Plan) { p.AppRoutes[0].Models = []string{"z"} }, []plan.Code{plan.CodeUnplaced}},

		{"only on other GPUs", func(s *policy.Snapshot, _ *policy.Plan) {
			constrain(s, &policy.Constraint{Model: "c", Gpus: []string{"gpu0"}})
		}, []plan.Code{plan.CodeConstraint}},
		{"share bounds", func(s *policy.Snapshot, _ *policy.Plan) {
			constrain(s, &policy.Constraint{Model: "*", MinThreadPercentage: 50})
		}, []plan.Code{plan.CodeConstraint, plan.CodeConstraint}},
		{"too many places", func(s *policy.Snapshot, _ *policy.Plan) {
			constrain(s, &policy.Constraint{Model: "b", MaxInstances: 1})
		}, []plan.Code{plan.CodeConstraint}},
		{"too few places", func(s *policy.Snapshot, _ *policy.Plan) {
			constrain(s, &policy.Constraint{Model: "a", MinInstances: 2})
		}, []plan.Code{plan.CodeConstraint}},
		{"too few places, with a reason", func(s *policy.Snapshot, p *policy.Plan) {
			constrain(s, &policy.Constraint{Model: "a", MinInstances: 2})
			p.Unplaced = []*policy.Unplaced{{Model: "a", Text: "1/3 partitions: 2 latency"}}
		}, nil},
		{"exclusive", func(s *policy.Snapshot, _ *policy.Plan) {
			constrain(s, &policy.Constraint{Model: "a", Exclusive: true})
		}, []plan.Code{plan.CodeConstraint}},
		{"exclusive with its caller only", func(s *policy.Snapshot, p *policy.Plan) {
			constrain(s, &policy.Constraint{Model: "b", Exclusive: true})
			p.Partitions[0].Instances = p.Partitions[0].Instances[:1]
		}, nil},
		{"pinned and moved", func(s *policy.Snapshot, p *policy.Plan) {
			constrain(s, &policy.Constraint{Model: "b", Pinned: true})
		}, []plan.Code{plan.CodeConstraint}},
		{"pinned and gone", func(s *policy.Snapshot, p *policy.Plan) {
			constrain(s, &policy.Constraint{Model: "b", Pinned: true})
			p.Partitions[0].Instances = p.Partitions[0].Instances[:1]
			p.Partitions[1].Instances = nil
			p.Unplaced = []*policy.Unplaced{{Model: "b", Text: "0/1 partitions: 1 memory"}}
			p.Dispatch = nil
		}, nil},
		{"pinned where the GPU died", func(s *policy.Snapshot, _ *policy.Plan) {
			constrain(s, &policy.Constraint{Model: "b", Pinned: true})
			s.Current.Partitions[0].Gpu = "gpu2"
		}, nil},

		{"merge group", func(_ *policy.Snapshot, p *policy.Plan) {
			group(p, &policy.MergeGroup{Name: "g", Mode: policy.MergeMode_MERGE_MODE_BACKBONE, Members: []string{"a", "b"}})
		}, nil},
		{"merge group that is not described", func(_ *policy.Snapshot, p *policy.Plan) {
			group(p, &policy.MergeGroup{Name: "g", Mode: policy.MergeMode_MERGE_MODE_BACKBONE, Members: []string{"a", "b"}})
			p.MergeGroups = nil
			p.AppRoutes = nil
		}, []plan.Code{plan.CodeUnknown, plan.CodeUnplaced}},
		{"merge group of one", func(_ *policy.Snapshot, p *policy.Plan) {
			group(p, &policy.MergeGroup{Name: "g", Mode: policy.MergeMode_MERGE_MODE_POOL, Members: []string{"a"}})
		}, []plan.Code{plan.CodeMerge}},
		{"merge group without a mode", func(_ *policy.Snapshot, p *policy.Plan) {
			group(p, &policy.MergeGroup{Name: "g", Members: []string{"a", "b"}})
		}, []plan.Code{plan.CodeMerge}},
		{"member that does not exist", func(_ *policy.Snapshot, p *policy.Plan) {
			group(p, &policy.MergeGroup{Name: "g", Mode: policy.MergeMode_MERGE_MODE_POOL, Members: []string{"a", "b", "z"}})
		}, []plan.Code{plan.CodeUnknown}},
		{"member of two groups", func(_ *policy.Snapshot, p *policy.Plan) {
			group(p, &policy.MergeGroup{Name: "g", Mode: policy.MergeMode_MERGE_MODE_POOL, Members: []string{"a", "b"}})
			p.MergeGroups = append(p.MergeGroups, &policy.MergeGroup{Name: "h", Mode: policy.MergeMode_MERGE_MODE_POOL, Members: []string{"a", "c"}})
		}, []plan.Code{plan.CodeMerge}},
		{"member that must not be merged", func(s *policy.Snapshot, p *policy.Plan) {
			constrain(s, &policy.Constraint{Model: "a", NeverMerge: true})
			group(p, &policy.MergeGroup{Name: "g", Mode: policy.MergeMode_MERGE_MODE_POOL, Members: []string{"a", "b"}})
		}, []plan.Code{plan.CodeConstraint}},
		{"group called like a model", func(_ *policy.Snapshot, p *policy.Plan) {
			group(p, &policy.MergeGroup{Name: "c", Mode: policy.MergeMode_MERGE_MODE_POOL, Members: []string{"a", "b"}})
		}, []plan.Code{plan.CodeName}},
		{"model beside its group", func(_ *policy.Snapshot, p *policy.Plan) {
			group(p, &policy.MergeGroup{Name: "g", Mode: policy.MergeMode_MERGE_MODE_POOL, Members: []string{"a", "b"}})
			p.Partitions[0].Instances = append(p.Partitions[0].Instances, policy.ModelInstance("a", 1))
		}, []plan.Code{plan.CodeDuplicate}},

		{"segments", func(_ *policy.Snapshot, p *policy.Plan) { segments(p, "s0", "s1") }, nil},
		{"segment without a place", func(_ *policy.Snapshot, p *policy.Plan) { segments(p, "s0") }, []plan.Code{plan.CodeSegment}},
		{"segment beside its model", func(_ *policy.Snapshot, p *policy.Plan) {
			segments(p, "s0", "s1")
			p.Partitions[2].Instances = append(p.Partitions[2].Instances, policy.ModelInstance("c", 0))
		}, []plan.Code{plan.CodeDuplicate}},
		{"segment missing", func(_ *policy.Snapshot, p *policy.Plan) {
			segments(p, "s0")
			p.Segments = p.Segments[:1]
		}, []plan.Code{plan.CodeSegment}},
		{"segments with one index", func(_ *policy.Snapshot, p *policy.Plan) {
			segments(p, "s0", "s1")
			p.Segments[1].Index = 0
		}, []plan.Code{plan.CodeSegment, plan.CodeSegment}},
		{"segments of different counts", func(_ *policy.Snapshot, p *policy.Plan) {
			segments(p, "s0", "s1")
			p.Segments[1].Count = 3
		}, []plan.Code{plan.CodeSegment}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, p := world(), answer()
			test.change(s, p)
			before := []proto.Message{proto.CloneOf(s), proto.CloneOf(p)}
			found := plan.Validate(s, p)
			require.Equal(t, test.want, codes(found), "%v", found)
			require.True(t, proto.Equal(before[0], s) && proto.Equal(before[1], p), "nothing is changed")
			for _, v := range found {
				require.NotEmpty(t, v.Text)
			}
		})
	}
}

// segments splits model c in two and places those that are named.
func segments(p *policy.Plan, placed ...string) {
	p.Segments = []*policy.Segment{
		{Name: "s0", Model: "c", Index: 0, Count: 2}, {Name: "s1", Model: "c", Index: 1, Count: 2},
	}
	p.Partitions[2].Instances = nil
	for _, name := range placed {
		p.Partitions[2].Instances = append(p.Partitions[2].Instances, &policy.Instance{What: &policy.Instance_Segment{Segment: name}})
	}
}

func TestDispatchChecks(t *testing.T) {
	p := answer()
	p.Dispatch[0].Discipline = "segment"
	found := plan.Validate(world(), p, func(d *policy.Dispatch) error {
		return fmt.Errorf("%s takes no parameters", d.GetDiscipline())
	})
	require.Equal(t, []plan.Code{plan.CodeDispatch, plan.CodeDispatch}, codes(found), "what is unknown is said once")
	require.Contains(t, found[0].Text, "is not one of")
	require.Equal(t, "timeout takes no parameters", found[1].Text)
}

func TestViolationsAreAnError(t *testing.T) {
	require.NoError(t, plan.Validate(world(), answer()).Err())
	p := answer()
	p.SnapshotRevision = 1
	err := plan.Validate(world(), p).Err()
	require.EqualError(t, err, "plan rejected: revision: answers snapshot 1, asked was 7")
	var found plan.Violations
	require.True(t, errors.As(err, &found))
	require.Len(t, found, 1)
}

// What static answers is valid, and whatever the conformance suite's oracle
// finds wrong with a spoilt plan Validate does too.
func TestValidateGeneratedPlans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := conformance.Snapshots().Draw(t, "snapshot")
		s.Parameters = map[string]string{"partitions": rapid.SampledFrom([]string{"", "* = 50, 50", "gpu0 = 20, 30, 50"}).Draw(t, "partitions")}
		p, err := static.New().Plan(t.Context(), s)
		require.NoError(t, err)
		require.Empty(t, plan.Validate(s, p), "snapshot: %v\nplan: %v", s, p)

		for range rapid.IntRange(1, 3).Draw(t, "mistakes") {
			spoil(t, s, p)
		}
		if wrong := conformance.Check(s, p); len(wrong) > 0 && !onlyIdle(s, p) {
			require.NotEmpty(t, plan.Validate(s, p), "the oracle says %v\nsnapshot: %v\nplan: %v", wrong, s, p)
		}
	})
}

// onlyIdle reports that some model without load has neither place nor reason:
// the suite wants a reason from a policy even then, Validate does not.
func onlyIdle(s *policy.Snapshot, p *policy.Plan) bool {
	for _, m := range s.Models {
		if m.Rate == 0 && len(p.PartitionsOf(m.Name)) == 0 {
			return true
		}
	}
	return false
}

// spoil makes one change that may or may not make the plan bad.
func spoil(t *rapid.T, s *policy.Snapshot, p *policy.Plan) {
	if len(p.Partitions) == 0 {
		p.SnapshotRevision++
		return
	}
	part := p.Partitions[rapid.IntRange(0, len(p.Partitions)-1).Draw(t, "spoilt")]
	switch rapid.IntRange(0, 8).Draw(t, "mistake") {
	case 0:
		part.ThreadPercentage = rapid.Uint32Range(0, 120).Draw(t, "share")
	case 1:
		part.Gpu = rapid.SampledFrom([]string{"gpu0", "gpu1", "gpu2", "gpu3", "gpu4"}).Draw(t, "gpu")
	case 2:
		part.Id = p.Partitions[0].Id
	case 3:
		if len(part.Instances) > 0 {
			part.Instances = part.Instances[1:]
		}
	case 4:
		if len(s.Models) > 0 {
			part.Instances = append(part.Instances, policy.ModelInstance(rapid.SampledFrom(s.Models).Draw(t, "more").Name, 1))
		}
	case 5:
		part.MemoryLimitBytes = 1 << 30
	case 6:
		if len(part.Instances) > 0 {
			part.Instances[0].MaxBatch += 5
		}
	case 7:
		p.Unplaced = nil
	case 8:
		p.Reasons = append(p.Reasons, &policy.Reason{Model: "nobody"})
	}
}
