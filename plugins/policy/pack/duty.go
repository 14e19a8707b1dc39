// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import "math"

// Job is one model's load on one kind of place: what a duty cycle is made of (Nexus' squishy bin packing, as gpulet's section 2.2 describes it).
type Job struct {
	Model string
	// Rate is rows per second, SLO microseconds, Limit the largest batch.
	Rate, SLO float64
	Limit     uint32
	// Latency is l(b) there, in microseconds; false where it is not known.
	Latency func(batch uint32) (float64, bool)
}

// Saturated is the batch at which a place that serves nothing else is busy all the time and a row still makes its SLO: it may just miss a
// batch and then waits for a whole one before its own runs, so that 2 l(b) <= SLO. Rate is what the place serves then; false where not even a
// single row fits.
func (j Job) Saturated() (batch uint32, rate float64, ok bool) {
	batch = largest(j.Limit, func(b uint32) bool {
		l, known := j.Latency(b)
		return known && 2*l <= j.SLO
	})
	if batch == 0 {
		return 0, 0, false
	}
	l, _ := j.Latency(batch)
	return batch, 1e6 * float64(batch) / l, true
}

// Residue is the batch of a place that is not busy all the time: it collects a batch at the job's own rate and runs it, so that
// b/rate + l(b) <= SLO. Cycle is b/rate in microseconds, Occupancy the part of it that the batch runs; false where no batch fits or the place
// cannot keep up.
func (j Job) Residue() (batch uint32, cycle, occupancy float64, ok bool) {
	if j.Rate <= 0 {
		return 0, 0, 0, false
	}
	batch = largest(j.Limit, func(b uint32) bool {
		l, known := j.Latency(b)
		return known && l+1e6*float64(b)/j.Rate <= j.SLO
	})
	if batch == 0 {
		// The rate is so low that a row cannot wait for a second one: it runs at once, alone.
		l, known := j.Latency(1)
		if !known || l > j.SLO {
			return 0, 0, 0, false
		}
		batch, cycle = 1, math.Min(1e6/j.Rate, j.SLO-l)
		if cycle <= 0 {
			return 0, 0, 0, false
		}
		return batch, cycle, l / cycle, l <= cycle
	}
	l, _ := j.Latency(batch)
	cycle = 1e6 * float64(batch) / j.Rate
	return batch, cycle, l / cycle, l <= cycle
}

// Cycle is a round in which every job runs one batch.
type Cycle struct {
	Jobs    []Job
	Batches []uint32
	// Length in microseconds, and the part of it in which something runs.
	Length, Occupancy float64
}

// Wait is what a row of a round is taken to wait for besides the next round.
type Wait int

const (
	// ForOwn is for its own batch alone: the others' fit into the round, whose length the row has waited already.
	ForOwn Wait = iota
	// ForAll is for the batches of all models of the round, one after another.
	ForAll
)

// Merge makes one round of jobs: as long as the shortest of their own, with the batches that come in that time; false where they do not fit, or
// where a row that just missed its batch would miss its SLO.
func Merge(jobs []Job, wait Wait) (Cycle, bool) {
	c := Cycle{Jobs: jobs, Length: math.Inf(1)}
	for _, j := range jobs {
		_, cycle, _, ok := j.Residue()
		if !ok {
			return c, false
		}
		c.Length = math.Min(c.Length, cycle)
	}
	busy, tightest := 0.0, math.Inf(1)
	for _, j := range jobs {
		batch := uint32(max(1, math.Ceil(c.Length*j.Rate/1e6-1e-9)))
		l, known := j.Latency(batch)
		if batch > j.Limit || !known || l+c.Length > j.SLO+1e-6 {
			return c, false
		}
		c.Batches = append(c.Batches, batch)
		busy, tightest = busy+l, math.Min(tightest, j.SLO)
	}
	c.Occupancy = busy / c.Length
	if wait == ForAll && busy+c.Length > tightest+1e-6 {
		return c, false
	}
	return c, busy <= c.Length
}

// largest b from 1 to limit for which holds; holds is true up to some b and false from there. 0 where it never holds.
func largest(limit uint32, holds func(uint32) bool) uint32 {
	low, high := uint32(0), limit
	for low < high {
		middle := high - (high-low)/2 // nearer to high, and no sum that could overflow
		if holds(middle) {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}
