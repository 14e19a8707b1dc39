// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Renewal is a generated stream of one model.
type Renewal struct {
	// Model is the Arrival.Model of its arrivals.
	Model int32
	// Rows of every request; below 1 counts as 1.
	Rows int32
	// Shape of the Gamma distribution of times between arrivals, whose mean is 1/rate and squared coefficient of variation 1/Shape: 1 is
	// Poisson, .05 comes in bursts of tens (AlpaServe and Shepherd vary it). 0 means 1.
	Shape float64
	// Curve is the rate over time.
	Curve Curve
	// Random is the stream's own generator.
	Random *rand.Rand
}

// Stream starts the stream. Arrivals under a rate that changes are those of a unit rate on a clock that runs as fast as the rate, so that
// the shape is kept and a change of rate takes effect at once, not with the arrival after it.
func (r Renewal) Stream() (Stream, error) {
	shape := r.Shape
	if shape == 0 {
		shape = 1
	}
	if !(shape > 0) || math.IsInf(shape, 0) {
		return nil, fmt.Errorf("workload: Gamma shape %g: it must be above 0; 1 is Poisson, .1 bursty", r.Shape)
	}
	if err := r.Curve.check(); err != nil {
		return nil, err
	}
	s := &renewal{model: r.Model, rows: max(1, r.Rows), shape: shape, rng: r.Random, pieces: r.Curve.pieces}
	if shape != 1 {
		s.gamma = newGamma(shape)
	}
	s.enter(0)
	return s, nil
}

type renewal struct {
	model, rows int32
	shape       float64
	gamma       gamma
	rng         *rand.Rand
	pieces      []piece
	i           int
	at          float64 // seconds
	rate, until float64 // of the current piece
}

func (s *renewal) enter(i int) {
	s.i, s.rate, s.until = i, s.pieces[i].rate, math.Inf(1)
	if i+1 < len(s.pieces) {
		s.until = s.pieces[i+1].from
	}
}

func (s *renewal) Next(a *Arrival) bool {
	var gap float64 // at unit rate
	if s.shape == 1 {
		gap = s.rng.ExpFloat64()
	} else {
		gap = s.gamma.draw(s.rng)
	}
	for gap > (s.until-s.at)*s.rate || s.rate == 0 {
		if s.i+1 == len(s.pieces) {
			return false // the rate is 0 from here on
		}
		gap -= (s.until - s.at) * s.rate
		s.at = s.until
		s.enter(s.i + 1)
	}
	s.at += gap / s.rate
	*a = Arrival{At: time.Duration(s.at * 1e9), Model: s.model, Rows: s.rows}
	return true
}

// gamma draws with mean 1 by Marsaglia and Tsang's method ("A simple method for generating gamma variables", 2000), with their boost for
// shapes below 1.
type gamma struct{ shape, d, c float64 }

func newGamma(shape float64) gamma {
	k := shape
	if k < 1 {
		k++
	}
	d := k - 1./3
	return gamma{shape, d, 1 / math.Sqrt(9*d)}
}

func (g gamma) draw(rng *rand.Rand) float64 {
	for {
		x := rng.NormFloat64()
		v := 1 + g.c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		u := 1 - rng.Float64() // never 0
		if math.Log(u) >= x*x/2+g.d-g.d*v+g.d*math.Log(v) {
			continue
		}
		value := g.d * v
		if g.shape < 1 {
			value *= math.Pow(1-rng.Float64(), 1/g.shape)
		}
		return value / g.shape
	}
}

// Zipf divides a total rate among n models by popularity: the i-th gets a part in proportion to 1/i^s.
func Zipf(n int, s, total float64) []float64 {
	rates := make([]float64, n)
	sum := 0.0
	for i := range rates {
		rates[i] = math.Pow(float64(i+1), -s)
		sum += rates[i]
	}
	for i := range rates {
		rates[i] *= total / sum
	}
	return rates
}

// Poisson draws from the Poisson distribution, by Knuth's product of uniform numbers; means are small.
func Poisson(random *rand.Rand, mean float64) int {
	n := 0
	for limit, product := math.Exp(-mean), random.Float64(); product > limit; n++ {
		product *= random.Float64()
	}
	return n
}
