// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
)

// Under min-cost one GPU less saves its rent over the horizon of 300 seconds; what has to be loaded elsewhere for that costs the rent of as many seconds as the load takes, times
// the price, and the saving has to be 1.2 times that. What needs no load is taken for any saving.
func TestLoadsAreWeighedAgainstRent(t *testing.T) {
	for name, test := range map[string]struct {
		seconds float64
		price   string
		both    bool // the first GPU has both models already
		gpus    int
	}{
		"a short load pays":                {seconds: 100, gpus: 1},
		"just before its price":            {seconds: 240, gpus: 1},
		"a long one does not":              {seconds: 260, gpus: 2},
		"at a higher price nor does short": {seconds: 100, price: "3", gpus: 2},
		"loads for nothing":                {seconds: 5000, price: "0", gpus: 1},
		"nothing is to be loaded":          {seconds: 5000, both: true, gpus: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := packtest.World(2).Line("a", 1, 4, 100, 50).Line("b", 1, 4, 100, 50)
			b.Objective, b.Evaluations = policy.Objective_OBJECTIVE_MIN_COST, 128
			b.ChangeCost = &policy.ChangeCost{DefaultLoadSeconds: test.seconds}
			for _, g := range b.Nodes[0].Gpus {
				g.CostPerHour = 2
			}
			for _, m := range b.Models {
				m.LoadSeconds = 0
			}
			if test.price != "" {
				b.Parameters = map[string]string{"load_price": test.price}
			}
			whole := func(gpu int, models ...string) *policy.Partition {
				p := &policy.Partition{Id: b.Nodes[0].Gpus[gpu].GetId(), Node: b.Nodes[0].GetName(), Gpus: []string{b.Nodes[0].Gpus[gpu].GetId()}, ThreadPercentage: 100}
				for _, m := range models {
					p.Instances = append(p.Instances, &policy.Instance{Model: m})
				}
				return p
			}
			b.Current = &policy.Plan{Partitions: []*policy.Partition{whole(0, "a"), whole(1, "b")}}
			if test.both {
				b.Current = &policy.Plan{Partitions: []*policy.Partition{whole(0, "a", "b"), whole(1, "b")}}
			}
			h := hostFunc(func(_ uint32, p *policy.Plan) *policy.Outcome {
				n := gpus(p)
				return &policy.Outcome{Goodput: 100, Gpus: uint32(n), CostPerHour: 2 * float64(n)} //nolint:gosec // few
			})
			p, err := made().Plan(t.Context(), b.Snapshot, h)
			require.NoError(t, err)
			require.Equal(t, test.gpus, gpus(p), "%v", p.GetReasons())
		})
	}
}
