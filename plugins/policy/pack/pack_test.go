// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
	"github.com/conch-serving/conch/plugins/policy/pack"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
)

// plain is the least that a policy on this package is: it has no opinion of its own.
type plain struct{}

func (plain) Describe(context.Context) (*policy.Description, error) {
	return &policy.Description{Name: "plain", Version: "1", Summary: "Every model gets one place."}, nil
}

func (plain) Plan(_ context.Context, s *policy.Snapshot, _ policy.Host) (*policy.Plan, error) {
	f := pack.New(s)
	f.Rest()
	plan := f.Plan("plain", "1", func(string) *policy.Dispatch { return &policy.Dispatch{Discipline: "adaptive"} })
	pack.Divide(f.Index, plan)
	return plan, nil
}

func TestAPolicyWithoutAnOpinionConforms(t *testing.T) {
	conformance.Run(t, conformance.Options{New: func(*testing.T) policy.Policy { return plain{} }})
}

// Whatever is put where Refuse allows it, the plan is good.
func TestWhatIsNotRefusedIsGood(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := conformance.Snapshots().Draw(t, "snapshot")
		f := pack.New(s)
		for range rapid.IntRange(0, 20).Draw(t, "moves") {
			if len(f.Hosts) == 0 || len(s.Models) == 0 {
				break
			}
			h := rapid.SampledFrom(f.Hosts).Draw(t, "host")
			model := rapid.SampledFrom(s.Models).Draw(t, "model").GetName()
			switch rapid.IntRange(0, 3).Draw(t, "move") {
			case 0:
				if share := rapid.Uint32Range(1, 100).Draw(t, "share"); f.RefuseNew(h, share, model, 1) == "" {
					f.Put(f.Open(h, share), model, 1, 0)
				}
			case 1:
				if len(h.Parts) > 0 {
					if p := rapid.SampledFrom(h.Parts).Draw(t, "part"); f.Refuse(p, model, 0) == "" {
						f.Put(p, model, 0, 0)
					}
				}
			case 2:
				if len(h.Parts) > 0 {
					if p := rapid.SampledFrom(h.Parts).Draw(t, "part"); !p.Pinned() {
						f.Close(p)
					}
				}
			case 3:
				untouched := f.Plan("x", "1", nil)
				c := f.Clone()
				c.Rest()
				require.True(t, proto.Equal(untouched, f.Plan("x", "1", nil)), "a clone's changes are its own")
			}
		}
		f.Rest()
		plan := f.Plan("x", "1", nil)
		pack.Divide(f.Index, plan)
		require.Empty(t, conformance.Check(s, plan))
	})
}

func TestPartitionsKeepTheirNames(t *testing.T) {
	s := &policy.Snapshot{
		Revision: 2,
		Nodes:    []*policy.Node{{Name: "n", Gpus: []*policy.GPU{{Id: "gpu0"}, {Id: "gpu1", Index: 1}}, Cpu: &policy.CPU{Type: "cpu", Cores: 2}}},
		Models:   []*policy.Model{{Name: "a"}, {Name: "b"}, {Name: "c"}},
		Current: &policy.Plan{Partitions: []*policy.Partition{
			{Id: "left", Node: "n", Gpus: []string{"gpu0"}, ThreadPercentage: 50, Instances: []*policy.Instance{policy.ModelInstance("a", 0)}},
			{Id: "right", Node: "n", Gpus: []string{"gpu0"}, ThreadPercentage: 50, Instances: []*policy.Instance{policy.ModelInstance("b", 0)}},
			{Id: "gpu1", Node: "n", Gpus: []string{"gpu1"}, ThreadPercentage: 80, Instances: []*policy.Instance{policy.ModelInstance("b", 0)}},
		}},
	}
	f := pack.New(s)
	f.Put(f.Open(f.Hosts[0], 50), "b", 0, 0)
	f.Put(f.Open(f.Hosts[0], 50), "a", 0, 0)
	f.Put(f.Open(f.Hosts[1], 100), "c", 0, 0)
	f.Put(f.Open(f.Hosts[2], 60), "c", 0, 0)
	var ids []string
	for _, p := range f.Plan("x", "1", nil).GetPartitions() {
		ids = append(ids, p.GetId())
	}
	require.Equal(t, []string{"right", "left", "gpu1.0", "n.cpu.0"}, ids, "same share and most models in common; gpu1 is another process")
}

func TestDerivedModels(t *testing.T) {
	r := &policy.Recipe{Name: "g", Kind: policy.RecipeKind_RECIPE_KIND_MERGE, Mode: policy.MergeMode_MERGE_MODE_BACKBONE, Members: []string{"a", "b"}}
	s := &policy.Snapshot{
		Revision: 1, Nodes: []*policy.Node{{Name: "n", Gpus: []*policy.GPU{{Id: "gpu0", MemoryBytes: 100}}}},
		Models:  []*policy.Model{{Name: "a", MemoryBytes: 40, MaxBatchSize: 8}, {Name: "b", MemoryBytes: 40, MaxBatchSize: 4}, {Name: "c", MemoryBytes: 30}},
		Derived: []*policy.DerivedModel{{Recipe: r, MemoryBytes: 50}},
	}
	f := pack.New(s)
	f.Want(r)
	require.Empty(t, f.RefuseNew(f.Hosts[0], 100, "g", 0))
	f.Put(f.Open(f.Hosts[0], 100), "g", 0, 7)
	f.Rest()
	p := f.Plan("x", "1", nil)
	require.Equal(t, uint32(4), p.GetPartitions()[0].GetInstances()[0].GetMaxBatch(), "the smallest of the members'")
	require.Len(t, p.GetUnplaced(), 1, "the members are served; until the merge exists they need 80 bytes, and c does not fit beside them")
	require.Equal(t, "0/1 partitions: 1 memory", p.GetUnplaced()[0].GetText())
	require.Empty(t, conformance.Check(s, p))
}

// TestTheRestIsNearWhatItExchangesTensorsWith: the node of the step before counts for more than free memory, where bytes were measured.
func TestTheRestIsNearWhatItExchangesTensorsWith(t *testing.T) {
	for bytes, want := range map[float64]string{0: "far", 1000: "n"} {
		b := packtest.World(2).Line("a", 1, 4, 200, 1).Line("b", 1, 4, 200, 1)
		b.Nodes = append([]*policy.Node{{Name: "far", Gpus: b.Nodes[0].Gpus[:1]}}, b.Nodes[0])
		b.Nodes[1].Gpus = b.Nodes[1].Gpus[1:]
		b.Pipelines = []*policy.Pipeline{{Name: "app", SloUs: 200_000, Rate: 1, Steps: []*policy.PipelineStep{
			{Model: "a"}, {Model: "b", After: []uint32{0}, TakenBytes: []float64{bytes}},
		}}}
		f := pack.New(b.Snapshot)
		for _, h := range f.Hosts {
			f.Open(h, 100)
		}
		i := slices.IndexFunc(f.Hosts, func(h *pack.Host) bool { return h.Node == "n" })
		f.Put(f.Hosts[i].Parts[0], "a", 0, 0) // the other GPU has more memory left
		f.Rest()
		require.Equal(t, want, f.Plan("p", "1", nil).PartitionsOf("b")[0].GetNode())
	}
}

// TestNoNodeHasAllPlacesOfAModel: a further place that the operator wants is on a node without one, in a partition that is there or on a GPU that is empty, unless what the model
// exchanges as a step of a pipeline says otherwise.
func TestNoNodeHasAllPlacesOfAModel(t *testing.T) {
	for name, c := range map[string]struct {
		open  bool
		bytes float64
		want  []string
	}{
		"empty GPUs":         {false, 0, []string{"m", "n"}},
		"partitions":         {true, 0, []string{"m", "n"}},
		"a step of pipeline": {false, 1000, []string{"m", "m"}},
	} {
		b := packtest.World(4).OnTwoNodes().Line("other", 1, 4, 200, 2).Line("a", 1, 4, 200, 1)
		b.Constraints = []*policy.Constraint{{Model: "a", MinInstances: 2}}
		b.Pipelines = []*policy.Pipeline{{Name: "app", SloUs: 200_000, Rate: 1, Steps: []*policy.PipelineStep{
			{Model: "other"}, {Model: "a", After: []uint32{0}, TakenBytes: []float64{c.bytes}},
		}}}
		f := pack.New(b.Snapshot)
		for _, h := range f.Hosts {
			if c.open {
				f.Open(h, 100)
			}
		}
		f.Rest()
		p := f.Plan("p", "1", nil)
		pack.Divide(f.Index, p)
		require.ElementsMatch(t, c.want, packtest.NodesOf(p, "a"), name)
		require.Empty(t, conformance.Check(b.Snapshot, p), name)
	}
}

// TestAnExclusiveStepIsBesideNoOtherStep: a step that is exclusive shares with its ensemble, and not with the ensemble's other steps.
func TestAnExclusiveStepIsBesideNoOtherStep(t *testing.T) {
	w := packtest.World(1).Line("whole", 1, 5, 100, 0).Line("alone", 1, 5, 100, 0).Line("other", 1, 5, 100, 0)
	w.Models[0].DependsOn = []string{"alone", "other"}
	w.Constraints = append(w.Constraints, &policy.Constraint{Model: "alone", Exclusive: true})
	f := pack.New(w.Snapshot)
	require.Equal(t, policy.CauseConstraint, f.RefuseNew(f.Hosts[0], 100, "whole", 0))
	f.Rest()
	require.Empty(t, conformance.Check(w.Snapshot, f.Plan("test", "1", nil)))
}
