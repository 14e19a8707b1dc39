// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// Model is one model under load.
type Model struct {
	Name string
	// SLO is the latency within which an answer is good.
	SLO time.Duration
	// Weight is this model's part of the rate, relative to the others'; 0 means 1.
	Weight float64
	// Endpoints are the indexes of the endpoints that serve the model; nil means all of them do.
	Endpoints []int
	// Affine sends requests to the first endpoint while it has at most 1.25 times the mean of what is outstanding at all of them, this request included.
	Affine bool
}

// Arrivals is the process that spaces requests.
type Arrivals int

const (
	// Poisson arrivals: independent callers, exponentially distributed gaps.
	Poisson Arrivals = iota
	// Fixed arrivals: equal gaps.
	Fixed
)

// Arrival is one request to send.
type Arrival struct {
	// At is the time since the start.
	At time.Duration
	// Model is an index of Load.Models.
	Model int
}

// Load is what to offer.
type Load struct {
	Models []Model
	// Rate is the sum over all models, in requests per second.
	Rate     float64
	Arrivals Arrivals
	// Given is exactly what to send, in order of time, instead of what Rate, Arrivals and Seed say. Rate is taken from it.
	Given []Arrival
	// Requests that arrive within Warmup are sent but not counted; then Measure is counted.
	Warmup, Measure time.Duration
	// Until ends the load when it is closed, if that is before Measure is over: no more requests are sent. Result.Measured is then as much
	// shorter. Nil never ends it.
	Until <-chan struct{}
	// Seed fixes arrivals and the order of models.
	Seed uint64
	// Patience bounds the wait for answers after the last arrival. What is unanswered then is cancelled and counts as late.
	Patience time.Duration
	// Uncancelled has a run that ends early wait as long, too, instead of cancelling what is out: there are servers that requests which are cancelled crash.
	Uncancelled bool
	// Log keeps an account of every single request, the warm-up's too: Result.Log.
	Log bool
	// AbortAbove ends a run whose fraction of bad requests is sure to end well above this; 0 means never. See Result.Aborted.
	AbortAbove float64
	// AbortEach ends a run once more than this fraction of the requests that Given has for a model, after the warm-up, were bad; 0 means never.
	AbortEach float64
}

// Caller sends one request and returns when it is answered. A nil error is a correct answer; ErrWrong is a wrong one.
type Caller interface {
	// Call asks the model with this index in Load.Models. The sequence number is unique in a run. Giving up because of ctx's deadline is
	// context.DeadlineExceeded.
	Call(ctx context.Context, model int, sequence uint64) error
}

// ErrWrong is an answer that is not what the model computes.
var ErrWrong = errors.New("wrong answer")

// Clock is time as the generator sees it. Sleep must be accurate: a late wake-up counts as latency.
type Clock interface {
	Now() time.Time
	Sleep(d time.Duration)
}

// Run offers the load and returns once every request is accounted for. It fails only on a load that makes no sense or if ctx ends.
func Run(ctx context.Context, l Load, c Caller, clock Clock) (*Result, error) {
	if n := len(l.Given); n > 0 {
		l.Rate = float64(n) / (l.Warmup + l.Measure).Seconds()
		for i, a := range l.Given {
			if a.Model < 0 || a.Model >= len(l.Models) || i > 0 && a.At < l.Given[i-1].At {
				return nil, fmt.Errorf("load: given arrival %d is of model %d at %v: there are %d models, and times must not go back", i, a.Model, a.At, len(l.Models))
			}
		}
	}
	if l.Rate <= 0 || len(l.Models) == 0 || l.Measure <= 0 {
		return nil, fmt.Errorf("load: rate %g over %d models for %v: all three must be positive", l.Rate, len(l.Models), l.Measure)
	}
	calls, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{load: l, caller: c, clock: clock, start: clock.Now(), counts: newCounts(l)}
	r.generate(calls)
	r.settle(cancel)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	l.Measure = r.measured
	result := r.counts.result(l)
	result.Start = r.start
	return result, nil
}

type run struct {
	load   Load
	caller Caller
	clock  Clock
	start  time.Time
	wg     sync.WaitGroup
	counts *counts
	// measured is the time in which requests were counted.
	measured time.Duration
}

// generate sends requests at their times until the load ends, is aborted, or ctx ends.
func (r *run) generate(ctx context.Context) {
	draw := newSchedule(r.load).draw
	if len(r.load.Given) > 0 {
		draw = given(r.load.Given)
	}
	end := r.load.Warmup + r.load.Measure
	r.measured = r.load.Measure
	for sequence := uint64(1); ; sequence++ {
		at, model := draw()
		if at >= end || ctx.Err() != nil || r.counts.hopeless() {
			return
		}
		arrival := r.start.Add(at)
		if wait := arrival.Sub(r.clock.Now()); wait > 0 {
			r.clock.Sleep(wait)
		}
		select {
		case <-r.load.Until:
			r.measured = max(0, at-r.load.Warmup)
			return
		default:
		}
		counted := at >= r.load.Warmup
		if counted {
			r.counts.sent(model)
		}
		r.wg.Go(func() { r.call(ctx, model, sequence, arrival, counted) })
	}
}

// given draws from a list, and then at the end of time.
func given(list []Arrival) func() (time.Duration, int) {
	return func() (time.Duration, int) {
		if len(list) == 0 {
			return math.MaxInt64, 0
		}
		next := list[0]
		list = list[1:]
		return next.At, next.Model
	}
}

func (r *run) call(ctx context.Context, model int, sequence uint64, arrival time.Time, counted bool) {
	sent := r.clock.Now()
	err := r.caller.Call(ctx, model, sequence)
	if r.load.Log {
		r.counts.log(Entry{Arrival: Arrival{At: arrival.Sub(r.start), Model: model}, Sent: sent.Sub(r.start), Latency: r.clock.Now().Sub(sent), Err: err})
	}
	if counted {
		r.counts.answered(model, r.clock.Now().Sub(arrival), ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded), err)
	}
}

// settle waits for the answers that are still out, and after the patience cancels them.
func (r *run) settle(cancel context.CancelFunc) {
	done := make(chan struct{})
	go func() {
		r.wg.Wait()
		close(done)
	}()
	patience := r.load.Patience
	if r.counts.hopeless() && !r.load.Uncancelled {
		patience = 0
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		cancel()
		<-done
	}
}

// schedule draws arrivals: one process for the sum, each arrival's model drawn by weight, which for Poisson arrivals is the same as one
// process per model.
type schedule struct {
	load   Load
	random *rand.Rand
	sums   []float64
	at     time.Duration
}

func newSchedule(l Load) *schedule {
	s := &schedule{load: l, random: rand.New(rand.NewPCG(l.Seed, uint64(len(l.Models))))}
	sum := 0.0
	for _, m := range l.Models {
		if m.Weight == 0 {
			m.Weight = 1
		}
		sum += m.Weight
		s.sums = append(s.sums, sum)
	}
	return s
}

func (s *schedule) draw() (at time.Duration, model int) {
	gap := 1 / s.load.Rate
	if s.load.Arrivals == Poisson {
		gap *= s.random.ExpFloat64()
	}
	s.at += time.Duration(gap * float64(time.Second))
	pick := s.random.Float64() * s.sums[len(s.sums)-1]
	for model = 0; model < len(s.sums)-1 && s.sums[model] <= pick; {
		model++
	}
	return s.at, model
}
