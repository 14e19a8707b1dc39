// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"slices"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// Ahead is a controller that decides before GPUs are free.
type Ahead struct {
	// By is how long before a GPU is free its next batch is decided.
	By queue.Time
	// Margin is how long before its deadline a request is planned to be done.
	Margin queue.Time
}

// Clockwork has the constants of Clockwork's published controller: work is
// planned 10 ms ahead (schedule_ahead, the default of its parameter) and done 5
// ms before the deadline (buffer), in src/clockwork/controller/infer5.
func Clockwork() Ahead { return Ahead{By: 10e6, Margin: 5e6} }

// Serve runs requests with the given arrivals, in order, as Clockwork's published
// controller does. Whenever less than By is planned on a GPU and requests wait,
// it is given the next batch, which can not be taken back. There is a queue per
// batch size b, without the requests that would be late in a batch of b. The
// batch is of the size before the first whose queue has fewer than b. The requests
// that would be late in it are given up.
//
// The batch is planned to start when the GPU is free, and everything takes as
// long as planned. Batches in the result is how many ran, and median the size
// that half of them do not exceed.
func (a Ahead) Serve(m Model, arrivals []queue.Time) (result Result, median int, err error) {
	if err := m.check(); err != nil {
		return Result{}, 0, err
	}
	result.Requests = len(arrivals)
	slo := m.SLO - a.Margin
	free := make([]queue.Time, m.GPUs)
	sizes := make([]int, m.MaxBatch+1)
	var waiting []queue.Time
	now := queue.Time(0)
	for len(arrivals) > 0 || len(waiting) > 0 {
		next := queue.Never
		if len(waiting) > 0 {
			next = max(now, slices.Min(free)-a.By)
		}
		if len(arrivals) > 0 && arrivals[0] <= next {
			now = arrivals[0]
			waiting, arrivals = append(waiting, now), arrivals[1:]
		} else {
			now = next
		}
		for len(waiting) > 0 {
			g := slices.Index(free, slices.Min(free))
			if free[g]-a.By > now {
				break
			}
			start := max(now, free[g])
			// A request that is too late even alone blocks no other.
			late := 0
			for late < len(waiting) && waiting[late]+slo < start+m.Table.At(1) {
				late++
			}
			result.Bad += late
			if waiting = waiting[late:]; len(waiting) == 0 {
				break
			}
			rows, passed := 1, 0
			for b, skip := 2, 0; b <= m.MaxBatch; b++ {
				for skip < len(waiting) && waiting[skip]+slo < start+m.Table.At(b) {
					skip++
				}
				if len(waiting)-skip < b {
					break
				}
				rows, passed = b, skip
			}
			result.Bad += passed
			waiting = waiting[passed+rows:]
			free[g] = start + m.Table.At(rows)
			sizes[rows]++
			result.Batches++
			result.Rows += rows
		}
	}
	half := 0
	for b, n := range sizes {
		if half += n; 2*half >= result.Batches && n > 0 {
			return result, b, nil
		}
	}
	return result, 0, nil
}

// Goodput is that of Serve under Poisson arrivals, in requests per second.
func (a Ahead) Goodput(m Model, seconds float64, seed uint64) (float64, error) {
	if err := m.check(); err != nil {
		return 0, err
	}
	bound := m.Staggered()
	return Goodput(bound/20, bound, .002, func(rate float64) (float64, error) {
		r, _, err := a.Serve(m, Poisson(rate, seconds, seed))
		return r.BadShare(), err
	})
}
