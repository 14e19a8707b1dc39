// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package builtin_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/builtin"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
	"github.com/conch-serving/conch/sidecar/plan"
)

// What a policy that comes with Conch answers is valid, overloaded worlds included: conformance has an oracle of its own, which knows less of
// rates.
func TestPlansAreValid(t *testing.T) {
	for _, name := range builtin.Names() {
		t.Run(name, func(t *testing.T) {
			p, _ := builtin.New(name)
			d, err := p.Describe(t.Context())
			require.NoError(t, err)
			ctx := t.Context()
			rapid.Check(t, func(t *rapid.T) {
				s := packtest.Profiled().Draw(t, "snapshot")
				s.Parameters, err = d.Resolve(nil)
				require.NoError(t, err)
				if len(d.Unmet(s)) > 0 {
					t.Skip("the world lacks what the policy needs")
				}
				for _, m := range s.Models {
					m.Rate *= rapid.SampledFrom([]float64{1, 20}).Draw(t, "load")
				}
				answer, err := p.Plan(ctx, s, policy.NoEvaluation{})
				require.NoError(t, err)
				require.Empty(t, plan.Validate(s, answer), "snapshot: %v\nplan: %v", s, answer)
			})
		})
	}
}

// Numbers that no plan can be made with are refused by every policy.
func TestNumbersThatAreNone(t *testing.T) {
	for _, name := range builtin.Names() {
		for what, change := range map[string]func(*policy.Snapshot, float64){
			"rate":     func(s *policy.Snapshot, v float64) { s.Models[0].Rate = v },
			"row rate": func(s *policy.Snapshot, v float64) { s.Models[0].RowRate = v },
			"app": func(s *policy.Snapshot, v float64) {
				s.Apps = []*policy.App{{Name: "app", Rate: v, Variants: []*policy.Variant{{Model: s.Models[0].GetName()}}}}
			},
			"profile": func(s *policy.Snapshot, v float64) { s.Profiles[0].Points[0].LatencyUpperUs = v },
		} {
			for _, v := range []float64{math.NaN(), math.Inf(1), -1} {
				t.Run(fmt.Sprint(name, " ", what, " ", v), func(t *testing.T) {
					p, _ := builtin.New(name)
					d, err := p.Describe(t.Context())
					require.NoError(t, err)
					s := packtest.World(2).Line("m", 1, 4, 40, 100).Interfering().Snapshot
					s.Parameters, err = d.Resolve(nil)
					require.NoError(t, err)
					change(s, v)
					_, err = p.Plan(t.Context(), s, policy.NoEvaluation{})
					require.ErrorIs(t, err, policy.ErrNumber)
				})
			}
		}
	}
}
