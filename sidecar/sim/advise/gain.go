// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"fmt"
	"slices"

	"github.com/conch-serving/conch/sidecar/sim"
)

// Gain is Conch's rate over Triton's. All of it is 0 where there is no ratio: where Triton holds no rate at all, or where the repetitions are further apart
// than widest.
type Gain struct {
	// Ratio is what was simulated, the median over seeds.
	Ratio float64 `json:"ratio"`
	// Low and High are within what a measurement is expected: where those of Trust lay, and never less than the spread over seeds.
	Low  float64 `json:"ratio_low"`
	High float64 `json:"ratio_high"`
	// SpreadLow and SpreadHigh are the spread over seeds, wider by how exactly rates are searched.
	SpreadLow  float64 `json:"spread_low"`
	SpreadHigh float64 `json:"spread_high"`
	Trust      Trust   `json:"trust"`
}

// Trust says how far simulations were right: of so many loads, what was measured lay between Low and High times the ratio that was simulated.
type Trust struct {
	Loads int     `json:"loads"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// trustOf is what is known of Conch in front of a server over several GPUs, or with a server for each GPU. The figures mix.MIX.SIDE.of_advised of results/ are
// its source (docs/comparison.md), which a test compares: attached of mix0 and mix5 to mix7, own of mix0 and mix4 to mix7. The answer to mix3 does not count: what
// made it wrong was mended. With a mend of the simulation these become stale, and only a measurement of other loads renews them.
func trustOf(attached bool) Trust {
	if attached {
		return Trust{Loads: 4, Low: .58, High: 4.23}
	}
	return Trust{Loads: 5, Low: .40, High: 1.27}
}

func (t Trust) String() string {
	return fmt.Sprintf("measured results of %d loads lay between %.2f and %.2f times what was simulated", t.Loads, t.Low, t.High)
}

// widest is how many times the lowest ratio of the repetitions may be in the highest. Beyond it single bursts decide what a side holds, and a ratio is as large as
// the lowest rate is small.
const widest = 2

// gain compares the rates that two sides hold with the same seeds.
func gain(triton, conch *sim.Found, t Trust) Gain {
	g := Gain{Trust: t}
	if triton.Low == 0 {
		return g
	}
	var ratios []float64
	for i := range triton.All {
		ratios = append(ratios, conch.All[i].Rate/triton.All[i].Rate)
	}
	slices.Sort(ratios)
	n := len(ratios)
	if ratios[n-1] > widest*ratios[0] {
		return g
	}
	g.Ratio = (ratios[(n-1)/2] + ratios[n/2]) / 2
	g.SpreadLow, g.SpreadHigh = ratios[0]*(1-tolerance), ratios[n-1]*(1+tolerance)
	g.Low, g.High = min(g.SpreadLow, g.Ratio*t.Low), max(g.SpreadHigh, g.Ratio*t.High)
	return g
}

// within says what a measurement is expected to give, and why.
func (g Gain) within() string {
	return fmt.Sprintf("Expect %.2f to %.2f: %v", g.Low, g.High, g.Trust)
}

// sure reports whether one side holds more than the other where there is no ratio: 1 is Conch, -1 Triton, 0 that nobody knows.
func (g Gain) sure(triton, conch *sim.Found) int {
	switch {
	case conch.High*max(1, g.Trust.High) < triton.Low:
		return -1
	case conch.Low*min(1, g.Trust.Low) > triton.High:
		return 1
	}
	return 0
}
