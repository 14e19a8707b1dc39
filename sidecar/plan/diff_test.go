// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/plan"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// next is a plan that differs from answer in every way there is.
func next() *policy.Plan {
	p := answer()
	p.SnapshotRevision = 8
	// p0 grows: same id, other process.
	p.Partitions[0].ThreadPercentage = 100
	p.Partitions[0].MemoryLimitBytes = 3 << 29
	// p1 goes, p2 stays with other instances, p3 is new.
	p.Partitions[1] = &policy.Partition{Id: "p3", Node: "n", Gpus: []string{"gpu1"}, ThreadPercentage: 20, Rank: 3, Instances: []*policy.Instance{
		{Model: "g", ThreadPercentage: 10, Rate: 12.5},
	}}
	p.Partitions[2].Rank = 1
	p.Partitions[2].Instances = []*policy.Instance{policy.ModelInstance("c", 1), policy.ModelInstance("e", 0)}
	p.Recipes = []*policy.Recipe{{Name: "g", Kind: policy.RecipeKind_RECIPE_KIND_MERGE, Mode: policy.MergeMode_MERGE_MODE_BACKBONE, Members: []string{"a", "b"}}}
	p.Dispatch = []*policy.Dispatch{
		{Model: "b", Discipline: "adaptive"},
		{Model: "c", Discipline: "eager"},
	}
	p.AppRoutes[0].Variants = []*policy.WeightedVariant{{Model: "b", Weight: 3}, {Model: "a", Weight: 1}}
	return p
}

func TestDiffText(t *testing.T) {
	old := answer()
	old.Partitions[2].Instances = append(old.Partitions[2].Instances, policy.ModelInstance("b", 2))
	for name, d := range map[string]*plan.Diff{
		"diff_all.txt":    plan.Compute(old, next(), "e"),
		"diff_first.txt":  plan.Compute(nil, answer()),
		"diff_last.txt":   plan.Compute(answer(), nil),
		"diff_same.txt":   plan.Compute(answer(), answer()),
		"diff_reload.txt": plan.Compute(answer(), answer(), "b"),
	} {
		t.Run(name, func(t *testing.T) { golden(t, name, d.Text()) })
	}
}

func TestReasonsAreNoChange(t *testing.T) {
	p := answer()
	p.SnapshotRevision = 99
	p.Reasons, p.Predictions, p.PredictedCostPerHour = nil, nil, 5
	slices.Reverse(p.Dispatch)
	require.True(t, plan.Compute(answer(), p).Empty())
}

// What a plan counts on changes with every load, and nothing has to be done for it.
func TestRatesAreNoChange(t *testing.T) {
	other := answer()
	for _, part := range other.Partitions {
		for _, in := range part.GetInstances() {
			in.Rate += 17
		}
	}
	require.True(t, plan.Compute(answer(), other).Empty())
	other.Partitions[0].Instances[0].MaxBatch++
	require.Len(t, plan.Compute(answer(), other).Updates, 1)
}

func TestDerivedModelMadeOtherwiseIsLoadedAgain(t *testing.T) {
	merged := func(members ...string) *policy.Plan {
		return &policy.Plan{
			Recipes: []*policy.Recipe{{Name: "g", Members: members}},
			Partitions: []*policy.Partition{{Id: "p", Gpus: []string{"gpu0"}, ThreadPercentage: 100, Instances: []*policy.Instance{
				policy.ModelInstance("g", 0), policy.ModelInstance("c", 0),
			}}},
		}
	}
	d := plan.Compute(merged("a", "b"), merged("a", "b", "d"))
	require.Len(t, d.Updates, 1)
	require.True(t, d.Updates[0].Reload)
	require.Equal(t, "g", d.Updates[0].New.GetModel())
	require.Len(t, plan.Compute(merged("a", "b"), merged("a", "b"), "a").Updates, 1, "a member's files changed")
	require.Len(t, plan.Compute(merged("a", "b"), merged("a", "b"), "g").Updates, 1, "it was made again")
}

func TestChanged(t *testing.T) {
	before := &policy.Snapshot{Models: []*policy.Model{{Name: "z", Revision: "1"}, {Name: "a", Revision: "1"}, {Name: "b", Revision: "1"}}}
	after := &policy.Snapshot{Models: []*policy.Model{{Name: "z", Revision: "2"}, {Name: "a", Revision: "2"}, {Name: "b", Revision: "1"}, {Name: "new", Revision: "1"}}}
	require.Equal(t, []string{"a", "z"}, plan.Changed(before, after))
	require.Empty(t, plan.Changed(nil, after))
}

// The diff, applied to the current plan, gives the next one; and then there is
// nothing left to do.
func TestDiffAppliedGivesNext(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		current, next := plans().Draw(t, "current"), plans().Draw(t, "next")
		d := plan.Compute(current, next)
		got := applied(t, current, d)
		require.Equal(t, partitionsByID(next), partitionsByID(got), "diff: %s", d.Text())
		require.Equal(t, dispatchByModel(next), dispatchByModel(got))
		require.True(t, plan.Compute(got, next).Empty())
		require.Equal(t, d.Empty(), plan.Compute(next, current).Empty())
		require.Equal(t, d.Text(), plan.Compute(current, next).Text())
	})
}

// applied does what a diff says, as the applier would, and fails where a step
// makes no sense at its time.
func applied(t *rapid.T, current *policy.Plan, d *plan.Diff) *policy.Plan {
	running := make(map[string]*policy.Partition)
	for _, p := range current.GetPartitions() {
		running[p.GetId()] = proto.CloneOf(p)
	}
	place := func(p *policy.Partition) {
		bare := proto.CloneOf(p)
		bare.Instances = nil
		running[p.GetId()] = bare
	}
	for _, p := range d.Start {
		require.NotContains(t, running, p.GetId())
		place(p)
	}
	for _, r := range d.Replace {
		require.Contains(t, running, r.Old.GetId())
		require.Equal(t, r.Old.GetId(), r.New.GetId())
		place(r.New)
	}
	for _, k := range d.Keep {
		running[k.New.GetId()].Rank = k.New.GetRank()
	}
	instances := func(id string) map[string]*policy.Instance {
		list := make(map[string]*policy.Instance)
		for _, in := range running[id].GetInstances() {
			list[in.GetModel()] = in
		}
		return list
	}
	for _, u := range d.Unloads {
		in := instances(u.Partition.GetId())[u.Instance.GetModel()]
		require.NotNil(t, in, "unloaded where it is")
		part := running[u.Partition.GetId()]
		part.Instances = slices.DeleteFunc(part.Instances, func(x *policy.Instance) bool { return x == in })
	}
	for _, l := range d.Loads {
		require.NotContains(t, instances(l.Partition.GetId()), l.Instance.GetModel(), "loaded where it is not")
		part := running[l.Partition.GetId()]
		part.Instances = append(part.Instances, proto.CloneOf(l.Instance))
	}
	for _, u := range d.Updates {
		in := instances(u.Partition.GetId())[u.New.GetModel()]
		require.True(t, proto.Equal(u.Old, in))
		proto.Reset(in)
		proto.Merge(in, u.New)
	}
	for _, p := range d.Stop {
		require.Contains(t, running, p.GetId())
		delete(running, p.GetId())
	}
	dispatch := make(map[string]*policy.Dispatch)
	for _, x := range current.GetDispatch() {
		dispatch[x.GetModel()] = x
	}
	for _, c := range d.Dispatch {
		require.True(t, proto.Equal(dispatch[c.Model], c.Old))
		dispatch[c.Model] = c.New
		if c.New == nil {
			delete(dispatch, c.Model)
		}
	}
	got := &policy.Plan{}
	for _, p := range running {
		got.Partitions = append(got.Partitions, p)
	}
	for _, x := range dispatch {
		got.Dispatch = append(got.Dispatch, x)
	}
	return got
}

// partitionsByID is what a plan's partitions are, without the order of lists.
func partitionsByID(p *policy.Plan) map[string]string {
	list := make(map[string]string)
	for _, part := range p.GetPartitions() {
		part = proto.CloneOf(part)
		slices.SortFunc(part.Instances, func(a, b *policy.Instance) int {
			if a.GetModel() < b.GetModel() {
				return -1
			}
			return 1
		})
		list[part.GetId()] = canonical(part)
	}
	return list
}

func dispatchByModel(p *policy.Plan) map[string]string {
	list := make(map[string]string)
	for _, d := range p.GetDispatch() {
		list[d.GetModel()] = canonical(d)
	}
	return list
}

func canonical(m proto.Message) string {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return string(b)
}

// plans makes plans over few names, so that two of them meet often.
func plans() *rapid.Generator[*policy.Plan] {
	return rapid.Custom(func(t *rapid.T) *policy.Plan {
		p := &policy.Plan{}
		for _, id := range []string{"p0", "p1", "p2"} {
			if rapid.Bool().Draw(t, "absent") {
				continue
			}
			part := &policy.Partition{
				Id: id, Gpus: []string{rapid.SampledFrom([]string{"gpu0", "gpu1"}).Draw(t, "gpu")},
				ThreadPercentage: rapid.SampledFrom([]uint32{50, 100}).Draw(t, "share"),
				Rank:             rapid.Uint32Range(0, 1).Draw(t, "rank"),
			}
			for _, model := range []string{"a", "b"} {
				if rapid.Bool().Draw(t, "loaded") {
					in := policy.ModelInstance(model, rapid.Uint32Range(0, 1).Draw(t, "batch"))
					in.ThreadPercentage = rapid.SampledFrom([]uint32{0, 10}).Draw(t, "own share")
					part.Instances = append(part.Instances, in)
				}
			}
			p.Partitions = append(p.Partitions, part)
		}
		for _, model := range []string{"a", "b"} {
			if rapid.Bool().Draw(t, "dispatched") {
				p.Dispatch = append(p.Dispatch, &policy.Dispatch{Model: model, Discipline: rapid.SampledFrom([]string{"eager", "adaptive"}).Draw(t, "discipline")})
			}
		}
		return p
	})
}

// TestADiffSaysWhoWaits where a GPU has no room for the new server beside the old one.
func TestADiffSaysWhoWaits(t *testing.T) {
	part := func(id string, share uint32, models ...string) *policy.Partition {
		p := &policy.Partition{Id: id, Gpus: []string{id}, ThreadPercentage: share}
		for _, m := range models {
			p.Instances = append(p.Instances, policy.ModelInstance(m, 4))
		}
		return p
	}
	d := plan.Compute(
		&policy.Plan{Partitions: []*policy.Partition{part("gpu0", 50, "a", "b"), part("gpu1", 100, "b")}},
		&policy.Plan{Partitions: []*policy.Partition{part("gpu0", 100, "a", "b"), part("gpu1", 100, "b")}},
	)
	require.Contains(t, d.Text(), "(start the new process, then drain and stop the old one)")
	d.BreakFirst = []string{"gpu0"}
	require.Contains(t, d.Text(), "rank 0 (there is no room for both: drain and stop the old process, then start this one; requests for a wait meanwhile)\n", "b serves on gpu1 meanwhile")
}
