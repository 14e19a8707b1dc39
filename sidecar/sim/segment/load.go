// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package segment

import (
	"math/rand/v2"
	"time"
)

// Load is the queries of section 7.1 for a pair: Poisson arrivals, each for a model of the pair, a batch size and, for Bert, a sequence length that are
// drawn evenly.
type Load struct {
	Pair [2]int
	// Rate is queries per second of the pair together, Target the time from arrival to deadline.
	Rate    float64
	Target  time.Duration
	Queries int
	Seed    uint64
}

// Queries of a load, in the order of arrival, with models by their place in the pair.
func (x *Experiment) Queries(l Load) []Query {
	draw := rand.New(rand.NewPCG(l.Seed, uint64(l.Pair[0])<<8|uint64(l.Pair[1])))
	all := make([]Query, l.Queries)
	now := 0.
	for i := range all {
		now += draw.ExpFloat64() / l.Rate
		q := Query{Model: draw.IntN(2), Batch: x.Batches[draw.IntN(len(x.Batches))], Arrival: time.Duration(now * float64(time.Second))}
		length := x.SeqLens[draw.IntN(len(x.SeqLens))]
		if x.Models[l.Pair[q.Model]].Name == Bert {
			q.SeqLen = length
		}
		q.Deadline = q.Arrival + l.Target
		all[i] = q
	}
	return all
}

// World is a GPU that serves a pair, with errors of predictions as the paper has them.
func (x *Experiment) World(pair [2]int) *World {
	return &World{Models: []Model{x.Models[pair[0]], x.Models[pair[1]]}, Predictor: x.Serving(pair), Error: Deviation(PublishedError)}
}
