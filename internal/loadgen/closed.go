// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// ClosedResult is what a number of callers that each wait for their answer got done.
type ClosedResult struct {
	Calls   int
	Elapsed time.Duration
	// Latencies of all calls, sorted.
	Latencies []time.Duration
}

// PerSecond is calls per second.
func (r ClosedResult) PerSecond() float64 { return float64(r.Calls) / r.Elapsed.Seconds() }

// Quantile is the latency below which the fraction q of the calls was answered; 0 without calls.
func (r ClosedResult) Quantile(q float64) time.Duration {
	if len(r.Latencies) == 0 {
		return 0
	}
	return r.Latencies[min(int(q*float64(len(r.Latencies))), len(r.Latencies)-1)]
}

// Closed lets a number of callers call, each again as soon as it is answered, for a time. The first error ends it.
func Closed(ctx context.Context, callers int, length time.Duration, c Caller, clock Clock) (ClosedResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		mu     sync.Mutex
		all    []time.Duration
		failed error
		wg     sync.WaitGroup
	)
	start := clock.Now()
	end := start.Add(length)
	for caller := range callers {
		wg.Go(func() {
			var own []time.Duration
			var err error
			for sequence := uint64(caller); err == nil; sequence += uint64(callers) {
				before := clock.Now()
				if !before.Before(end) {
					break
				}
				if err = c.Call(ctx, 0, sequence); err == nil {
					own = append(own, clock.Now().Sub(before))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, own...)
			if err != nil && (failed == nil || errors.Is(failed, context.Canceled)) {
				failed = err
				cancel()
			}
		})
	}
	wg.Wait()
	slices.Sort(all)
	return ClosedResult{Calls: len(all), Elapsed: clock.Now().Sub(start), Latencies: all}, failed
}
