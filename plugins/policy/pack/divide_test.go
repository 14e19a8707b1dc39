// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
)

// everywhere puts every model on every GPU.
func everywhere(b packtest.Builder) (*pack.Floor, *policy.Plan) {
	f := pack.New(b.Snapshot)
	for _, h := range f.Hosts {
		part := f.Open(h, 100)
		for _, m := range b.Models {
			f.Put(part, m.GetName(), 0, 0)
		}
	}
	return f, f.Plan("everywhere", "1", nil)
}

func ratesOf(p *policy.Plan, model string) (all []float64) {
	for _, part := range p.PartitionsOf(model) {
		for _, in := range part.GetInstances() {
			if in.GetModel() == model {
				all = append(all, math.Round(in.GetRate()))
			}
		}
	}
	return all
}

// A batch of b rows takes b + 4 ms and has to be done twice in 40 ms: 16 rows of each 20 ms, 800 rows a second.
func TestLoadsAreDivided(t *testing.T) {
	f, p := everywhere(packtest.World(2).Line("a", 1, 4, 40, 300).Line("b", 1, 4, 40, 200))
	pack.Divide(f.Index, p)
	require.Equal(t, []float64{150, 150}, ratesOf(p, "a"))
	require.Equal(t, []float64{100, 100}, ratesOf(p, "b"))
	require.Empty(t, p.GetReasons())

	f, p = everywhere(packtest.World(2).Line("a", 1, 4, 40, 2000))
	pack.Divide(f.Index, p)
	require.Equal(t, []float64{800, 800}, ratesOf(p, "a"), "no more than they carry")
	require.Contains(t, fmt.Sprint(p.GetReasons()), "400 rows/s less than it has")

	f, p = everywhere(packtest.World(2).Line("a", 1, 4, 40, 300).Line("b", 1, 4, 40, 1200))
	p.GetPartitions()[0].GetInstances()[0].Rate = 300 // the policy has all of a there
	pack.Divide(f.Index, p)
	require.Equal(t, []float64{300, 0}, ratesOf(p, "a"))
	require.Equal(t, []float64{462, 738}, ratesOf(p, "b"), "by what each has room for: 500 and 800")
	pack.Divide(f.Index, p)
	require.Equal(t, []float64{462, 738}, ratesOf(p, "b"), "what is said stays")

	f, p = everywhere(packtest.World(2).Line("a", 1, 4, 40, 300))
	pack.Divide(f.Index, p, "a")
	require.Equal(t, []float64{0, 0}, ratesOf(p, "a"), "it was excepted")
	b := packtest.World(2).Line("a", 1, 4, 40, 300)
	b.Profiles = nil
	f, p = everywhere(b)
	pack.Divide(f.Index, p)
	require.Equal(t, []float64{150, 150}, ratesOf(p, "a"), "equal parts where nothing is known")

	b = packtest.World(2).Line("a", 1, 4, 40, 2000)
	b.Nodes[0].Gpus[1].Type = "Y"
	f, p = everywhere(b)
	pack.Divide(f.Index, p)
	require.Equal(t, []float64{800, 1200}, ratesOf(p, "a"), "what is known of a GPU counts, though nothing is known of the other")
}

// Whatever the loads, no partition is to carry more than it can, and no model more than it has; and what is left over has nowhere to go.
func TestNoMoreIsDividedThanThereIsRoomFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := packtest.World(rapid.IntRange(1, 3).Draw(t, "GPUs"))
		for i := range rapid.IntRange(1, 4).Draw(t, "models") {
			b = b.Line(fmt.Sprintf("m%d", i), rapid.Float64Range(.1, 3).Draw(t, "alpha"), 4, 40, rapid.Float64Range(0, 2000).Draw(t, "rate"))
		}
		f, p := everywhere(b)
		pack.Divide(f.Index, p)
		full := true
		for _, part := range p.GetPartitions() {
			busy := 0.0
			for _, in := range part.GetInstances() {
				profile := f.UsableProfile(in.GetModel(), "X")
				job := pack.Job{SLO: 40e3, Limit: 32, Latency: func(batch uint32) (float64, bool) { return profile.Upper(batch, 100) }}
				_, most, ok := job.Saturated()
				require.True(t, ok)
				busy += in.GetRate() / most
			}
			require.LessOrEqual(t, busy, 1+1e-6)
			full = full && busy > .99
		}
		for _, m := range b.Models {
			sum := 0.0
			for _, part := range p.GetPartitions() {
				for _, in := range part.GetInstances() {
					if in.GetModel() == m.GetName() {
						sum += in.GetRate()
					}
				}
			}
			require.LessOrEqual(t, sum, m.GetRate()*(1+1e-9))
			require.True(t, full || sum >= .99*m.GetRate(), "%s: %g of %g, and there is room", m.GetName(), sum, m.GetRate())
		}
	})
}
