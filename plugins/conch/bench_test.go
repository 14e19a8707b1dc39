// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/conch"
	"github.com/conch-serving/conch/plugins/gpulet"
	"github.com/conch-serving/conch/plugins/nexus"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
	"github.com/conch-serving/conch/plugins/shepherd"
	"github.com/conch-serving/conch/plugins/static"
	"github.com/conch-serving/conch/plugins/symphony"
	"github.com/conch-serving/conch/plugins/usher"
)

// indifferent finds every plan equally good, and none perfect, so that local search goes through all its rounds: what is measured is the policy's own work.
type indifferent struct{}

// Evaluate implements policy.Host.
func (indifferent) Evaluate(_ context.Context, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	all := make([]*policy.Outcome, len(plans))
	for i := range all {
		all[i] = &policy.Outcome{Goodput: 1, BadRate: .1}
	}
	return all, nil
}

// EvaluateDraw implements policy.Host.
func (i indifferent) EvaluateDraw(ctx context.Context, _ uint32, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	return i.Evaluate(ctx, plans...)
}

// many is so many models of different SLOs, which load so many GPUs to two thirds.
func many(models, gpus int) *policy.Snapshot {
	w := packtest.World(gpus)
	for i := range models {
		w.Shaped(fmt.Sprintf("m%03d", i), .5+.1*float64(i%7), 2+float64(i%11), 40+20*float64(i%9), 330*float64(gpus)/float64(models), []uint32{20, 40, 60, 100}[i%4])
		w.Models[i].MemoryBytes = 200 << 20
	}
	w.Interfering()
	w.Evaluations = 64
	return w.Snapshot
}

func beginnings() []policy.Policy {
	return []policy.Policy{static.New(), nexus.New(), gpulet.New(), shepherd.New(), symphony.New(), usher.New()}
}

// BenchmarkPlanOfCluster: one plan of each policy for a cluster of so many GPUs, four a node, without a plan in force and with one. Ten models fit on a GPU. Run it
// with -cpu 1.
func BenchmarkPlanOfCluster(b *testing.B) {
	for _, gpus := range []int{1000, 4000} {
		s := cluster(gpus/10, gpus)
		for _, p := range append(beginnings(), conch.New(beginnings()...)) {
			d, err := p.Describe(b.Context())
			require.NoError(b, err)
			inForce, err := p.Plan(b.Context(), s, indifferent{})
			require.NoError(b, err)
			for name, of := range map[string]*policy.Snapshot{"first": s, "again": again(s, inForce)} {
				b.Run(fmt.Sprintf("gpus=%d/%s/%s", gpus, d.GetName(), name), func(b *testing.B) {
					for b.Loop() {
						_, err := p.Plan(b.Context(), of, indifferent{})
						require.NoError(b, err)
					}
				})
			}
		}
	}
}

// BenchmarkPlan: one plan, with evaluations that cost nothing. Run it with -cpu 1.
func BenchmarkPlan(b *testing.B) {
	for _, size := range [][2]int{{9, 4}, {20, 24}, {300, 40}} {
		b.Run(fmt.Sprintf("models=%d/gpus=%d", size[0], size[1]), func(b *testing.B) {
			s := many(size[0], size[1])
			p := conch.New(beginnings()...)
			for b.Loop() {
				_, err := p.Plan(b.Context(), s, indifferent{})
				require.NoError(b, err)
			}
		})
	}
}
