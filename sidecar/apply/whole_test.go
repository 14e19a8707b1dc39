// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply"
)

// particular is a driver whose servers take whole GPUs of the node "plugin".
type particular struct{ *world }

func (particular) Refused(*policy.Partition, *policy.GPU) error { return nil }
func (particular) Whole(g *policy.GPU) bool                     { return strings.HasPrefix(g.GetId(), "whole") }
func (particular) Claim(*policy.GPU) string                     { return "" }

// A plan says beforehand which servers that take a whole GPU find none beside the old ones of their node.
func TestServersOfWholeGPUsThatComeAfterOldOnes(t *testing.T) {
	w := newWorld(t)
	r, err := apply.New(apply.Options{Store: w, Driver: particular{w}, Repository: w, Router: w})
	require.NoError(t, err)
	s := &policy.Snapshot{Nodes: []*policy.Node{
		{Name: "plugin", Gpus: []*policy.GPU{{Id: "whole-0"}, {Id: "whole-1"}, {Id: "whole-2"}}},
		{Name: "shared", Gpus: []*policy.GPU{{Id: "gpu-0"}}},
	}}
	plan := func(all ...string) *policy.Plan {
		p := &policy.Plan{}
		for _, text := range all {
			id, gpu, _ := strings.Cut(text, "@")
			part := partition(id, gpu, 100)
			if part.Node = "plugin"; gpu == "gpu-0" {
				part.Node = "shared"
			}
			p.Partitions = append(p.Partitions, part)
		}
		return p
	}
	for name, c := range map[string]struct {
		present, next *policy.Plan
		unavailable   bool // the third GPU
		want          []string
	}{
		"nothing is there":                    {plan(), plan("a@whole-0", "b@whole-1", "c@whole-2"), false, nil},
		"a GPU is left for one":               {plan("a@whole-0", "b@whole-1"), plan("a@whole-0", "c@whole-1"), false, nil},
		"and for no other":                    {plan("a@whole-0", "b@whole-1"), plan("c@whole-0", "d@whole-1"), false, []string{"d"}},
		"it is unavailable":                   {plan("a@whole-0", "b@whole-1"), plan("a@whole-0", "c@whole-1"), true, []string{"c"}},
		"all are taken, and nothing old goes": {plan("a@whole-0", "b@whole-1", "c@whole-2"), plan("a@whole-0", "b@whole-1", "c@whole-2", "d@whole-0"), false, nil},
		"GPUs are shared":                     {plan("a@gpu-0"), plan("b@gpu-0"), false, nil},
	} {
		s.Nodes[0].Gpus[2].Unavailable = c.unavailable
		require.Equal(t, c.want, r.BreakFirst(c.present, c.next, s), name)
	}
}
