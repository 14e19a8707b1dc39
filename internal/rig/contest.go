// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/zoo"
)

// Limit is the fraction of bad requests up to which a system holds a rate.
const Limit = 0.01

// Contest compares Triton's own dynamic batching with Conch on the same emulated GPUs under the same load and the same accounting: on
// every GPU a Triton serves every model, and the caller sends each request to the one with the fewest outstanding; or Conch serves the
// same models on as many GPUs.
type Contest struct {
	Models  Models
	GPUs    int
	GPUType string
	// Server is the path of tritonserver, or empty for minitriton: in this process for Triton, inside conch for Conch.
	Server string
	// Bin is the directory of conch and conch-policies.
	Bin string
	// Delays are the settings of max_queue_delay to choose Triton's best from, the most promising first.
	Delays []time.Duration
	// Warmup and Measure are the lengths of one trial.
	Warmup, Measure time.Duration
	// Confirm measures a highest rate again, with other arrivals and for twice as long, and lowers it until it holds.
	Confirm bool
	Seed    uint64
	// Progress is told what happens, a line at a time.
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

// Standing is what a system made of one rate.
type Standing struct {
	// Setting is what was chosen for it, to be shown.
	Setting string
	// Delay is Triton's max_queue_delay.
	Delay time.Duration
	*Trial
}

// Held is the goodput that belongs to the rate: without the chance in how many requests arrived during this one trial.
func (s Standing) Held() float64 { return s.Rate * (1 - s.Bad()) }

// load is the load of one trial. Arrivals differ between rates and rounds, not between systems.
func (c *Contest) load(rate float64) loadgen.Load {
	return loadgen.Load{
		Models: c.Models.Load(), Rate: rate, Warmup: c.Warmup, Measure: c.Measure, Seed: c.Seed,
		// A second is many SLOs: who answers after that is late anyway.
		Patience: time.Second,
	}
}

func (c *Contest) triton(ctx context.Context, delay time.Duration, use func(*Tritons) error) error {
	t, err := StartTritons(ctx, TritonOptions{Server: c.Server, Models: c.Models, GPUs: c.GPUs, Dynamic: &zoo.DynamicBatching{MaxQueueDelay: delay}})
	if err != nil {
		return err
	}
	return errors.Join(use(t), t.Close())
}

func setting(delay time.Duration) string { return fmt.Sprintf("max_queue_delay %v", delay) }

// TritonAt offers one rate to Triton with each delay and returns the one with the best goodput.
func (c *Contest) TritonAt(ctx context.Context, rate float64) (best Standing, err error) {
	for _, delay := range c.Delays {
		err := c.triton(ctx, delay, func(t *Tritons) error {
			trial, err := c.trial(ctx, "Triton, "+setting(delay), t, c.load(rate))
			if err == nil && (best.Trial == nil || trial.Goodput() > best.Goodput()) {
				best = Standing{Setting: setting(delay), Delay: delay, Trial: trial}
			}
			return err
		})
		if err != nil {
			return Standing{}, err
		}
	}
	return best, nil
}

// TritonHighest searches the highest rate that Triton holds with the best of its delays. The first delay is searched from start on; each
// other has to hold a little more than the best so far to be searched too.
func (c *Contest) TritonHighest(ctx context.Context, start float64) (best Standing, err error) {
	for _, delay := range c.Delays {
		search := loadgen.Search{Start: start, Step: 1.25, Resolution: 0.04}
		if best.Trial != nil {
			search.Start, search.Step, search.Least = 1.04*best.Rate, 1.1, best.Rate
		}
		err := c.triton(ctx, delay, func(t *Tritons) error {
			found, err := c.highest(ctx, "Triton, "+setting(delay), t, search)
			if err == nil && found != nil && (best.Trial == nil || found.Rate > best.Rate) {
				best = Standing{Setting: setting(delay), Delay: delay, Trial: found}
			}
			return err
		})
		if err != nil {
			return Standing{}, err
		}
	}
	if best.Trial == nil {
		return Standing{}, fmt.Errorf("rig: Triton does not hold even %.0f req/s", start/100)
	}
	return best, nil
}

// StartConch starts the Conch of the contest. Late requests are dropped, which counts as bad.
func (c *Contest) StartConch(ctx context.Context) (*Conch, error) {
	return StartConch(ctx, ConchOptions{Bin: c.Bin, Server: c.Server, Models: c.Models, GPUs: c.GPUs, GPUType: c.GPUType, Late: "drop"})
}

// ConchAt offers one rate to Conch.
func (c *Contest) ConchAt(ctx context.Context, conch *Conch, rate float64) (Standing, error) {
	trial, err := c.trial(ctx, "Conch", conch, c.load(rate))
	return Standing{Setting: "late: drop", Trial: trial}, err
}

// ConchHighest searches the highest rate that Conch holds.
func (c *Contest) ConchHighest(ctx context.Context, conch *Conch, start float64) (Standing, error) {
	found, err := c.highest(ctx, "Conch", conch, loadgen.Search{Start: start, Step: 1.25, Resolution: 0.04})
	if err == nil && found == nil {
		err = fmt.Errorf("rig: Conch does not hold even %.0f req/s:\n%s", start/100, conch.LogTail())
	}
	return Standing{Setting: "late: drop", Trial: found}, err
}

// highest returns the trial of the highest rate that the system holds, or nil if the search gave up.
func (c *Contest) highest(ctx context.Context, name string, s System, search loadgen.Search) (*Trial, error) {
	trials := map[float64]*Trial{}
	rate, err := search.Highest(ctx, func(ctx context.Context, rate float64) (bool, error) {
		load := c.load(rate)
		load.AbortAbove = Limit
		trial, err := c.trial(ctx, name, s, load)
		if err != nil {
			return false, err
		}
		trials[rate] = trial
		return trial.Bad() <= Limit, nil
	})
	if err != nil || rate == 0 {
		return nil, err
	}
	if !c.Confirm {
		return trials[rate], nil
	}
	return c.confirm(ctx, name, s, rate)
}

// confirmStep is between the rates of two confirming trials.
const confirmStep = 1.03

// confirm tries the rate that a search found with other arrivals for twice as long, and goes down until one holds or, if the first
// holds, up until one does not: a search may have settled too low as well as too high. It returns the highest that held.
func (c *Contest) confirm(ctx context.Context, name string, s System, rate float64) (*Trial, error) {
	var held *Trial
	for step := 1.0; ; rate *= step {
		load := c.load(rate)
		load.Seed, load.Measure = c.Seed+1_000_003, 2*c.Measure
		trial, err := c.trial(ctx, name+", confirming", s, load)
		if err != nil {
			return nil, err
		}
		switch holds := trial.Bad() <= Limit; {
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
	trial, err := Measure(ctx, s, l)
	if err != nil {
		return nil, err
	}
	if _, wrong, first := trial.Faults(); wrong > 0 {
		return nil, fmt.Errorf("rig: %s gave %d wrong answers, the first: %w", name, wrong, first)
	}
	bad := fmt.Sprintf("%.2f%% bad", 100*trial.Bad())
	if trial.Aborted {
		bad = "too many bad, stopped early"
	}
	c.Progress(fmt.Sprintf("%s at %.0f req/s: %s", name, l.Rate, bad))
	c.worstLateness = max(c.worstLateness, trial.Lateness)
	return trial, nil
}
