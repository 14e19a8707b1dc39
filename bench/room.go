// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"math/rand/v2"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/sim/bound"
	"github.com/conch-serving/conch/sidecar/sim/reference"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// roomRequests is how many arrivals a search deals with: it takes time for each.
const roomRequests = 20000

// room says how much goodput there is above adaptive's where one model has GPUs of its own: what a search holds that knows every arrival, and
// one that knows what a dispatcher knows, the rate.
func (b *bench) room(ctx context.Context, r *figure.Report) error {
	all, err := sets()
	if err != nil {
		return err
	}
	var rows []*row
	for _, gpus := range []int{1, 2, 4, 8, 16} {
		for _, shape := range []float64{1, .3, .05} {
			c := column{set: all[0], gpus: gpus, shape: shape, looser: 1}
			c.bound = bound.Gather(c.bounds(), gpus)
			name := "room." + c.name()
			adaptive := &row{figure: name + ".adaptive.goodput", unit: "req/s", cell: &cell{
				scenario: c.scenario(rule("adaptive", "", nil)), guess: .7 * c.bound, requests: b.simulated(c.requests()), tolerance: .002, step: 1.1,
			}}
			clairvoyant := &row{figure: name + ".clairvoyant.goodput", unit: "req/s", note: "a search that knows every arrival", run: func(_ context.Context, seed uint64) (float64, error) {
				return clairvoyant(c, b.simulated(roomRequests), seed)
			}}
			rows = append(rows, adaptive, clairvoyant, &row{
				figure: name + ".ratio", unit: "ratio", note: "adaptive over the search",
				rest: func() []float64 { return []float64{median(adaptive.cell.all()) / median(clairvoyant.runs)} },
			})
			if shape == 1 && gpus <= 4 {
				rows = append(rows, &row{figure: name + ".horizon.goodput", unit: "req/s", note: "a search that knows the rate alone", run: func(_ context.Context, seed uint64) (float64, error) {
					return reference.HorizonGoodput(lonely(c), lonely(c).Foresight(), b.simulated(roomRequests)/2/c.bound, seed)
				}})
			}
		}
	}
	r.Emulated = "everything: simulated time, no delays; " + all[0].profiles[0].Model + ", at most 1% bad"
	if err := b.measure(ctx, rows, b.roundsOr(2)); err != nil {
		return err
	}
	for _, one := range rows {
		r.AddRuns(one.figure, one.runs, one.unit, one.note)
	}
	return nil
}

// lonely is the load of a column with one model as the searches take it.
func lonely(c column) reference.Model {
	return offline(zoo.Case{Profile: c.set.profiles[0], GPUs: c.gpus})
}

// clairvoyant is the goodput of the search that knows every arrival.
func clairvoyant(c column, requests float64, seed uint64) (float64, error) {
	m := lonely(c)
	return reference.Goodput(.1*c.bound, c.bound, .01, func(rate float64) (float64, error) {
		stream, err := workload.Renewal{Curve: workload.Constant(rate), Shape: c.shape, Random: rand.New(rand.NewPCG(seed, 1))}.Stream()
		if err != nil {
			return 0, err
		}
		arrivals := make([]queue.Time, 0, int(requests))
		for a := (workload.Arrival{}); len(arrivals) < cap(arrivals) && stream.Next(&a); {
			arrivals = append(arrivals, queue.Time(a.At))
		}
		found, err := reference.Clairvoyant(m, m.Thorough(), arrivals)
		return found.BadShare(), err
	})
}
