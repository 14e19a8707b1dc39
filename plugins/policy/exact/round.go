// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package exact

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Schedule says what runs on the GPUs: the partitions of each.
type Schedule [][]Part

// Part is a partition: its size in percent, the length of its round in microseconds, and the models that take turns in it.
type Part struct {
	Size  uint32
	Round float64
	Turns []Turn
}

// Turn is a model's part of a round: a batch of so many rows, for so many rows per second.
type Turn struct {
	Model string
	Rate  float64
	Batch uint32
}

// ErrSchedule is wrapped by what is wrong with a schedule.
var ErrSchedule = errors.New("exact: the schedule does not hold")

// slack takes up what floating point loses.
const slack = 1e-9

// Check is the predicate: nil if the schedule holds and carries the rates, in rows per second by model. It recomputes everything from the
// snapshot and shares nothing with the search.
func (w *World) Check(s Schedule, rates map[string]float64) error {
	if len(s) > w.gpus {
		return fmt.Errorf("%w: %d GPUs, there are %d", ErrSchedule, len(s), w.gpus)
	}
	carried := make(map[string]float64)
	for g, parts := range s {
		total := uint32(0)
		for i, p := range parts {
			total += p.Size
			if !slices.Contains(w.o.Sizes, p.Size) || total > 100 {
				return fmt.Errorf("%w: GPU %d has a partition of %d%%, %d%% together; sizes are %v", ErrSchedule, g, p.Size, total, w.o.Sizes)
			}
			if err := w.CheckPart(parts, i); err != nil {
				return fmt.Errorf("GPU %d, partition %d: %w", g, i, err)
			}
			for _, t := range p.Turns {
				carried[t.Model] += t.Rate
			}
		}
	}
	for model, rate := range rates {
		if carried[model] < rate*(1-slack)-slack {
			return fmt.Errorf("%w: %s gets %.4g of %.4g rows/s", ErrSchedule, model, carried[model], rate)
		}
	}
	return nil
}

// CheckPart is [World.Check] for the round of one partition of a GPU, beside what runs on the others; whether these hold is not looked at.
func (w *World) CheckPart(parts []Part, at int) error {
	p, busy := parts[at], 0.0
	for k, t := range p.Turns {
		if slices.ContainsFunc(p.Turns[:k], func(o Turn) bool { return o.Model == t.Model }) {
			return fmt.Errorf("%w: %s has two turns", ErrSchedule, t.Model)
		}
		alone, ok := w.upper(t.Model, t.Batch, p.Size)
		if !ok {
			return fmt.Errorf("%w: no batch of %d rows of %s", ErrSchedule, t.Batch, t.Model)
		}
		slowdown := 1.0
		for o, other := range parts {
			if o == at {
				continue
			}
			for _, co := range other.Turns {
				slowdown = max(slowdown, w.coefficients.Slowdown(w.use(t.Model, p.Size), w.use(co.Model, other.Size)))
			}
		}
		took := alone * slowdown
		busy += took
		switch {
		case p.Round+took > w.slo(t.Model)*(1+slack):
			return fmt.Errorf("%w: %s waits %.0f us and runs %.0f us, its SLO is %.0f us", ErrSchedule, t.Model, p.Round, took, w.slo(t.Model))
		case t.Rate*p.Round/1e6 > float64(t.Batch)*(1+slack):
			return fmt.Errorf("%w: %.4g rows/s of %s do not fit into batches of %d every %.0f us", ErrSchedule, t.Rate, t.Model, t.Batch, p.Round)
		}
	}
	if busy > p.Round*(1+slack) {
		return fmt.Errorf("%w: batches take %.0f us of a round of %.0f us", ErrSchedule, busy, p.Round)
	}
	return nil
}

// round is the least round of a partition in which the load is carried beside others that disturb it so much; false where there is none.
func (w *World) round(size int, load Load, disturbance float64) (length float64, batches [maxModels]uint32, ok bool) {
	var rates [maxModels]float64
	for i := range w.models {
		rates[i] = w.rate(i, load.Of(i))
	}
	return w.least(size, &rates, disturbance)
}

// rate of so many units, in rows per second. Where bounds are asked for, it is the least of which there are so many units when parts of units
// count as whole ones; only a part that gets all of a model has to carry all of it.
func (w *World) rate(model, units int) float64 {
	if w.bound && units > 0 && units < w.most.Of(model) {
		return float64(units-1)*w.models[model].unit + slack
	}
	return float64(units) * w.models[model].unit
}

// least is the least round for rows per second by model. Batches start at one row and grow to what comes in the round that they make, until
// nothing grows: the least fixed point, from which every larger round only waits longer.
func (w *World) least(size int, rates *[maxModels]float64, disturbance float64) (length float64, batches [maxModels]uint32, ok bool) {
	var models [maxModels]int
	var slow [maxModels]float64
	n := 0
	for i := range w.models {
		if rates[i] > 0 {
			models[n], slow[n], batches[i] = i, w.slowdown(i, size, disturbance), 1
			n++
		}
	}
	for {
		length = 0
		for k, i := range models[:n] {
			l := w.latency[i][size]
			if int(batches[i]) >= len(l) {
				return 0, batches, false
			}
			length += l[batches[i]] * slow[k]
		}
		grown := false
		for k, i := range models[:n] {
			if length+w.latency[i][size][batches[i]]*slow[k] > w.models[i].slo {
				return 0, batches, false
			}
			need := uint32(math.Ceil(rates[i]*length/1e6 - slack))
			if need > batches[i] {
				batches[i], grown = need, true
			}
		}
		if !grown {
			return length, batches, true
		}
	}
}
