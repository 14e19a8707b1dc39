// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package evaluate

import (
	"math"
	"math/rand/v2"

	"github.com/conch-serving/conch/plugins/policy"
)

// ahead is how many minutes a draw looks ahead at most: about as long as a plan stays.
const ahead = 5

// forecast draws rates of coming minutes from those of past ones: an autoregression of the first order, x(t+1) = mean + phi (x(t) - mean) + e, whose
// errors are drawn from those that it made in the past. Phi says by itself which of two rules past minutes ask for: near 0 a coming minute is like any of them, as
// where timers fire or functions run in bursts; near 1 it goes on from the last one, as where a rate drifts. A ratio between neighbouring minutes, in comparison, has
// a burst grow by as much again as it grew already.
type forecast struct {
	rates     []float64
	mean, phi float64
}

// leastMinutes are fewer rates than an autoregression is fitted to.
const leastMinutes = 2

// foresee fits a forecast to the history of a name; nil where there is none.
func foresee(s *policy.Snapshot, name string) *forecast {
	for _, h := range s.GetHistory() {
		if h.GetModel() == name && len(h.GetRates()) >= leastMinutes {
			return fit(h.GetRates())
		}
	}
	return nil
}

// fit is least squares, corrected for the bias that these have of few minutes (Kendall 1954): phi comes out too low by about (1+3 phi)/n.
func fit(rates []float64) *forecast {
	f := &forecast{rates: rates}
	n := float64(len(rates))
	for _, r := range rates {
		f.mean += r / n
	}
	together, squares := 0.0, 0.0
	for i, r := range rates[:len(rates)-1] {
		together += (r - f.mean) * (rates[i+1] - f.mean)
		squares += (r - f.mean) * (r - f.mean)
	}
	if squares > 0 {
		f.phi = max(0, together/squares)
		f.phi = min(1, f.phi+(1+3*f.phi)/n)
	}
	return f
}

// draw is the rate of a coming minute, 1 to [ahead] minutes after the last that is known.
func (f *forecast) draw(random *rand.Rand) float64 {
	rate := f.rates[len(f.rates)-1]
	for range 1 + random.IntN(ahead) {
		rate = max(0, f.mean+f.phi*(rate-f.mean)+f.missed(random.IntN(len(f.rates))))
	}
	return rate
}

// missed is the error of a past minute. The first, of which no minute before is known, counts by its distance from the mean with the variance that an error has
// where that of rates is the same throughout.
func (f *forecast) missed(minute int) float64 {
	if minute == 0 {
		return math.Sqrt(1-f.phi*f.phi) * (f.rates[0] - f.mean)
	}
	return f.rates[minute] - f.mean - f.phi*(f.rates[minute-1]-f.mean)
}
