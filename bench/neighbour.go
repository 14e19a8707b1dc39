// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
)

// neighbours is how many large calls of one connection are under way beside the small calls of another.
const neighbours = 64

// neighbour measures what large calls of one gRPC connection do to small calls of another, on all ways, in turns. Straight, they share the processors and
// the server: what a way adds to that is its own. Through conch they share a partition, too, which executes one batch at a time; the conch that observes
// has no such turns.
func (b *bench) neighbour(ctx context.Context, r *figure.Report, ways []way) error {
	const name = "proxy.grpc.neighbour"
	if !strings.Contains(name, b.only) {
		return nil
	}
	delay, tail, over := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	length := 200 * time.Millisecond // the first round only warms up
	for range b.roundsOr(5) + 1 {
		var by float64 // of the large calls, straight in this round
		for _, w := range ways {
			alone, beside, err := b.besideLarge(ctx, w, length)
			if err != nil && w.reverse {
				b.say(fmt.Sprintf("%s: %s is left out of a round: %v", name, w.name, err))
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: %s: %w", name, w.name, err)
			}
			if length != trialTime {
				continue
			}
			added := func(q float64) float64 {
				return float64(beside.Quantile(q)-alone.Quantile(q)) / float64(time.Microsecond)
			}
			delay[w.name], tail[w.name] = append(delay[w.name], added(.5)), append(tail[w.name], added(.99))
			if w.name == straight {
				by = added(.5)
			}
			over[w.name] = append(over[w.name], added(.5)-by)
		}
		length = trialTime
	}
	r.AddRuns(name+".delay_over_straight_us", over[through], "us", fmt.Sprintf("what %d large calls of another connection add to the median latency of a small one through conch, less what they add straight", neighbours))
	for _, w := range ways {
		if len(delay[w.name]) == 0 {
			continue
		}
		r.AddRuns(name+"."+w.name+"_delay_us", delay[w.name], "us", fmt.Sprintf("median latency of small calls, %d ms apart, beside %d large ones of another connection, less alone", smallEvery/time.Millisecond, neighbours))
		r.AddRuns(name+"."+w.name+"_delay_p99_us", tail[w.name], "us", "the same of the 99th percentile")
		if w.name != straight && w.name != through {
			r.AddRuns(name+"."+w.name+"_delay_over_straight_us", over[w.name], "us", "the same of the median, less what the large calls add straight")
		}
		b.say(fmt.Sprintf("%s: %s: large calls add %.0f us to the median, %.0f us more than straight, and %.0f us to the 99th percentile", name, w.name, median(delay[w.name]), median(over[w.name]), median(tail[w.name])))
	}
	return nil
}

// besideLarge measures small calls that are alone, and such beside large ones.
func (b *bench) besideLarge(ctx context.Context, w way, length time.Duration) (alone, beside loadgen.ClosedResult, err error) {
	small, closeSmall, err := b.caller("grpc", w.grpc, w.http, payloads[0], 1)
	if err != nil {
		return alone, beside, err
	}
	defer closeSmall()
	large, closeLarge, err := b.caller("grpc", w.grpc, w.http, payloads[1], neighbours)
	if err != nil {
		return alone, beside, err
	}
	defer closeLarge()
	bounded, cancel := context.WithTimeout(ctx, 3*length+patience)
	defer cancel()
	machine := clock.System()
	if alone, err = spaced(bounded, length, small, machine); err != nil {
		return alone, beside, err
	}
	var load sync.WaitGroup
	var failed error
	load.Go(func() { _, failed = loadgen.Closed(bounded, neighbours, 3*length/2, large, machine) })
	select {
	case <-time.After(length / 4): // until the large calls are under way
	case <-bounded.Done():
	}
	beside, err = spaced(bounded, length, small, machine)
	load.Wait()
	if err == nil {
		err = failed
	}
	return alone, beside, err
}

// smallEvery is how far small calls are apart.
const smallEvery = 4 * time.Millisecond

// spaced makes calls at equal intervals, whatever the others take. A caller that waits for its answer before it calls again would call most often while the
// large calls leave the processors to it.
func spaced(ctx context.Context, length time.Duration, c loadgen.Caller, machine loadgen.Clock) (loadgen.ClosedResult, error) {
	var calls sync.WaitGroup
	n := int(length / smallEvery)
	took, errs := make([]time.Duration, n), make([]error, n)
	start := machine.Now()
	for i := range n {
		if wait := time.Duration(i)*smallEvery - machine.Now().Sub(start); wait > 0 {
			machine.Sleep(wait)
		}
		calls.Go(func() {
			sent := machine.Now()
			errs[i] = c.Call(ctx, 0, uint64(i))
			took[i] = machine.Now().Sub(sent)
		})
	}
	calls.Wait()
	slices.Sort(took)
	return loadgen.ClosedResult{Calls: n, Elapsed: machine.Now().Sub(start), Latencies: took}, errors.Join(errs...)
}
