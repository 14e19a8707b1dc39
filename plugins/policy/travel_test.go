// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
)

func TestTravel(t *testing.T) {
	s := &policy.Snapshot{Pipelines: []*policy.Pipeline{{Name: "p", Rate: 10, Rows: 2, Steps: []*policy.PipelineStep{
		{Model: "a"}, {Model: "b", After: []uint32{0}, TakenBytes: []float64{100}}, {Model: "c", After: []uint32{0, 1}, TakenBytes: []float64{1, 50}},
	}}}}
	plan := func(nodes map[string][]string) *policy.Plan {
		p := &policy.Plan{}
		for _, node := range []string{"m", "n"} {
			for _, model := range nodes[node] {
				p.Partitions = append(p.Partitions, &policy.Partition{Id: node + model, Node: node, Instances: []*policy.Instance{policy.ModelInstance(model, 1)}})
			}
		}
		return p
	}
	for name, c := range map[string]struct {
		nodes map[string][]string
		want  float64
	}{
		"all on one node":              {map[string][]string{"m": {"a", "b", "c"}}, 0},
		"the small tensor travels":     {map[string][]string{"m": {"a"}, "n": {"b", "c"}}, 20 * 101},
		"the last step is elsewhere":   {map[string][]string{"m": {"a", "b"}, "n": {"c"}}, 20 * 51},
		"half of the places of b":      {map[string][]string{"m": {"a", "b", "c"}, "n": {"b"}}, 20 * (50 + 25)},
		"a model without a place":      {map[string][]string{"m": {"a"}, "n": {"c"}}, 20 * 1},
		"two places of a on two nodes": {map[string][]string{"m": {"a", "b", "c"}, "n": {"a"}}, 20 * (50 + .5)},
	} {
		require.InDelta(t, c.want, s.Travel(plan(c.nodes)), 1e-9, name)
	}
	require.InDelta(t, 20*(100+25), s.Near("b", func(other string) float64 { return map[string]float64{"a": 1, "c": .5}[other] }), 1e-9)
	require.Zero(t, s.Near("d", func(string) float64 { return 1 }))
}
