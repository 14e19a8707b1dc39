// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"sync"
	"time"
)

// Result accounts for the requests of one run that arrived after its warm-up.
type Result struct {
	// Rate is the offered rate, in requests per second; Measured is the time in which requests were counted.
	Rate     float64
	Measured time.Duration
	Models   []ModelResult
	// Aborted says that the run ended early because its fraction of bad requests was sure to end above Load.AbortAbove, or that of a model
	// above Load.AbortEach.
	Aborted bool
	// Start is when the run began, on its clock; Log is every request in the order in which they were sent, if Load.Log asked for it.
	Start time.Time
	Log   []Entry
}

// Entry is the outcome of one request.
type Entry struct {
	// Arrival is when it was to be sent, Sent when it really was, since the start. What lies between is the generator's own lateness.
	Arrival
	Sent time.Duration
	// Latency is from Sent to the answer, which was right if Err is nil.
	Latency time.Duration
	Err     error
}

// ModelResult accounts for one model. Sent = Good + Late + Failed + Wrong.
type ModelResult struct {
	Name string
	SLO  time.Duration
	// Good were answered inside the SLO, Late after it or never, Failed with an error, Wrong with a wrong answer.
	Sent, Good, Late, Failed, Wrong int
	// FirstError is the first error of this run, or the first wrong answer if there is one, to be shown.
	FirstError error

	latencies []time.Duration // of correct answers, late or not; sorted
	unbounded int             // requests without an answer
}

// Bad is the fraction of requests that are not good; 0 if there were none.
func (m ModelResult) Bad() float64 { return fraction(m.Sent-m.Good, m.Sent) }

// Quantile is the latency below which the fraction q of all requests was answered. Requests without an answer count as slower than all
// others: if q falls among them, ok is false.
func (m ModelResult) Quantile(q float64) (latency time.Duration, ok bool) {
	i := int(math.Ceil(q*float64(len(m.latencies)+m.unbounded))) - 1
	if i = max(i, 0); i >= len(m.latencies) {
		return 0, false
	}
	return m.latencies[i], true
}

// Bad is the fraction of all requests that are not good.
func (r *Result) Bad() float64 {
	var bad, sent int
	for _, m := range r.Models {
		bad, sent = bad+m.Sent-m.Good, sent+m.Sent
	}
	return fraction(bad, sent)
}

// WorstBad is the largest Bad of a model.
func (r *Result) WorstBad() float64 {
	worst := 0.0
	for _, m := range r.Models {
		worst = max(worst, m.Bad())
	}
	return worst
}

// Offered is requests per second as they came, which differs from Rate by chance.
func (r *Result) Offered() float64 {
	sent := 0
	for _, m := range r.Models {
		sent += m.Sent
	}
	return float64(sent) / r.Measured.Seconds()
}

// Goodput is good requests per second.
func (r *Result) Goodput() float64 {
	good := 0
	for _, m := range r.Models {
		good += m.Good
	}
	return float64(good) / r.Measured.Seconds()
}

// WorstQuantile is the largest quantile over the models, in multiples of the model's SLO. ok is false if some model left the quantile's
// request without an answer.
func (r *Result) WorstQuantile(q float64) (ofSLO float64, ok bool) {
	for _, m := range r.Models {
		latency, answered := m.Quantile(q)
		if m.Sent > 0 && !answered {
			return 0, false
		}
		ofSLO = max(ofSLO, float64(latency)/float64(m.SLO))
	}
	return ofSLO, true
}

// Faults counts errors and wrong answers, and returns the first of them.
func (r *Result) Faults() (failed, wrong int, first error) {
	for _, m := range r.Models {
		failed, wrong = failed+m.Failed, wrong+m.Wrong
		if first == nil {
			first = m.FirstError
		}
	}
	return failed, wrong, first
}

func fraction(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// counts is the ledger of a run.
type counts struct {
	mu     sync.Mutex
	models []ModelResult
	bad    int
	enough int // bad requests after which the run cannot end near AbortAbove any more; 0 means never
	// allowed are the bad requests of each model up to which the run goes on; nil where it always does.
	allowed []int
	aborts  bool
	each    []Entry
}

func newCounts(l Load) *counts {
	c := &counts{models: make([]ModelResult, len(l.Models))}
	for i, m := range l.Models {
		c.models[i] = ModelResult{Name: m.Name, SLO: m.SLO}
	}
	if l.AbortAbove > 0 {
		// Twice what is allowed and four standard deviations of a Poisson count.
		allowed := l.AbortAbove * l.Rate * l.Measure.Seconds()
		c.enough = int(2*allowed+4*math.Sqrt(allowed)) + 5
	}
	if l.AbortEach > 0 && len(l.Given) > 0 {
		given := make([]int, len(l.Models))
		for _, a := range l.Given {
			if a.At >= l.Warmup {
				given[a.Model]++
			}
		}
		for _, n := range given {
			c.allowed = append(c.allowed, int(l.AbortEach*float64(n)))
		}
	}
	return c
}

func (c *counts) sent(model int) {
	c.mu.Lock()
	c.models[model].Sent++
	c.mu.Unlock()
}

func (c *counts) answered(model int, latency time.Duration, cancelled bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &c.models[model]
	switch {
	case err == nil:
		m.latencies = append(m.latencies, latency)
		if latency <= m.SLO {
			m.Good++
			return
		}
		m.Late++
	case cancelled:
		m.unbounded++
		m.Late++
	case errors.Is(err, ErrWrong):
		m.unbounded++
		m.Wrong++
	default:
		m.unbounded++
		m.Failed++
	}
	wrong := errors.Is(err, ErrWrong)
	if err != nil && !cancelled && (m.FirstError == nil || wrong && m.Wrong == 1) {
		m.FirstError = err
	}
	c.bad++
	c.aborts = c.aborts || c.enough > 0 && c.bad >= c.enough || c.allowed != nil && m.Late+m.Wrong+m.Failed > c.allowed[model]
}

func (c *counts) log(e Entry) {
	c.mu.Lock()
	c.each = append(c.each, e)
	c.mu.Unlock()
}

func (c *counts) hopeless() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.aborts
}

func (c *counts) result(l Load) *Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.models {
		slices.Sort(c.models[i].latencies)
	}
	slices.SortFunc(c.each, func(a, b Entry) int { return cmp.Compare(a.Sent, b.Sent) })
	return &Result{Rate: l.Rate, Measured: l.Measure, Models: c.models, Aborted: c.aborts, Log: c.each}
}
