// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/conch-serving/conch/internal/loadgen"
)

// Limit is the fraction of bad requests up to which a system holds a rate.
const Limit = 0.01

// Contest compares setups that serve the same models on the same emulated GPUs under the same load and the same accounting. Where several
// servers have a model, the caller sends each request to the one with the fewest outstanding.
type Contest struct {
	Models  Models
	GPUs    int
	GPUType string
	// Server is the path of tritonserver, or empty for minitriton: in this process for Triton, inside conch for Conch.
	Server string
	// Bin is the directory of conch and conch-policies.
	Bin string
	// Warmup and Measure are the lengths of one trial.
	Warmup, Measure time.Duration
	// Requests is how many requests a trial counts, whatever its rate, instead of Measure and Confirm, or as many as come within Measure where that is set; 0
	// means that those count.
	Requests int
	// Arrivals draws what is sent at a rate in so much time, in order; nil: Poisson arrivals, each for a model by its weight.
	Arrivals func(rate float64, seed uint64, length time.Duration) ([]loadgen.Arrival, error)
	// Confirm is the length of the trials, with other arrivals, that confirm the rate that a search found; 0 means that none do. A rate is
	// confirmed if at most Limit of the requests of every model are bad; a search, whose trials are too short for that, looks at all models
	// together.
	Confirm time.Duration
	// Together confirms a rate if at most Limit of all requests are bad, whichever model they were for: where what is compared differs in how
	// many models it has.
	Together bool
	// AtLeast is the least length of a trial that counts Requests: a queue that grows is not late before it is as long as the SLO.
	AtLeast time.Duration
	// Uncancelled has no request cancelled before it is a minute late (loadgen.Load.Uncancelled).
	Uncancelled bool
	// Every asks in a search, too, that at most Limit of the requests of every model are bad. With Arrivals, a trial ends where one has more.
	Every bool
	// Twice tries a rate once more, with other arrivals, before it counts as too high: where two late requests of a rare model end a trial.
	Twice bool
	// Learn is for how long each setup that was started is offered a part of the rate that its search begins at, before the first trial, and
	// nothing counts: so that it is not judged by what it learnt of a machine on which servers were being started. 0 means not at all.
	Learn time.Duration
	// Step is the factor between the first rates of a search, 1.25 if 0; Resolution ends it, .04 if 0.
	Step, Resolution float64
	Seed             uint64
	// Progress is called with a line for everything that happens.
	Progress func(line string)

	worstLateness time.Duration
}

// Lateness is the worst Trial.Lateness so far, and the part of the shortest SLO that it is: if that is not small, the machine was too busy
// for the times that it emulates.
func (c *Contest) Lateness() (late time.Duration, ofSLO float64) {
	for _, m := range c.Models.Load() {
		ofSLO = max(ofSLO, float64(c.worstLateness)/float64(m.SLO))
	}
	return c.worstLateness, ofSLO
}

// Standing is what a setup made of one rate.
type Standing struct {
	Setup Setup
	*Trial
}

// Held is the goodput that belongs to the rate: without the chance in how many requests arrived during this one trial.
func (s Standing) Held() float64 { return s.Rate * (1 - s.Bad()) }

// load is the load of one trial. Arrivals differ between rates and rounds, not between systems.
func (c *Contest) load(rate float64) loadgen.Load {
	length := c.Measure
	if c.Requests > 0 {
		length = time.Duration(float64(c.Requests) / rate * float64(time.Second))
		if c.Measure > 0 {
			length = min(length, c.Measure)
		}
		length = max(length, c.AtLeast)
	}
	l := loadgen.Load{Models: c.Models.Load(), Rate: rate, Warmup: c.Warmup, Measure: length, Seed: c.Seed, Patience: time.Second}
	for _, m := range l.Models {
		l.Patience = max(l.Patience, m.SLO) // what is answered after that is late anyway
	}
	if l.Uncancelled = c.Uncancelled; c.Uncancelled {
		l.Patience += time.Minute
	}
	return l
}

// At offers one rate to each setup and returns the standing with the best goodput.
func (c *Contest) At(ctx context.Context, setups []Setup, rate float64) (best Standing, err error) {
	for _, setup := range setups {
		err := c.with(ctx, setup, func(s System) error {
			standing, err := c.TrialOf(ctx, setup, s, rate)
			if err == nil && (best.Trial == nil || standing.Goodput() > best.Goodput()) {
				best = standing
			}
			return err
		})
		if err != nil {
			return Standing{}, err
		}
	}
	return best, nil
}

// TrialOf offers one rate to a setup that was started as s.
func (c *Contest) TrialOf(ctx context.Context, setup Setup, s System, rate float64) (Standing, error) {
	trial, err := c.trial(ctx, title(setup), s, c.load(rate))
	return Standing{Setup: setup, Trial: trial}, err
}

// Bad offers one rate to a setup, once it has learnt, the given number of times with other arrivals each time, and returns the part of the requests
// that was bad each time.
func (c *Contest) Bad(ctx context.Context, setup Setup, rate float64, trials int) (bad []float64, err error) {
	err = c.with(ctx, setup, func(s System) error {
		if err := c.learn(ctx, s, rate); err != nil {
			return err
		}
		for i := range trials {
			load := c.load(rate)
			load.Seed, load.Measure = c.Seed+uint64(i+3)*1_000_003, cmp.Or(c.Confirm, c.Measure) //nolint:gosec // few
			trial, err := c.trial(ctx, title(setup), s, load)
			if err != nil {
				return err
			}
			bad = append(bad, c.bad(trial))
		}
		return nil
	})
	return bad, err
}

// AllHold is the highest rate, from the given one down in steps of 3%, that a setup holds in each of the given number of trials with other arrivals each.
func (c *Contest) AllHold(ctx context.Context, setup Setup, rate float64, trials int) (held float64, err error) {
	for least := rate / 2; rate > least; rate /= confirmStep {
		bad, err := c.Bad(ctx, setup, rate, trials)
		if err != nil {
			return 0, err
		}
		if slices.Max(bad) <= Limit {
			return rate, nil
		}
	}
	return 0, fmt.Errorf("rig: %s: no rate above %.0f req/s was held by all of %d trials", title(setup), rate, trials)
}

// Highest searches the highest rate that the best of the setups holds. The first is searched from start on; each other has to hold a little
// more than the best so far to be searched too, so that the most promising belongs first. A setup whose servers end under its load is left out; it is
// [ErrEnded] if all are.
func (c *Contest) Highest(ctx context.Context, setups []Setup, start float64) (best Standing, err error) {
	var ended error
	for _, setup := range setups {
		search := c.search(start)
		if best.Trial != nil {
			search.Start, search.Step, search.Least = 1.04*best.Rate, 1.1, best.Rate
		}
		err := c.with(ctx, setup, func(s System) error {
			if err := c.learn(ctx, s, search.Start); err != nil {
				return err
			}
			found, err := c.highest(ctx, title(setup), s, search)
			if err == nil && found != nil && (best.Trial == nil || found.Rate > best.Rate) {
				best = Standing{Setup: setup, Trial: found}
			}
			return err
		})
		if errors.Is(err, ErrEnded) {
			c.Progress(fmt.Sprintf("%v; it is left out", err))
			ended = err
			continue
		}
		if err != nil {
			return Standing{}, err
		}
	}
	if best.Trial == nil && ended != nil {
		return Standing{}, ended
	}
	if best.Trial == nil {
		return Standing{}, holdsNothing(setups[0], start)
	}
	return best, nil
}

// Holds finds the highest rate that a setup holds near one that it may hold: trials of the same length up or down from there, until one holds and the next
// higher one does not. All trials count as those that confirm.
func (c *Contest) Holds(ctx context.Context, setup Setup, from float64) (best Standing, err error) {
	err = c.with(ctx, setup, func(s System) error {
		best, err = c.HoldsOf(ctx, setup, s, from)
		return err
	})
	return best, err
}

// HoldsOf is Holds of a setup that was started as s.
func (c *Contest) HoldsOf(ctx context.Context, setup Setup, s System, from float64) (Standing, error) {
	if err := c.learn(ctx, s, from); err != nil {
		return Standing{}, err
	}
	held, err := confirm(from, from/100, c.bad, func(rate float64) (*Trial, error) {
		load := c.load(rate)
		load.AbortAbove = Limit
		return c.trial(ctx, title(setup), s, load)
	})
	return Standing{Setup: setup, Trial: held}, err
}

// HighestOf searches the highest rate that a setup holds which was started as s, once it has learnt.
func (c *Contest) HighestOf(ctx context.Context, setup Setup, s System, start float64) (Standing, error) {
	if err := c.learn(ctx, s, start); err != nil {
		return Standing{}, err
	}
	found, err := c.highest(ctx, title(setup), s, c.search(start))
	if err == nil && found == nil {
		err = holdsNothing(setup, start)
	}
	return Standing{Setup: setup, Trial: found}, err
}

// ErrHoldsNothing is a search's that began at a hundred times the lowest rate that it tries, and found none that holds.
var ErrHoldsNothing = errors.New("no rate holds")

func holdsNothing(s Setup, start float64) error {
	return fmt.Errorf("rig: %s does not hold even %.3g req/s: %w", title(s), start/100, ErrHoldsNothing)
}

// learnAt is the part of a search's first rate that is offered to learn from: enough for batches of all sizes.
const learnAt = .7

// settler is a system that may go on starting servers once it serves.
type settler interface {
	// Settle returns once it has all that it wants.
	Settle(ctx context.Context) error
}

// learn waits until a system has settled, and offers it a load that does not count.
func (c *Contest) learn(ctx context.Context, s System, rate float64) error {
	if settling, ok := s.(settler); ok {
		if err := settling.Settle(ctx); err != nil {
			return err
		}
	}
	if c.Learn == 0 {
		return nil
	}
	load := c.load(learnAt * rate)
	load.Warmup, load.Measure, load.Seed = 0, c.Learn, c.Seed+2_000_003
	_, err := c.offer(ctx, s, load)
	return err
}

// offer sends a load, with the contest's arrivals.
func (c *Contest) offer(ctx context.Context, s System, l loadgen.Load) (*Trial, error) {
	if c.Arrivals != nil {
		given, err := c.Arrivals(l.Rate, l.Seed, l.Warmup+l.Measure)
		if err != nil {
			return nil, fmt.Errorf("rig: arrivals: %w", err)
		}
		l.Given = given
	}
	return measure(ctx, s, l, c.Models.tensor())
}

func (c *Contest) search(start float64) loadgen.Search {
	return loadgen.Search{Start: start, Step: cmp.Or(c.Step, 1.25), Resolution: cmp.Or(c.Resolution, 0.04)}
}

func title(s Setup) string { return fmt.Sprintf("%s, %v", s.System(), s) }

// highest returns the trial of the highest rate that the system holds, or nil if the search gave up.
func (c *Contest) highest(ctx context.Context, name string, s System, search loadgen.Search) (*Trial, error) {
	trials := map[float64]*Trial{}
	holds := func(ctx context.Context, rate float64, seed uint64) (bool, error) {
		load := c.load(rate)
		load.AbortAbove, load.Seed = Limit, seed
		if c.Every {
			load.AbortEach = Limit
		}
		trial, err := c.trial(ctx, name, s, load)
		if err != nil {
			return false, err
		}
		trials[rate] = trial
		if c.Every {
			return !trial.Aborted && c.bad(trial) <= Limit, nil
		}
		return trial.Bad() <= Limit, nil
	}
	rate, err := search.Highest(ctx, func(ctx context.Context, rate float64) (bool, error) {
		ok, err := holds(ctx, rate, c.Seed)
		if err != nil || ok || !c.Twice {
			return ok, err
		}
		return holds(ctx, rate, c.Seed+3_000_017)
	})
	if err != nil || rate == 0 {
		return nil, err
	}
	if c.Confirm == 0 {
		return trials[rate], nil
	}
	return confirm(rate, search.Start/100, c.bad, func(rate float64) (*Trial, error) {
		load := c.load(rate)
		load.Seed, load.Measure, load.AbortAbove = c.Seed+1_000_003, c.Confirm, Limit
		return c.trial(ctx, name+", confirming", s, load)
	})
}

// bad is the fraction of bad requests by which a rate is confirmed.
func (c *Contest) bad(t *Trial) float64 {
	if c.Together {
		return t.Bad()
	}
	return t.WorstBad()
}

// confirmStep is between the rates of two confirming trials.
const confirmStep = 1.03

// confirm tries the rate that a search found, and goes down until one holds or, if the first holds, up until one does not: a search may have
// settled too low as well as too high. It returns the highest that held.
func confirm(rate, least float64, bad func(*Trial) float64, try func(rate float64) (*Trial, error)) (*Trial, error) {
	var held *Trial
	for step := 1.0; ; rate *= step {
		if rate < least {
			return nil, errors.New("rig: no rate was confirmed: at every rate more than 1% of the requests, or of a model's, were bad")
		}
		trial, err := try(rate)
		if err != nil {
			return nil, err
		}
		switch holds := !trial.Aborted && bad(trial) <= Limit; {
		case holds && step < 1:
			return trial, nil
		case holds:
			held, step = trial, confirmStep
		case held != nil:
			return held, nil
		default:
			step = 1 / confirmStep
		}
	}
}

func (c *Contest) trial(ctx context.Context, name string, s System, l loadgen.Load) (*Trial, error) {
	rate := l.Rate
	trial, err := c.offer(ctx, s, l)
	if err != nil {
		return nil, err
	}
	if _, wrong, first := trial.Faults(); wrong > 0 {
		return nil, fmt.Errorf("rig: %s gave %d wrong answers, the first: %w", name, wrong, first)
	}
	bad := fmt.Sprintf("%.2f%% bad, worst model %.2f%%", 100*trial.Bad(), 100*trial.WorstBad())
	if trial.Aborted {
		bad = "too many bad, stopped early"
	}
	trial.Rate = rate // what was asked for: given arrivals have more or fewer by chance
	c.Progress(fmt.Sprintf("%s at %.0f req/s: %s", name, l.Rate, bad))
	c.worstLateness = max(c.worstLateness, trial.Lateness)
	return trial, nil
}
