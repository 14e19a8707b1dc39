// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"golang.org/x/sync/errgroup"
)

// cell is one goodput to search for.
type cell struct {
	name     string
	scenario *scenario.Scenario
	guess    float64
	overall  bool    // all requests together decide, not the worst model
	parts    float64 // the scenario is one of so many equal parts; 0 means 1
	seeds    int     // the first so many only; 0 means all
	skip     int     // so many seeds are left out before these
	found    *sim.Found

	// Requests that a run simulates at least, at whatever rate; 0: the scenario's time. Tolerance and step are those of sim.Search.
	requests, tolerance, step float64
}

// shortest is the least time of a run in seconds: the queue takes half a second to know a rate.
const shortest = 1.5

// goodput searches.
func (c *cell) goodput(ctx context.Context, s sim.Search) (*sim.Found, error) {
	if c.requests == 0 {
		return c.scenario.Goodput(ctx, scenario.Options{}, s)
	}
	s.Run = c.run
	return sim.Goodput(ctx, s)
}

// run simulates as many requests as a cell wants, at a rate.
func (c *cell) run(ctx context.Context, rate float64, seed uint64) (*sim.Result, error) {
	s := *c.scenario
	seconds := max(shortest, c.requests/rate)
	s.Duration, s.Warmup = duration(seconds), duration(max(.5, min(seconds/10, 20)))
	return s.Run(ctx, scenario.Options{Rate: rate, Seed: seed})
}

// gpuType of simulated GPUs; only profiles need it, and they name none.
const gpuType = "A100"

// world is a scenario in which every model is on every GPU, requests that are given up are dropped and nothing has delays.
func world(gpus int, seconds float64, rule scenario.Dispatch, models ...scenario.Model) *scenario.Scenario {
	return &scenario.Scenario{
		APIVersion: scenario.APIVersion, Name: "bench", Duration: duration(seconds), Warmup: duration(min(1, seconds/4)),
		GPUs: []scenario.GPUs{{Type: gpuType, Count: gpus}}, Models: models, Dispatch: rule, Rate: 1,
	}
}

func duration(seconds float64) scenario.Duration {
	return scenario.Duration(seconds * float64(time.Second))
}

// search finds the goodput of every cell, on all cores: the median over the seeds, with the spread. Bad requests of the worst model are at most 1%.
func (b *bench) search(ctx context.Context, cells []*cell, seeds int) error {
	var mutex sync.Mutex
	done := 0
	return onAllCores(ctx, cells, func(ctx context.Context, c *cell) error {
		s := sim.Search{Guess: c.guess, Overall: c.overall, Tolerance: c.tolerance, Step: c.step}
		for k := range cmp.Or(c.seeds, seeds) {
			s.Seeds = append(s.Seeds, b.seed+uint64(c.skip+k))
		}
		found, err := c.goodput(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		c.found = found
		mutex.Lock()
		defer mutex.Unlock()
		done++
		b.say(fmt.Sprintf("%d/%d %s: %.0f req/s (%.0f to %.0f)", done, len(cells), c.name, found.Rate, found.Low, found.High))
		return nil
	})
}

// onAllCores does something for each of many, on as many at once as there are cores, until all are done or one fails.
func onAllCores[T any](ctx context.Context, all []T, do func(context.Context, T) error) error {
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, item := range all {
		group.Go(func() error {
			if err := within.Err(); err != nil {
				return err
			}
			return do(within, item)
		})
	}
	return group.Wait()
}

// indices of a list, for onAllCores.
func indices[T any](list []T) []int {
	all := make([]int, len(list))
	for i := range all {
		all[i] = i
	}
	return all
}

// rates are what a search found with each seed.
func rates(f *sim.Found) (all []float64) {
	for _, h := range f.All {
		all = append(all, h.Rate)
	}
	return all
}
