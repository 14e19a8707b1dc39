// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
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
		Apps:     []*policy.App{{Name: "app", Variants: []*policy.Variant{{Model: "a", Accuracy: .8}, {Model: "b", Accuracy: .7}}}},
		Current: &policy.Plan{Partitions: []*policy.Partition{
			{Id: "p0", Node: "n", Gpus: []string{"gpu0"}, ThreadPercentage: 100, Instances: []*policy.Instance{policy.ModelInstance("b", 0)}},
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
			{Id: "p0", Node: "n", Gpus: []string{"gpu0"}, ThreadPercentage: 60, Instances: []*policy.Instance{
				policy.ModelInstance("a", 8), policy.ModelInstance("b", 4),
			}},
			{Id: "p1", Node: "n", Gpus: []string{"gpu0"}, ThreadPercentage: 40, Rank: 1, MemoryLimitBytes: 300, Instances: []*policy.Instance{
				policy.ModelInstance("b", 0), policy.ModelInstance("e", 1),
			}},
			{Id: "p2", Node: "n", Gpus: []string{"gpu1"}, ThreadPercentage: 100, Rank: 2, Instances: []*policy.Instance{policy.ModelInstance("c", 0)}},
		},
		Dispatch: []*policy.Dispatch{
			{Model: "a", Discipline: "deferred", DropPolicy: "prefix"},
			{Model: "b", Discipline: "timeout", Parameters: map[string]string{"max_queue_delay_us": "500"}},
		},
		Predictions: []*policy.Prediction{{Model: "a", Goodput: 99, LatencyP99Us: 9000, MeanBatch: 4, BadRate: 0.01}},
		Reasons: []*policy.Reason{
			{Model: "a", Text: "the fastest GPU"}, {Model: "a", Partition: "p0", Text: "60% is its knee"}, {Partition: "p0", Text: "half full"},
		},
		AppRoutes: []*policy.AppRoute{{App: "app", Variants: []*policy.WeightedVariant{{Model: "a", Weight: 1}}}},
	}
}

func codes(vs plan.Violations) (list []plan.Code) {
	for _, v := range vs {
		list = append(list, v.Code)
	}
	return list
}

func TestValidate(t *testing.T) {
	// merge offers a recipe, asks for it as it is offered, and puts it in p0.
	merge := func(s *policy.Snapshot, p *policy.Plan, r *policy.Recipe) *policy.DerivedModel {
		offer := &policy.DerivedModel{Recipe: r, MemoryBytes: 250}
		s.Derived = append(s.Derived, offer)
		p.Recipes = append(p.Recipes, proto.CloneOf(r))
		p.Partitions[0].Instances = []*policy.Instance{policy.ModelInstance(r.Name, 0)}
		p.Dispatch = nil
		return offer
	}
	backbone := func(members ...string) *policy.Recipe {
		return &policy.Recipe{Name: "g", Kind: policy.RecipeKind_RECIPE_KIND_MERGE, Mode: policy.MergeMode_MERGE_MODE_BACKBONE, Members: members}
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
		{"unknown GPU", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Gpus = []string{"gpu9"} }, []plan.Code{plan.CodeUnknown}},
		{"GPU of another node", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Node = "m" }, []plan.Code{plan.CodeUnknown}},
		{"dead GPU", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Gpus = []string{"gpu2"} }, []plan.Code{plan.CodeUnavailable}},
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
		{"discipline of simulations only", func(_ *policy.Snapshot, p *policy.Plan) { p.Dispatch[0].Discipline = "segment" }, []plan.Code{plan.CodeDispatch}},
		{"unknown drop policy", func(_ *policy.Snapshot, p *policy.Plan) { p.Dispatch[0].DropPolicy = "all" }, []plan.Code{plan.CodeDispatch}},
		{"discipline of nobody", func(_ *policy.Snapshot, p *policy.Plan) { p.Dispatch[0].Model = "z" }, []plan.Code{plan.CodeUnknown}},
		{"two disciplines", func(_ *policy.Snapshot, p *policy.Plan) { p.Dispatch[0].Model = "b" }, []plan.Code{plan.CodeDuplicate}},
		{"reason about nothing", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Reasons = append(p.Reasons, &policy.Reason{Model: "z"}, &policy.Reason{Partition: "p9"})
		}, []plan.Code{plan.CodeUnknown, plan.CodeUnknown}},
		{"prediction about nothing", func(_ *policy.Snapshot, p *policy.Plan) { p.Predictions[0].Model = "z" }, []plan.Code{plan.CodeUnknown}},
		{"refusal of nothing", func(_ *policy.Snapshot, p *policy.Plan) { p.Unplaced = []*policy.Unplaced{{Model: "z", Text: "no"}} }, []plan.Code{plan.CodeUnknown}},
		{"route of an unknown app", func(_ *policy.Snapshot, p *policy.Plan) { p.AppRoutes[0].App = "z" }, []plan.Code{plan.CodeUnknown}},
		{"route to a model without a place", func(_ *policy.Snapshot, p *policy.Plan) { p.AppRoutes[0].Variants[0].Model = "z" }, []plan.Code{plan.CodeUnknown}},
		{"route to a variant without a place", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Partitions[0].Instances = p.Partitions[0].Instances[1:]
			p.Unplaced = []*policy.Unplaced{{Model: "a", Text: "0/1 partitions: 1 memory"}}
		}, []plan.Code{plan.CodeUnplaced}},
		{"two routes of one app", func(_ *policy.Snapshot, p *policy.Plan) { p.AppRoutes = append(p.AppRoutes, p.AppRoutes[0]) }, []plan.Code{plan.CodeDuplicate}},
		{"weight below zero", func(_ *policy.Snapshot, p *policy.Plan) { p.AppRoutes[0].Variants[0].Weight = -1 }, []plan.Code{plan.CodeCapacity}},

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
			s.Current.Partitions[0].Gpus = []string{"gpu2"}
		}, nil},

		{"merge", func(s *policy.Snapshot, p *policy.Plan) { merge(s, p, backbone("a", "b")) }, nil},
		{"merge that is not on offer", func(s *policy.Snapshot, p *policy.Plan) {
			merge(s, p, backbone("a", "b"))
			s.Derived = nil
		}, []plan.Code{plan.CodeRecipe}},
		{"merge that was refused", func(s *policy.Snapshot, p *policy.Plan) {
			merge(s, p, backbone("a", "b")).Refusal = "they share nothing"
		}, []plan.Code{plan.CodeRecipe}},
		{"merge with other members than offered", func(s *policy.Snapshot, p *policy.Plan) {
			merge(s, p, backbone("a", "b"))
			p.Recipes[0].Members = []string{"a", "c"}
			p.Partitions[0].Instances = append(p.Partitions[0].Instances, policy.ModelInstance("b", 1))
		}, []plan.Code{plan.CodeRecipe}},
		{"merge that the plan places and does not want", func(s *policy.Snapshot, p *policy.Plan) {
			merge(s, p, backbone("a", "b"))
			p.Recipes = nil
			p.AppRoutes = nil
		}, []plan.Code{plan.CodeUnknown, plan.CodeUnplaced}},
		{"merge of one", func(s *policy.Snapshot, p *policy.Plan) { merge(s, p, backbone("a")) }, []plan.Code{plan.CodeRecipe}},
		{"superop, which cannot be served", func(s *policy.Snapshot, p *policy.Plan) {
			r := backbone("a", "b")
			r.Mode = policy.MergeMode_MERGE_MODE_SUPEROP
			merge(s, p, r)
		}, []plan.Code{plan.CodeUnsupported}},
		{"segment, which cannot be served", func(s *policy.Snapshot, p *policy.Plan) {
			merge(s, p, &policy.Recipe{Name: "a/0", Kind: policy.RecipeKind_RECIPE_KIND_SEGMENT, Members: []string{"a"}, SegmentCount: 2})
		}, []plan.Code{plan.CodeUnsupported}},
		{"member that does not exist", func(s *policy.Snapshot, p *policy.Plan) { merge(s, p, backbone("a", "b", "z")) }, []plan.Code{plan.CodeUnknown}},
		{"member of two", func(s *policy.Snapshot, p *policy.Plan) {
			merge(s, p, backbone("a", "b"))
			other := backbone("a", "c")
			other.Name = "h"
			s.Derived = append(s.Derived, &policy.DerivedModel{Recipe: other})
			p.Recipes = append(p.Recipes, other)
		}, []plan.Code{plan.CodeRecipe}},
		{"member that must not be merged", func(s *policy.Snapshot, p *policy.Plan) {
			constrain(s, &policy.Constraint{Model: "a", NeverMerge: true})
			merge(s, p, backbone("a", "b"))
		}, []plan.Code{plan.CodeConstraint}},
		{"model beside its merge", func(s *policy.Snapshot, p *policy.Plan) {
			merge(s, p, backbone("a", "b"))
			p.Partitions[0].Instances = append(p.Partitions[0].Instances, policy.ModelInstance("a", 1))
		}, []plan.Code{plan.CodeDuplicate}},

		{"partition on CPUs", func(s *policy.Snapshot, p *policy.Plan) {
			s.Nodes[0].Cpu = &policy.CPU{Type: "cpu", Cores: 8, MemoryBytes: 1000}
			p.Partitions[2].Gpus = nil
		}, nil},
		{"partition on CPUs that may run nothing", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Gpus = nil }, []plan.Code{plan.CodeUnknown}},
		{"more than the CPUs have", func(s *policy.Snapshot, p *policy.Plan) {
			s.Nodes[0].Cpu = &policy.CPU{Type: "cpu", Cores: 8, MemoryBytes: 99}
			p.Partitions[2].Gpus = nil
		}, []plan.Code{plan.CodeMemory}},
		{"partition on two GPUs", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Gpus = []string{"gpu0", "gpu1"} }, []plan.Code{plan.CodeUnsupported}},
		{"standby", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Instances[0].Role = policy.Role_ROLE_STANDBY }, []plan.Code{plan.CodeUnsupported}},
		{"one version", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Instances[0].Version = 3 }, []plan.Code{plan.CodeUnsupported}},
		{"slice of a round", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[2].Instances[0].SliceUs = 500 }, []plan.Code{plan.CodeUnsupported}},

		// At 60% of an A100 a row of a takes 6.7 ms, in any batch.
		{"rate that the profile allows", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[0].Instances[0].Rate = 149 }, nil},
		{"rate beyond the profile on a share of a server that runs two batches at once on all of it", func(s *policy.Snapshot, p *policy.Plan) {
			p.Partitions[0].Instances[0].Rate, s.Nodes[0].Gpus[0].Executions = 160, 2
		}, []plan.Code{plan.CodeCapacity}},
		{"rate beyond the profile", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[0].Instances[0].Rate = 160 }, []plan.Code{plan.CodeCapacity}},
		{"rates that are too much together", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Partitions[0].Instances[0].Rate = 100
			p.Partitions[0].Instances[1].Rate = 100
		}, []plan.Code{plan.CodeCapacity}},
		{"rate that is none", func(_ *policy.Snapshot, p *policy.Plan) { p.Partitions[0].Instances[0].Rate = math.NaN() }, []plan.Code{plan.CodeCapacity}},

		{"sub-clusters", func(_ *policy.Snapshot, p *policy.Plan) {
			p.SubClusters = []*policy.SubCluster{{Name: "one", Models: []string{"a", "b", "e"}, Partitions: []string{"p0", "p1"}}, {Name: "two", Models: []string{"c"}, Partitions: []string{"p2"}}}
		}, nil},
		{"model outside its sub-cluster", func(_ *policy.Snapshot, p *policy.Plan) {
			p.SubClusters = []*policy.SubCluster{{Name: "one", Models: []string{"a", "b", "e", "c"}, Partitions: []string{"p0", "p1"}}, {Name: "two", Partitions: []string{"p2"}}}
		}, []plan.Code{plan.CodeUnsupported}},
		{"partition in two sub-clusters", func(_ *policy.Snapshot, p *policy.Plan) {
			p.SubClusters = []*policy.SubCluster{{Name: "one", Models: []string{"a", "b", "e", "c"}, Partitions: []string{"p0", "p1", "p2", "p2"}}}
		}, []plan.Code{plan.CodeDuplicate}},

		{"a hundred thousand empty partitions", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Partitions = slices.Repeat([]*policy.Partition{{}}, 100_000)
		}, []plan.Code{plan.CodeExcess}},
		{"one partition with everything in it again and again", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Partitions[2].Instances = slices.Repeat(p.Partitions[2].Instances, 1000)
		}, []plan.Code{plan.CodeExcess}},
		{"a book for a reason", func(_ *policy.Snapshot, p *policy.Plan) {
			p.Reasons[0].Text = strings.Repeat("because ", 1000)
		}, []plan.Code{plan.CodeExcess}},
		{"too much state", func(_ *policy.Snapshot, p *policy.Plan) { p.PolicyState = make([]byte, policy.MaxStateBytes+1) }, []plan.Code{plan.CodeExcess}},
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

func TestDispatchChecks(t *testing.T) {
	p := answer()
	p.Dispatch[0].Discipline = "lazy"
	found := plan.Validate(world(), p, func(d *policy.Dispatch) error {
		return fmt.Errorf("%s takes no parameters", d.GetDiscipline())
	})
	require.Equal(t, []plan.Code{plan.CodeDispatch, plan.CodeDispatch}, codes(found), "what is unknown is said once")
	require.Contains(t, found[0].Text, "is not one of")
	require.Equal(t, "timeout takes no parameters", found[1].Text)
}

// TestSimulatedOnly: disciplines that the contract has for simulations are refused with the reason.
func TestSimulatedOnly(t *testing.T) {
	for discipline, why := range map[string]string{
		"segment": "Triton runs a model's graph as a whole, not groups of its operators", "flex": "Triton cannot abort an execution", "earliest-latest": "nothing disturbs",
	} {
		p := answer()
		p.Dispatch[0].Discipline = discipline
		found := plan.Validate(world(), p)
		require.Equal(t, []plan.Code{plan.CodeDispatch}, codes(found))
		require.Contains(t, found[0].Text, fmt.Sprintf("the discipline %q is for simulations only: ", discipline))
		require.Contains(t, found[0].Text, why)
		require.Contains(t, found[0].Text, "there are adaptive")
	}
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
		p, err := static.New().Plan(t.Context(), s, policy.NoEvaluation{})
		require.NoError(t, err)
		require.Empty(t, plan.Validate(s, p), "snapshot: %v\nplan: %v", s, p)

		for range rapid.IntRange(1, 3).Draw(t, "mistakes") {
			spoil(t, s, p)
		}
		// A plan may carry less than comes: the suite wants a policy to say so, Validate does not.
		wrong := slices.DeleteFunc(conformance.Check(s, p), func(w string) bool { return strings.Contains(w, "rows/s") })
		if len(wrong) > 0 && !onlyIdle(s, p) {
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
		part.Gpus = []string{rapid.SampledFrom([]string{"gpu0", "gpu1", "gpu2", "gpu3", "gpu4"}).Draw(t, "gpu")}
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
