// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Search says how to look for the highest rate that holds.
type Search struct {
	// Run measures a rate, in requests per second of all models together, under a seed.
	Run func(ctx context.Context, rate float64, seed uint64) (*Result, error)
	// Seeds are searched one by one; at least one.
	Seeds []uint64
	// Guess is where the first seed's search begins; 0 means 100. The others begin where the one before ended.
	Guess float64
	// Bad is the largest bad rate that holds; 0 means .01. Overall compares the bad rate of all requests together, otherwise that of the
	// model that fares worst counts.
	Bad     float64
	Overall bool
	// Tolerance ends a bisection, relative to the rate; 0 means .005.
	Tolerance float64
	// Step is by what the first seed's search goes up or down from the guess until something held and something failed; 0 means 1.25. Later
	// steps are longer.
	Step float64
	// Most ends a search upwards; 0 means 1e9.
	Most float64
	// Trying is called with a rate before it is run; it may be nil.
	Trying func(rate float64, seed uint64)
}

// Trial is a rate that was tried.
type Trial struct {
	Rate    float64 `json:"rate"`
	BadRate float64 `json:"bad_rate"`
	Holds   bool    `json:"holds"`
}

// Highest is what a search found with one seed.
type Highest struct {
	Seed uint64 `json:"seed"`
	// Rate is the largest rate tried that held, with no failure at or below it; 0 where none did. Fails is the least that failed.
	Rate  float64 `json:"rate"`
	Fails float64 `json:"fails"`
	// Trials are in order of rate.
	Trials []Trial `json:"trials"`
}

// Found is the highest rate that holds, in requests per second, by searches with all seeds.
type Found struct {
	// Rate is the median over the seeds, Low the least and High the greatest of them; All has each seed's search.
	Rate float64   `json:"rate"`
	Low  float64   `json:"low"`
	High float64   `json:"high"`
	All  []Highest `json:"all"`
}

// errSearch is wrapped by errors about searches that make no sense.
var errSearch = errors.New("sim: search")

// Goodput finds the highest rate that holds, by bisection. A bad rate need not grow with the rate: a discipline can fail at a low rate and
// hold at a higher one. Therefore what was found is probed below too, at nine, seven and five tenths, and where one of these fails the
// search goes on below that: a rate is only called held if nothing that was tried at or below it failed.
func Goodput(ctx context.Context, s Search) (*Found, error) {
	if s.Run == nil || len(s.Seeds) == 0 {
		return nil, fmt.Errorf("%w: it needs something to run and a seed", errSearch)
	}
	def := func(v *float64, value float64) {
		if *v == 0 {
			*v = value
		}
	}
	def(&s.Guess, 100)
	def(&s.Bad, .01)
	def(&s.Tolerance, .005)
	def(&s.Step, longStep)
	def(&s.Most, 1e9)
	if !(s.Guess > 0 && s.Bad > 0 && s.Bad < 1 && s.Tolerance > 0) {
		return nil, fmt.Errorf("%w: guess %g, bad rate %g and tolerance %g must be above 0, the bad rate below 1", errSearch, s.Guess, s.Bad, s.Tolerance)
	}
	found := &Found{}
	guess := s.Guess
	var rates []float64
	for i, seed := range s.Seeds {
		b := &bisection{Search: &s, ctx: ctx, seed: seed, step: s.Step}
		if i > 0 {
			b.step = min(s.Step, nextStep)
		}
		h, err := b.highest(guess)
		if err != nil {
			return nil, err
		}
		if h.Rate > 0 {
			guess = h.Rate
		}
		rates = append(rates, h.Rate)
		found.All = append(found.All, *h)
	}
	slices.Sort(rates)
	n := len(rates)
	found.Low, found.High, found.Rate = rates[0], rates[n-1], (rates[(n-1)/2]+rates[n/2])/2
	return found, nil
}

type bisection struct {
	*Search
	ctx    context.Context
	seed   uint64
	trials []Trial
	step   float64 // by what the rate goes up or down until something held and something failed
}

// A first seed knows little of where to search, the others begin at what the one before found. Each step is twice as far as the one before, up
// to the longest.
const longStep, nextStep = 1.25, 1.02

func (b *bisection) stride() float64 {
	step := b.step
	b.step = min(longStep, step*step)
	return step
}

// try runs a rate, once.
func (b *bisection) try(rate float64) (bool, error) {
	for _, t := range b.trials {
		if t.Rate == rate {
			return t.Holds, nil
		}
	}
	if b.Trying != nil {
		b.Trying(rate, b.seed)
	}
	r, err := b.Run(b.ctx, rate, b.seed)
	if err != nil {
		return false, fmt.Errorf("%w at %g req/s with seed %d: %w", errSearch, rate, b.seed, err)
	}
	bad := r.WorstBadRate()
	if b.Overall {
		bad = r.Total.BadRate
	}
	// Where nothing arrived nothing was held.
	holds := bad <= b.Bad && r.Total.Arrivals > 0
	b.trials = append(b.trials, Trial{Rate: rate, BadRate: bad, Holds: holds})
	return holds, nil
}

// least is the smallest rate that fails: far below it nothing is worth finding.
const least = 1e-3

// standing is the largest rate that held below the smallest that failed, and the latter.
func (b *bisection) standing() (holds, fails float64) {
	fails = math.Inf(1)
	for _, t := range b.trials {
		if !t.Holds {
			fails = min(fails, t.Rate)
		}
	}
	for _, t := range b.trials {
		if t.Holds && t.Rate < fails {
			holds = max(holds, t.Rate)
		}
	}
	return holds, fails
}

func (b *bisection) highest(guess float64) (*Highest, error) {
	next := guess
	for {
		if _, err := b.try(next); err != nil {
			return nil, err
		}
		holds, fails := b.standing()
		switch {
		case math.IsInf(fails, 1):
			if holds >= b.Most {
				return b.end(), nil
			}
			next = min(b.Most, holds*b.stride())
		case holds == 0:
			if fails < least {
				return b.end(), nil
			}
			next = fails / b.stride()
		case fails-holds > b.Tolerance*fails:
			next = math.Sqrt(holds * fails)
		default:
			suspect := false
			for _, part := range []float64{.9, .7, .5} {
				ok, err := b.try(part * holds)
				if err != nil {
					return nil, err
				}
				if !ok {
					suspect = true
					break
				}
			}
			if !suspect {
				return b.end(), nil
			}
			if holds, fails = b.standing(); holds > 0 {
				next = math.Sqrt(holds * fails)
			} else {
				next = fails / longStep
			}
		}
	}
}

func (b *bisection) end() *Highest {
	h := &Highest{Seed: b.seed, Trials: b.trials}
	h.Rate, h.Fails = b.standing()
	if math.IsInf(h.Fails, 1) {
		h.Fails = 0 // nothing failed
	}
	slices.SortFunc(h.Trials, func(x, y Trial) int {
		if x.Rate < y.Rate {
			return -1
		}
		return 1
	})
	return h
}
