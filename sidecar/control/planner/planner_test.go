// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package planner_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/planner"
	"github.com/conch-serving/conch/sidecar/plan"
)

func settings(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Parse("conch.yaml", []byte("repository: /models\ndriver: {kind: embedded}\n"+text))
	require.NoError(t, err)
	c.Provision(config.Environment{})
	return c
}

// placed is a plan that places models, with the dispatch entries that it is given.
func placed(dispatch []*policy.Dispatch, models ...string) *policy.Plan {
	part := &policy.Partition{Id: "p"}
	for _, m := range models {
		part.Instances = append(part.Instances, policy.ModelInstance(m, 8))
	}
	return &policy.Plan{Policy: "fake", Partitions: []*policy.Partition{part}, Dispatch: dispatch}
}

func TestTheOperatorsDisciplinesHold(t *testing.T) {
	adaptive := func(model string) *policy.Dispatch { return &policy.Dispatch{Model: model, Discipline: "adaptive"} }
	eager := &policy.Dispatch{Model: "a", Discipline: "eager", DropPolicy: "none"}
	for name, c := range map[string]struct {
		settings string
		attached bool
		plan     *policy.Plan
		want     []*policy.Dispatch
	}{
		"nothing said": {"", false, placed([]*policy.Dispatch{adaptive("a")}, "a"), []*policy.Dispatch{adaptive("a")}},
		"whatever the plan says": {"models: {a: {discipline: eager, dropPolicy: none}}", false,
			placed([]*policy.Dispatch{adaptive("a"), adaptive("b")}, "a", "b"), []*policy.Dispatch{eager, adaptive("b")}},
		"whatever the plan leaves out": {"models: {a: {discipline: eager, dropPolicy: none}}", false, placed(nil, "a", "b"), []*policy.Dispatch{eager}},
		"a default for a model left out": {"defaults: {dropPolicy: none}", false, placed(nil, "a"),
			[]*policy.Dispatch{{Model: "a", Discipline: "adaptive", DropPolicy: "none"}}},
		"nobody waits in observe":               {"mode: observe", false, placed(nil, "a"), []*policy.Dispatch{eager}},
		"servers of others batch themselves":    {"mode: observe", true, placed(nil, "a"), nil},
		"a model that is not placed needs none": {"models: {z: {discipline: eager}}", false, placed(nil, "a"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := planner.Operator{Config: settings(t, c.settings), Attached: c.attached}.Obeying(planner.Ready(c.plan)).Plan(t.Context(), &policy.Snapshot{})
			require.NoError(t, err)
			require.Len(t, got.GetDispatch(), len(c.want))
			for i, d := range c.want {
				require.True(t, proto.Equal(d, got.GetDispatch()[i]), "%v", got.GetDispatch()[i])
			}
		})
	}
}

// TestMirror takes disciplines from the policy and everything else from the servers.
func TestMirror(t *testing.T) {
	m := planner.Mirror{
		Placement:   func() []*policy.Partition { return placed(nil, "a", "b").GetPartitions() },
		Disciplines: planner.Ready(placed([]*policy.Dispatch{{Model: "a", Discipline: "deferred"}}, "elsewhere")),
	}
	got, err := m.Plan(t.Context(), &policy.Snapshot{Revision: 4, Models: []*policy.Model{{Name: "a"}, {Name: "b"}}})
	require.NoError(t, err)
	require.EqualValues(t, 4, got.GetSnapshotRevision())
	require.Equal(t, "fake", got.GetPolicy())
	require.Len(t, got.GetPartitions()[0].GetInstances(), 2)
	require.Equal(t, "deferred", got.GetDispatch()[0].GetDiscipline())
	require.Equal(t, "adaptive", got.GetDispatch()[1].GetDiscipline())
	require.Equal(t, "eager", planner.PassingThrough(got).GetDispatch()[0].GetDiscipline())
}

// on is a partition of a share on a GPU.
func on(id, gpu string, share uint32, models ...string) *policy.Partition {
	p := &policy.Partition{Id: id, Gpus: []string{gpu}, ThreadPercentage: share}
	for _, m := range models {
		p.Instances = append(p.Instances, policy.ModelInstance(m, 8))
	}
	return p
}

func TestNothingNewComesToACordonedGPU(t *testing.T) {
	current := &policy.Plan{Partitions: []*policy.Partition{on("x", "gpu0", 100, "a", "b"), on("y", "gpu1", 50, "a", "b")}}
	s := &policy.Snapshot{Models: []*policy.Model{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
	for name, c := range map[string]struct {
		proposed, want []*policy.Partition
		unplaced       []string
	}{
		"the same again":         {current.Partitions, current.Partitions, nil},
		"a new model":            {[]*policy.Partition{on("x", "gpu0", 100, "a", "b", "c"), on("y", "gpu1", 50, "a", "b", "c")}, []*policy.Partition{on("x", "gpu0", 100, "a", "b", "c"), on("y", "gpu1", 50, "a", "b")}, nil},
		"a model that leaves":    {[]*policy.Partition{on("x", "gpu0", 100, "a", "b"), on("y", "gpu1", 50, "a")}, []*policy.Partition{on("x", "gpu0", 100, "a", "b"), on("y", "gpu1", 50, "a")}, nil},
		"another share":          {[]*policy.Partition{on("x", "gpu0", 100, "a"), on("y", "gpu1", 100, "a", "b")}, []*policy.Partition{on("x", "gpu0", 100, "a"), on("y", "gpu1", 50, "a", "b")}, nil},
		"a new partition":        {[]*policy.Partition{on("x", "gpu0", 100, "a", "b"), on("y", "gpu1", 50, "a", "b"), on("z", "gpu1", 50, "b")}, current.Partitions, nil},
		"everything leaves":      {[]*policy.Partition{on("x", "gpu0", 100, "a", "b")}, []*policy.Partition{on("x", "gpu0", 100, "a", "b")}, nil},
		"no other place for one": {[]*policy.Partition{on("x", "gpu0", 100, "a", "b"), on("y", "gpu1", 50, "c")}, []*policy.Partition{on("x", "gpu0", 100, "a", "b")}, []string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := planner.Cordoning{Planner: planner.Ready(&policy.Plan{Partitions: c.proposed}), GPUs: map[string]bool{"gpu1": true}, Current: current}.Plan(t.Context(), s)
			require.NoError(t, err)
			require.Len(t, got.GetPartitions(), len(c.want))
			for i, want := range c.want {
				require.True(t, proto.Equal(want, got.GetPartitions()[i]), "%v", got.GetPartitions()[i])
			}
			var unplaced []string
			for _, u := range got.GetUnplaced() {
				unplaced = append(unplaced, u.GetModel())
			}
			require.Equal(t, c.unplaced, unplaced)
		})
	}
}

// TestAPlanOfBeforeIsFitted to what there is now.
func TestAPlanOfBeforeIsFitted(t *testing.T) {
	before := &policy.Plan{
		Partitions: []*policy.Partition{on("x", "gpu0", 60, "a", "gone"), on("y", "gpu1", 50, "a"), on("z", "gpu0", 40, "gone")},
		Dispatch:   []*policy.Dispatch{{Model: "a", Discipline: "eager"}, {Model: "gone", Discipline: "eager"}},
		Unplaced:   []*policy.Unplaced{{Model: "gone"}},
	}
	s := &policy.Snapshot{Revision: 9, Models: []*policy.Model{{Name: "a", MaxBatchSize: 8}, {Name: "new"}}, Nodes: []*policy.Node{{Gpus: []*policy.GPU{{Id: "gpu0"}, {Id: "gpu1", Unavailable: true}}}}}
	p := planner.Fit(before, s, "nobody knew it")
	require.EqualValues(t, 9, p.GetSnapshotRevision())
	require.Len(t, p.GetPartitions(), 1, "neither those on a GPU that may not be used nor those that would be empty")
	require.True(t, proto.Equal(on("x", "gpu0", 60, "a"), p.GetPartitions()[0]))
	require.Len(t, p.GetDispatch(), 1)
	require.Len(t, p.GetUnplaced(), 1)
	require.Equal(t, "new nobody knew it", p.GetUnplaced()[0].GetModel()+" "+p.GetUnplaced()[0].GetText())
	require.Len(t, before.GetPartitions(), 3, "the plan of before is left as it was")
}

// TestWhatIsLeftOfAPlanIsValid: neither a cordon nor a plan of before leaves words about partitions, places or apps that are no more.
func TestWhatIsLeftOfAPlanIsValid(t *testing.T) {
	reason := func(model, partition string) *policy.Reason {
		return &policy.Reason{Model: model, Partition: partition, Text: "why not"}
	}
	route := func(app string, models ...string) *policy.AppRoute {
		r := &policy.AppRoute{App: app}
		for _, m := range models {
			r.Variants = append(r.Variants, &policy.WeightedVariant{Model: m, Weight: 1})
		}
		return r
	}
	proposed := &policy.Plan{
		Partitions:  []*policy.Partition{on("x", "gpu0", 100, "a"), on("z", "gpu1", 100, "b")},
		Reasons:     []*policy.Reason{reason("a", "x"), reason("b", "z"), reason("", "z"), reason("", "x")},
		SubClusters: []*policy.SubCluster{{Name: "one", Partitions: []string{"x"}, Models: []string{"a"}}, {Name: "two", Partitions: []string{"z"}, Models: []string{"b"}}},
		AppRoutes:   []*policy.AppRoute{route("app", "a", "b"), route("only", "b")},
	}
	snapshot := func(unavailable bool) *policy.Snapshot {
		app := func(name string, models ...string) *policy.App {
			a := &policy.App{Name: name}
			for _, m := range models {
				a.Variants = append(a.Variants, &policy.Variant{Model: m})
			}
			return a
		}
		return &policy.Snapshot{
			Models: []*policy.Model{{Name: "a", MaxBatchSize: 8}, {Name: "b", MaxBatchSize: 8}}, Apps: []*policy.App{app("app", "a", "b"), app("only", "b")},
			Nodes: []*policy.Node{{Gpus: []*policy.GPU{{Id: "gpu0"}, {Id: "gpu1", Unavailable: unavailable}}}},
		}
	}
	require.Empty(t, plan.Validate(snapshot(false), proposed))

	t.Run("cordoned", func(t *testing.T) {
		s := snapshot(false)
		got, err := planner.Cordoning{Planner: planner.Ready(proposed), GPUs: map[string]bool{"gpu1": true}}.Plan(t.Context(), s)
		require.NoError(t, err)
		require.Empty(t, plan.Validate(s, got))
		require.Len(t, got.GetReasons(), 2, "what is still so stays")
		require.Len(t, got.GetAppRoutes(), 1)
	})
	t.Run("of before", func(t *testing.T) {
		s := snapshot(true)
		require.Empty(t, plan.Validate(s, planner.Fit(proposed, s, "gone")))
	})
	t.Run("of before, and other files", func(t *testing.T) {
		s := snapshot(false)
		s.Models, s.Apps = s.Models[:1], nil
		s.Models[0].MaxBatchSize = 4
		got := planner.Fit(proposed, s, "gone")
		require.Empty(t, plan.Validate(s, got))
		require.EqualValues(t, 4, got.GetPartitions()[0].GetInstances()[0].GetMaxBatch())
	})
}
