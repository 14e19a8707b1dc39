// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queuetest_test

import (
	"math/rand/v2"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// arrivals merges the models' renewal processes.
type arrivals struct {
	gaps []func() float64 // per model, in seconds
	at   []float64        // each model's next arrival
}

func newArrivals(w Workload, rng *rand.Rand, perShare float64) *arrivals {
	a := &arrivals{}
	for i := range w.Models {
		rate := perShare
		if w.Shares != nil {
			rate *= w.Shares[i]
		}
		gap := func() float64 { return rng.ExpFloat64() / rate }
		if w.Shape > 0 {
			gap = distuv.Gamma{Alpha: w.Shape, Beta: w.Shape * rate, Src: rng}.Rand
		}
		a.gaps = append(a.gaps, gap)
		a.at = append(a.at, gap())
	}
	return a
}

// next returns the next arrival and its model.
func (a *arrivals) next() (at queue.Time, model int) {
	for i, t := range a.at {
		if t < a.at[model] {
			model = i
		}
	}
	at = queue.Time(a.at[model] * 1e9)
	a.at[model] += a.gaps[model]()
	return at, model
}
