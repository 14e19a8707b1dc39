// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// MaxGPUs is the largest number of GPUs that a search takes.
const MaxGPUs = 16

// Model is one model on GPUs that are all alike.
type Model struct {
	// Table is l(b); a batch has at most MaxBatch rows.
	Table    queue.Table
	MaxBatch int
	SLO      queue.Time
	GPUs     int
}

func (m Model) check() error {
	switch {
	case m.GPUs < 1 || m.GPUs > MaxGPUs:
		return fmt.Errorf("reference: %d GPUs; a search takes 1 to %d", m.GPUs, MaxGPUs)
	case m.MaxBatch < 1:
		return fmt.Errorf("reference: batches of at most %d rows; at least 1 is needed", m.MaxBatch)
	case len(m.Table) < 3 || m.Table[1] <= 0:
		return fmt.Errorf("reference: a latency table of %d entries; l(1) and l(2) are needed, above zero", len(m.Table))
	}
	return nil
}

// Search says how thorough a search is.
type Search struct {
	// Beam is how many schedules are kept for each number of requests that are
	// dealt with.
	Beam int
	// Price is the GPU time that a drop is worth: a schedule may drop a request
	// to save that much. It has to be some two to four times the cost of a row;
	// with much less the search drops at every difficulty, and with much more it
	// holds on to requests that make all later batches small. A narrow beam needs
	// a low price.
	Price queue.Time
	// Spread keeps the beam wide: of two schedules whose free times differ by
	// less, only the better is kept. Zero keeps every difference, which is exact
	// with an endless beam, and fills a narrow one with permutations of a single
	// schedule.
	Spread queue.Time
	// Ahead is how many expected arrivals Horizon looks ahead.
	Ahead int
}

// Thorough is a Search that finds nearly all there is to find, for Clairvoyant: a
// beam of 12 that separates schedules by the time of two rows, a drop for the
// time of two further rows.
func (m Model) Thorough() Search {
	row := m.Table.At(2) - m.Table.At(1)
	return Search{Beam: 12, Price: 2 * row, Spread: 2 * row, Ahead: 128}
}

// Foresight is a Search for Horizon: a beam of 6 that separates schedules by
// the time of a row, a drop for the time of three further rows, and 128 expected
// arrivals. Fewer let the end of the plan show in its beginning.
func (m Model) Foresight() Search {
	row := m.Table.At(2) - m.Table.At(1)
	return Search{Beam: 6, Price: 3 * row, Spread: row, Ahead: 128}
}

// reach is the largest batch that is gathered at a rate and then run within the
// SLO: l(b) + b/rate <= SLO. It is at least 1.
func (m Model) reach(rate float64) int {
	b := 1
	for b < m.MaxBatch && m.Table.At(b+1)+queue.Time(float64(b+1)/rate*1e9) <= m.SLO {
		b++
	}
	return b
}

// Result counts how requests ended. Bad ones were dropped: neither search
// starts a batch that would be late.
type Result struct {
	Requests, Bad int
	// Batches and Rows are what ran. Clairvoyant leaves Batches at zero.
	Batches, Rows int
}

// BadShare is Bad over Requests, zero without requests.
func (r Result) BadShare() float64 {
	if r.Requests == 0 {
		return 0
	}
	return float64(r.Bad) / float64(r.Requests)
}

// Poisson returns the arrivals of a Poisson process of a rate in requests per
// second over some seconds, in order.
func Poisson(rate, seconds float64, seed uint64) []queue.Time {
	rng := rand.New(rand.NewPCG(seed, 0x7265666572))
	var all []queue.Time
	for t := rng.ExpFloat64() / rate; t < seconds; t += rng.ExpFloat64() / rate {
		all = append(all, queue.Time(t*1e9))
	}
	return all
}

// Goodput bisects between two rates for the largest at which the share of bad
// requests is at most 1%, to within a relative tolerance. It returns low if not
// even that is held, and the same rate for the same arguments.
func Goodput(low, high, tolerance float64, badShare func(rate float64) (float64, error)) (float64, error) {
	for high-low > tolerance*high {
		mid := math.Sqrt(low * high)
		bad, err := badShare(mid)
		if err != nil {
			return 0, err
		}
		if bad <= .01 {
			low = mid
		} else {
			high = mid
		}
	}
	return low, nil
}

// ClairvoyantGoodput is the goodput of Clairvoyant under Poisson arrivals, in
// requests per second.
func ClairvoyantGoodput(m Model, s Search, seconds float64, seed uint64) (float64, error) {
	return m.goodput(func(rate float64) (Result, error) { return Clairvoyant(m, s, Poisson(rate, seconds, seed)) })
}

// HorizonGoodput is the goodput of Horizon under Poisson arrivals, in requests
// per second. Horizon takes the rate as given.
func HorizonGoodput(m Model, s Search, seconds float64, seed uint64) (float64, error) {
	return m.goodput(func(rate float64) (Result, error) { return Horizon(m, s, rate, Poisson(rate, seconds, seed)) })
}

// goodput bisects between nine tenths of the staggered bound and all of it, or
// further down if not even that is held.
func (m Model) goodput(run func(rate float64) (Result, error)) (float64, error) {
	if err := m.check(); err != nil {
		return 0, err
	}
	share := func(rate float64) (float64, error) {
		r, err := run(rate)
		return r.BadShare(), err
	}
	for high := m.Staggered(); ; high *= .9 {
		bad, err := share(.9 * high)
		if err != nil {
			return 0, err
		}
		if bad <= .01 || high < 1 {
			return Goodput(.9*high, high, .004, share)
		}
	}
}

// Staggered is the rate in requests per second that GPUs in perfect turns hold
// (Symphony, equations 1 and 2): N b / l(b) for the largest b with
// (1 + 1/N) l(b) <= SLO, where b need not be whole.
func (m Model) Staggered() float64 {
	n := float64(m.GPUs)
	longest := float64(m.SLO) / (1 + 1/n)
	b := 1
	for b < m.MaxBatch && float64(m.Table.At(b+1)) <= longest {
		b++
	}
	rows, time := float64(b), float64(m.Table.At(b))
	if b < m.MaxBatch && time < longest {
		rows += (longest - time) / float64(m.Table.At(b+1)-m.Table.At(b))
		time = longest
	}
	return n * rows / time * 1e9
}
