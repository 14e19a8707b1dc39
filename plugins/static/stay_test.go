// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package static_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/static"
)

// coldStarts are a GPU with memory for ten of forty models, which requests ask for by Zipf's law.
type coldStarts struct {
	rate, load float64 // requests per second; seconds of a load
	stay       float64 // seconds for which a model that was loaded may not leave
}

// run passes so many seconds, asking the policy ten times a second while requests wait, and returns the part of the requests that found their
// model loaded, the mean and the 99th percentile of the others' waits in seconds, and how many models were thrown out within a second of their load.
func (c coldStarts) run(t *testing.T, seconds float64) (hits, mean, p99 float64, soon int) {
	t.Helper()
	const models, fit, tick = 40, 10, 0.1
	random := rand.New(rand.NewPCG(1, 2))
	weights := make([]float64, models)
	for i := range weights {
		weights[i] = 1 / float64(i+1)
		if i > 0 {
			weights[i] += weights[i-1]
		}
	}
	s := floor(1, nil)
	s.Nodes[0].Gpus[0].MemoryBytes = fit * 10
	for i := range models {
		s.Models = append(s.Models, demanded(fmt.Sprintf("m%02d", i), 0, 0))
	}
	used, ready := slices.Repeat([]float64{math.Inf(-1)}, models), slices.Repeat([]float64{math.Inf(1)}, models)
	waiting := make([][]float64, models)
	var waits []float64
	requests, found := 0.0, 0.0
	next := random.ExpFloat64() / c.rate
	for now := 0.0; now < seconds; now += tick {
		for i := range models { // what is loaded answers
			if ready[i] > now || len(waiting[i]) == 0 {
				continue
			}
			for _, since := range waiting[i] {
				waits = append(waits, now-since)
			}
			waiting[i], used[i] = nil, now
		}
		for ; next < now; next += random.ExpFloat64() / c.rate {
			i, _ := slices.BinarySearch(weights, random.Float64()*weights[models-1])
			requests++
			if ready[i] <= now {
				found++
				used[i] = next
			} else {
				waiting[i] = append(waiting[i], next)
			}
		}
		for i, m := range s.Models {
			m.RequestsUnderWay, m.IdleSeconds = uint64(len(waiting[i])), 0
			if now-ready[i] >= 0 && now-ready[i] < c.stay {
				m.RequestsUnderWay++
			}
			if !math.IsInf(used[i], -1) {
				m.IdleSeconds = max(1e-9, now-used[i])
			}
		}
		p, err := static.New().Plan(t.Context(), s, policy.NoEvaluation{})
		require.NoError(t, err)
		placed := map[string]bool{}
		for _, name := range where(p)["gpu0"] {
			placed[name] = true
		}
		for i, m := range s.Models {
			switch has := placed[m.GetName()]; {
			case has && math.IsInf(ready[i], 1):
				ready[i] = now + c.load
			case !has && !math.IsInf(ready[i], 1):
				if now-ready[i] < 1 {
					soon++
				}
				ready[i] = math.Inf(1)
			}
		}
		s.Current = p
	}
	for _, since := range slices.Concat(waiting...) { // at the least so long
		waits = append(waits, seconds-since)
	}
	slices.Sort(waits)
	for _, w := range waits {
		mean += w / float64(len(waits))
	}
	return found / requests, mean, waits[len(waits)*99/100], soon
}

// TestModelsOnDemandNeedNoMinimumStay: a model that was just loaded is the last that was used, so it leaves only where all others are loading,
// in use or newer. To keep it nevertheless takes its memory from models that requests wait for. (Not tested: with loads of 8 s and 5 requests a
// second, where hardly any request finds its model loaded, a stay of one second helps, and still nine in ten wait for ten seconds.)
func TestModelsOnDemandNeedNoMinimumStay(t *testing.T) {
	for _, c := range []struct {
		rate, load float64
		stays      []float64 // in seconds, that make it worse
		never      bool      // far fewer models are asked for during a load than memory holds: none leaves at once
	}{
		{rate: 1.5, load: 2, stays: []float64{8, 10}, never: true},
		{rate: 5, load: 0.5, stays: []float64{10}},
		{rate: 1.5, load: 8, stays: []float64{8, 10}},
	} {
		t.Run(fmt.Sprintf("%g requests a second, loads of %g s", c.rate, c.load), func(t *testing.T) {
			hits, mean, p99, soon := coldStarts{rate: c.rate, load: c.load}.run(t, 200)
			t.Logf("none: hit rate %.2f, waits of %.1f s, p99 %.1f s; %d thrown out within a second", hits, mean, p99, soon)
			for _, stay := range c.stays {
				hits, longer, worst, soon := coldStarts{rate: c.rate, load: c.load, stay: stay}.run(t, 200)
				t.Logf("%g s: hit rate %.2f, waits of %.1f s, p99 %.1f s; %d thrown out within a second", stay, hits, longer, worst, soon)
				require.Greater(t, longer, mean)
				require.Greater(t, worst, p99)
			}
			if c.never {
				require.Zero(t, soon)
			}
		})
	}
}
