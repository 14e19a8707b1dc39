// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package planner_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/control/planner"
	"github.com/conch-serving/conch/sidecar/plan"
)

// twoGPUs is a machine with two GPUs of 30 bytes, and these models of 10.
func twoGPUs(models ...*policy.Model) *policy.Snapshot {
	for _, m := range models {
		if m.MemoryBytes == 0 {
			m.MemoryBytes = 10
		}
	}
	return &policy.Snapshot{Revision: 7, Models: models, Nodes: []*policy.Node{{Name: "n", Gpus: []*policy.GPU{
		{Id: "gpu0", MemoryBytes: 30}, {Id: "gpu1", Index: 1, MemoryBytes: 30},
	}}}}
}

// share is a partition of a whole GPU under an id, with models.
func share(id, gpu string, percent uint32, models ...string) *policy.Partition {
	part := &policy.Partition{Id: id, Node: "n", Gpus: []string{gpu}, ThreadPercentage: percent}
	for _, m := range models {
		part.Instances = append(part.Instances, policy.ModelInstance(m, 1))
	}
	return part
}

func TestAnOrderChangesOneModel(t *testing.T) {
	model := func(name string, calls ...string) *policy.Model { return &policy.Model{Name: name, DependsOn: calls} }
	demanded := func(name string) *policy.Model { return &policy.Model{Name: name, OnDemand: true} }
	for name, c := range map[string]struct {
		models  []*policy.Model
		current []*policy.Partition
		answer  []*policy.Partition // nil: the policy gives none
		want    map[string][]string
		refused string
	}{
		"where the policy wants it": {
			models:  []*policy.Model{model("a"), model("b"), model("new")},
			current: []*policy.Partition{share("gpu0", "gpu0", 100, "a"), share("gpu1", "gpu1", 100, "b")},
			answer:  []*policy.Partition{share("gpu0", "gpu0", 100, "b"), share("gpu1", "gpu1", 100, "a", "new")},
			want:    map[string][]string{"gpu0": {"a"}, "gpu1": {"b", "new"}},
		},
		"where it fits, if the policy cuts the GPUs otherwise": {
			models:  []*policy.Model{model("a"), model("b"), model("new")},
			current: []*policy.Partition{share("gpu0", "gpu0", 100, "a")},
			answer:  []*policy.Partition{share("half", "gpu0", 50, "new")},
			want:    map[string][]string{"gpu0": {"a", "new"}},
		},
		"on a GPU that nothing uses": {
			models:  []*policy.Model{model("a"), model("new")},
			current: []*policy.Partition{share("gpu0", "gpu0", 100, "a")},
			answer:  []*policy.Partition{share("p1", "gpu1", 100, "new", "a")},
			want:    map[string][]string{"gpu0": {"a"}, "p1": {"new"}},
		},
		"without the policy": {
			models:  []*policy.Model{model("a"), model("new")},
			current: []*policy.Partition{share("gpu0", "gpu0", 100, "a")},
			want:    map[string][]string{"gpu0": {"a", "new"}},
		},
		"where it is": {
			models:  []*policy.Model{model("a"), model("new")},
			current: []*policy.Partition{share("gpu0", "gpu0", 100, "a", "new")},
			answer:  []*policy.Partition{share("gpu1", "gpu1", 100, "a", "new")},
			want:    map[string][]string{"gpu0": {"a", "new"}},
		},
		"with what it calls and what calls it": {
			models:  []*policy.Model{model("member"), model("new", "member"), model("outer", "new", "member")},
			current: []*policy.Partition{share("gpu0", "gpu0", 100)},
			answer:  []*policy.Partition{share("gpu0", "gpu0", 100, "member", "new", "outer")},
			want:    map[string][]string{"gpu0": {"member", "new", "outer"}},
		},
		"nobody leaves for it": {
			models:  []*policy.Model{model("a"), model("b"), model("c"), model("new")},
			current: []*policy.Partition{share("gpu0", "gpu0", 100, "a", "b", "c")},
			answer:  []*policy.Partition{share("gpu0", "gpu0", 100, "a", "b", "new")},
			want:    nil, refused: "need 40 bytes",
		},
		"but models that load on demand": {
			models:  []*policy.Model{demanded("a"), model("b"), model("c"), model("new")},
			current: []*policy.Partition{share("gpu0", "gpu0", 100, "a", "b", "c")},
			answer:  []*policy.Partition{share("gpu0", "gpu0", 100, "new")},
			want:    map[string][]string{"gpu0": {"b", "c", "new"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := twoGPUs(c.models...)
			who := planner.Func(func(context.Context, *policy.Snapshot) (*policy.Plan, error) {
				if c.answer == nil {
					return nil, errors.New("it hangs")
				}
				return &policy.Plan{SnapshotRevision: 7, Partitions: c.answer}, nil
			})
			p, err := planner.Single{Current: &policy.Plan{SnapshotRevision: 3, Partitions: c.current}, Model: "new", Policy: who}.Plan(t.Context(), s)
			require.NoError(t, err)
			violations := plan.Validate(s, p)
			if c.refused != "" {
				require.ErrorContains(t, violations.Err(), c.refused)
				return
			}
			require.NoError(t, violations.Err())
			got := map[string][]string{}
			for _, part := range p.GetPartitions() {
				for _, in := range part.GetInstances() {
					got[part.GetId()] = append(got[part.GetId()], in.GetModel())
				}
			}
			require.Equal(t, c.want, got)
		})
	}
}
