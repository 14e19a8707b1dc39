// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package static_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
	"github.com/conch-serving/conch/plugins/static"
)

// floor is a machine with so many GPUs of 30 bytes, and what lies on them.
func floor(gpus int, lies map[string][]string, models ...*policy.Model) *policy.Snapshot {
	s := &policy.Snapshot{Revision: 1, Nodes: []*policy.Node{{Name: "n"}}, Models: models, Current: &policy.Plan{}}
	for i := range gpus {
		id := fmt.Sprint("gpu", i)
		s.Nodes[0].Gpus = append(s.Nodes[0].Gpus, &policy.GPU{Id: id, Index: uint32(i), MemoryBytes: 30})
		part := &policy.Partition{Id: id, Node: "n", Gpus: []string{id}, ThreadPercentage: 100}
		for _, m := range lies[id] {
			part.Instances = append(part.Instances, &policy.Instance{Model: m})
		}
		s.Current.Partitions = append(s.Current.Partitions, part)
	}
	return s
}

// demanded is a model of ten bytes that loads on demand.
func demanded(name string, idle float64, underWay uint64) *policy.Model {
	return &policy.Model{Name: name, MemoryBytes: 10, OnDemand: true, IdleSeconds: idle, RequestsUnderWay: underWay}
}

// where is what lies in each partition of a plan.
func where(p *policy.Plan) map[string][]string {
	all := map[string][]string{}
	for _, part := range p.GetPartitions() {
		for _, in := range part.GetInstances() {
			all[part.GetId()] = append(all[part.GetId()], in.GetModel())
		}
	}
	return all
}

func TestLoadOnDemand(t *testing.T) {
	kept := &policy.Model{Name: "kept", MemoryBytes: 10}
	impatient := demanded("impatient", 700, 0)
	impatient.MaxIdleSeconds = 600
	ensemble := demanded("ensemble", 3, 0)
	ensemble.MemoryBytes, ensemble.DependsOn = 0, []string{"member"}
	for name, test := range map[string]struct {
		gpus     int
		lies     map[string][]string
		models   []*policy.Model
		want     map[string][]string
		unplaced map[string]string
	}{
		"nobody asks": {
			gpus: 1, models: []*policy.Model{demanded("a", 0, 0), kept},
			want: map[string][]string{"gpu0": {"kept"}}, unplaced: map[string]string{"a": "0/1 partitions: 1 on-demand"},
		},
		"asked for": {
			gpus: 2, models: []*policy.Model{demanded("a", .1, 1), kept},
			want: map[string][]string{"gpu0": {"kept"}, "gpu1": {"a", "kept"}},
		},
		"loaded, and room": {
			gpus: 1, lies: map[string][]string{"gpu0": {"a"}}, models: []*policy.Model{demanded("a", 5000, 0), demanded("b", .1, 1)},
			want: map[string][]string{"gpu0": {"a", "b"}},
		},
		"the least recently used leaves": {
			gpus: 1, lies: map[string][]string{"gpu0": {"a", "b", "c"}},
			models: []*policy.Model{demanded("a", 5, 0), demanded("b", 9, 0), demanded("c", 1, 0), demanded("d", .1, 1)},
			want:   map[string][]string{"gpu0": {"a", "c", "d"}}, unplaced: map[string]string{"b": "0/1 partitions: 1 on-demand"},
		},
		"whom nobody used since it was loaded leaves first": {
			gpus: 1, lies: map[string][]string{"gpu0": {"a", "b", "c"}},
			models: []*policy.Model{demanded("a", 5, 0), demanded("b", 9, 0), demanded("c", 0, 0), demanded("d", .1, 1)},
			want:   map[string][]string{"gpu0": {"a", "b", "d"}}, unplaced: map[string]string{"c": "0/1 partitions: 1 on-demand"},
		},
		"none with requests under way leaves": {
			gpus: 1, lies: map[string][]string{"gpu0": {"a", "b", "c"}},
			models: []*policy.Model{demanded("a", 9, 3), demanded("b", 8, 1), demanded("c", 7, 1), demanded("d", .1, 1)},
			want:   map[string][]string{"gpu0": {"a", "b", "c"}}, unplaced: map[string]string{"d": "0/1 partitions: 1 on-demand"},
		},
		"on the GPU where the least recently used lies": {
			gpus: 2, lies: map[string][]string{"gpu0": {"a", "b", "c"}, "gpu1": {"d", "e", "f"}},
			models: []*policy.Model{
				demanded("a", 4, 0), demanded("b", 5, 0), demanded("c", 6, 0), demanded("d", 1, 0), demanded("e", 2, 0), demanded("f", 7, 0), demanded("g", .1, 1),
			},
			want: map[string][]string{"gpu0": {"a", "b", "c"}, "gpu1": {"d", "e", "g"}}, unplaced: map[string]string{"f": "0/2 partitions: 2 on-demand"},
		},
		"as many as must": {
			gpus: 1, lies: map[string][]string{"gpu0": {"a", "b", "c"}},
			models: []*policy.Model{demanded("a", 5, 0), demanded("b", 9, 0), demanded("c", 1, 0), {Name: "d", MemoryBytes: 20, OnDemand: true, RequestsUnderWay: 1}},
			want:   map[string][]string{"gpu0": {"c", "d"}}, unplaced: map[string]string{"a": "0/1 partitions: 1 on-demand", "b": "0/1 partitions: 1 on-demand"},
		},
		"idle for too long": {
			gpus: 1, lies: map[string][]string{"gpu0": {"impatient"}}, models: []*policy.Model{impatient},
			want: map[string][]string{}, unplaced: map[string]string{"impatient": "0/1 partitions: 1 on-demand"},
		},
		"copies of what is kept make room, the last copy does not": {
			gpus: 2, lies: map[string][]string{"gpu0": {"kept"}, "gpu1": {"kept"}},
			models: []*policy.Model{{Name: "kept", MemoryBytes: 25}, {Name: "a", MemoryBytes: 20, OnDemand: true, RequestsUnderWay: 1}, {Name: "b", MemoryBytes: 20, OnDemand: true, RequestsUnderWay: 1}},
			want:   map[string][]string{"gpu0": {"kept"}, "gpu1": {"a"}}, unplaced: map[string]string{"b": "0/2 partitions: 1 memory, 1 on-demand"},
		},
		"never fits": {
			gpus: 1, models: []*policy.Model{{Name: "huge", MemoryBytes: 50, OnDemand: true, RequestsUnderWay: 1}},
			want: map[string][]string{}, unplaced: map[string]string{"huge": "0/1 partitions: 1 memory"},
		},
		"an ensemble brings its members, which stay with it": {
			gpus: 1, lies: map[string][]string{"gpu0": {"a", "ensemble", "member"}},
			models: []*policy.Model{demanded("a", 2, 0), ensemble, demanded("member", 100, 0), demanded("z", .1, 2), demanded("y", .1, 2)},
			want:   map[string][]string{"gpu0": {"a", "y", "z"}},
			unplaced: map[string]string{
				"ensemble": "0/1 partitions: 1 on-demand", "member": "0/1 partitions: 1 on-demand",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := floor(test.gpus, test.lies, test.models...)
			p, err := static.New().Plan(t.Context(), s, policy.NoEvaluation{})
			require.NoError(t, err)
			require.Equal(t, test.want, where(p))
			unplaced := map[string]string{}
			for _, u := range p.GetUnplaced() {
				unplaced[u.GetModel()] = u.GetText()
			}
			if test.unplaced == nil {
				test.unplaced = map[string]string{}
			}
			require.Equal(t, test.unplaced, unplaced)
			require.Empty(t, conformance.Check(s, p))
		})
	}
}

// TestDemandIsSteady: a plan that answers the world that its predecessor made changes nothing, and nothing with requests under way ever loses
// its place.
func TestDemandIsSteady(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gpus := rapid.IntRange(1, 3).Draw(t, "gpus")
		var models []*policy.Model
		for i := range rapid.IntRange(1, 12).Draw(t, "models") {
			m := &policy.Model{Name: fmt.Sprint("m", i), MemoryBytes: rapid.Uint64Range(1, 31).Draw(t, "bytes"), OnDemand: rapid.Bool().Draw(t, "demand")}
			m.IdleSeconds = rapid.Float64Range(0, 10).Draw(t, "idle")
			m.RequestsUnderWay = rapid.Uint64Range(0, 2).Draw(t, "under way")
			m.MaxIdleSeconds = rapid.Float64Range(0, 10).Draw(t, "most idle")
			models = append(models, m)
		}
		s := floor(gpus, nil, models...)
		before, err := static.New().Plan(t.Context(), s, policy.NoEvaluation{})
		require.NoError(t, err)
		s.Current = before
		again, err := static.New().Plan(t.Context(), s, policy.NoEvaluation{})
		require.NoError(t, err)
		require.Equal(t, where(before), where(again))
		for _, m := range models { // others are used and asked for now
			m.IdleSeconds = rapid.Float64Range(0, 10).Draw(t, "idle")
			m.RequestsUnderWay = rapid.Uint64Range(0, 2).Draw(t, "under way")
		}
		next, err := static.New().Plan(t.Context(), s, policy.NoEvaluation{})
		require.NoError(t, err)
		require.Empty(t, conformance.Check(s, next))
		for _, m := range models {
			if m.OnDemand && m.RequestsUnderWay > 0 {
				for part, here := range where(before) {
					if slices.Contains(here, m.Name) {
						require.Contains(t, where(next)[part], m.Name)
					}
				}
			}
		}
	})
}
