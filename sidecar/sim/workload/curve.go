// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Curve is a rate over time, constant in pieces. Its zero value is rate 0.
type Curve struct{ pieces []piece }

// piece is a rate from a second on.
type piece struct{ from, rate float64 }

// Constant is the same rate, in requests per second, for ever.
func Constant(rate float64) Curve { return Curve{[]piece{{0, rate}}} }

// Step is a rate from a moment on.
type Step struct {
	From time.Duration
	Rate float64
}

// Steps changes the rate at given moments, which rise; before the first the rate is 0.
func Steps(steps ...Step) (Curve, error) {
	c := Curve{[]piece{{0, 0}}}
	for i, s := range steps {
		if s.From < 0 || i > 0 && s.From <= steps[i-1].From {
			return Curve{}, fmt.Errorf("workload: step %d begins at %v: steps begin at 0 or later, each after the one before", i+1, s.From)
		}
		c = c.add(s.From.Seconds(), s.Rate)
	}
	return c, c.check()
}

func (c Curve) add(from, rate float64) Curve {
	if last := len(c.pieces) - 1; c.pieces[last].from == from {
		c.pieces = slices.Clone(c.pieces)
		c.pieces[last].rate = rate
		return c
	}
	return Curve{append(slices.Clone(c.pieces), piece{from, rate})}
}

// Diurnal describes a day and night of load, with spikes.
type Diurnal struct {
	// Mean rate over a period, without spikes.
	Mean float64
	// Swing is by which part of the mean the rate goes up and down, from 0 to 1.
	Swing float64
	// Period of the wave; it begins at the mean, rising. Pieces is how many steps approximate it; 0 means 96.
	Period time.Duration
	Pieces int
	// Spikes is how many spikes there are per period on average (they come as a Poisson process), Height by what they multiply the rate, and
	// Length how long each lasts.
	Spikes float64
	Height float64
	Length time.Duration
}

// Curve draws the spikes and returns the rate up to a moment; after it the rate stays.
func (d Diurnal) Curve(until time.Duration, random *rand.Rand) (Curve, error) {
	pieces := d.Pieces
	if pieces == 0 {
		pieces = 96
	}
	switch {
	case d.Period <= 0 || pieces < 1:
		return Curve{}, fmt.Errorf("workload: a diurnal load needs a period above 0 and at least one piece, not %v and %d", d.Period, pieces)
	case !(d.Swing >= 0 && d.Swing <= 1):
		return Curve{}, fmt.Errorf("workload: the swing %g of a diurnal load is not from 0 to 1", d.Swing)
	case d.Spikes < 0 || d.Spikes > 0 && (d.Height <= 0 || d.Length <= 0):
		return Curve{}, fmt.Errorf("workload: spikes of a diurnal load need a height and a length above 0, not %g and %v", d.Height, d.Length)
	}
	width := d.Period.Seconds() / float64(pieces)
	if until.Seconds()/width > 1e6 {
		return Curve{}, fmt.Errorf("workload: a diurnal load of %v in pieces of %gs has more than a million pieces", until, width)
	}
	var spikes [][2]float64
	if d.Spikes > 0 {
		for at := 0.0; ; {
			at += random.ExpFloat64() * d.Period.Seconds() / d.Spikes
			if at >= until.Seconds() {
				break
			}
			spikes = append(spikes, [2]float64{at, at + d.Length.Seconds()})
		}
	}
	bounds := []float64{0}
	for i := 1; float64(i)*width < until.Seconds(); i++ {
		bounds = append(bounds, float64(i)*width)
	}
	for _, s := range spikes {
		bounds = append(bounds, s[0], s[1])
	}
	slices.Sort(bounds)
	bounds = slices.Compact(bounds)
	c := Curve{}
	for _, from := range bounds {
		middle := (math.Floor(from/width+1e-9) + .5) * width
		rate := d.Mean * (1 + d.Swing*math.Sin(2*math.Pi*middle/d.Period.Seconds()))
		for _, s := range spikes {
			if from >= s[0] && from < s[1] {
				rate *= d.Height
				break // spikes that overlap are one
			}
		}
		c.pieces = append(c.pieces, piece{from, rate})
	}
	return c, c.check()
}

// Scaled multiplies the rate.
func (c Curve) Scaled(by float64) Curve {
	scaled := Curve{slices.Clone(c.pieces)}
	for i := range scaled.pieces {
		scaled.pieces[i].rate *= by
	}
	return scaled
}

// At is the rate at a moment.
func (c Curve) At(t time.Duration) float64 {
	rate := 0.0
	for _, p := range c.pieces {
		if p.from > t.Seconds() {
			break
		}
		rate = p.rate
	}
	return rate
}

// Mean is the average rate from 0 to a moment.
func (c Curve) Mean(until time.Duration) float64 {
	sum := 0.0
	for i, p := range c.pieces {
		end := until.Seconds()
		if i+1 < len(c.pieces) {
			end = min(end, c.pieces[i+1].from)
		}
		sum += max(0, end-p.from) * p.rate
	}
	if until <= 0 {
		return c.At(0)
	}
	return sum / until.Seconds()
}

func (c Curve) check() error {
	if len(c.pieces) == 0 {
		return errors.New("workload: a curve without a rate; use Constant, Steps or Diurnal")
	}
	for _, p := range c.pieces {
		if !(p.rate >= 0) || math.IsInf(p.rate, 0) {
			return fmt.Errorf("workload: the rate %g is not a number of requests per second", p.rate)
		}
	}
	return nil
}
