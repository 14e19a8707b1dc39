// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package alpaserve_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/alpaserve"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
)

func TestConformance(t *testing.T) {
	for _, rule := range []string{"fast", "full"} {
		t.Run(rule, func(t *testing.T) {
			conformance.Run(t, conformance.Options{
				New: func(*testing.T) policy.Policy { return alpaserve.New() }, Parameters: map[string]string{"rule": rule}, Snapshots: packtest.Profiled(),
			})
		})
	}
}

// Golden plans of worlds that are small enough to check by hand; "go test -update" writes them. Without evaluations every model is where it fits.
func TestGolden(t *testing.T) { packtest.Golden(t, alpaserve.New(), "testdata") }

// supply is a host for which a plan is worth its replicas, up to what each model wants.
type supply struct {
	wants map[string]int
	asked int
}

// Evaluate implements policy.Host.
func (s *supply) Evaluate(_ context.Context, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	s.asked += len(plans)
	var all []*policy.Outcome
	for _, p := range plans {
		o := &policy.Outcome{}
		for model, want := range s.wants {
			has := 0
			for _, part := range p.GetPartitions() {
				for _, in := range part.GetInstances() {
					if in.GetModel() == model {
						has++
					}
				}
			}
			good := float64(min(has, want))
			o.Goodput += good
			o.Models = append(o.Models, &policy.ModelOutcome{Model: model, Goodput: good, BadRate: 1 - good/float64(want)})
		}
		all = append(all, o)
	}
	return all, nil
}

// EvaluateDraw implements policy.Host.
func (s *supply) EvaluateDraw(ctx context.Context, _ uint32, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	return s.Evaluate(ctx, plans...)
}

// The selection grows to what the simulator asks for, by either rule, and no further than its evaluations.
func TestReplicasWhereTheyServe(t *testing.T) {
	for _, rule := range []string{"fast", "full"} {
		t.Run(rule, func(t *testing.T) {
			w := packtest.World(4).Line("a", 1, 4, 40, 100).Line("b", 1, 4, 40, 300)
			w.Evaluations, w.Parameters = 1000, map[string]string{"rule": rule}
			host := &supply{wants: map[string]int{"a": 1, "b": 4}}
			p, err := alpaserve.New().Plan(t.Context(), w.Snapshot, host)
			require.NoError(t, err)
			require.Empty(t, conformance.Check(w.Snapshot, p))
			require.Len(t, p.PartitionsOf("b"), 4)
			require.NotEmpty(t, p.PartitionsOf("a"))

			w.Evaluations = 2
			host.asked = 0
			_, err = alpaserve.New().Plan(t.Context(), w.Snapshot, host)
			require.NoError(t, err)
			require.LessOrEqual(t, host.asked, 2)
		})
	}
}
