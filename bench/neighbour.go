// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
)

// neighbours is how many large calls of one connection are under way beside the small calls of another.
const neighbours = 64

// neighbour measures what large calls of one gRPC connection do to small calls of another, on all ways, in turns.
func (b *bench) neighbour(ctx context.Context, r *figure.Report, ways []way) error {
	const name = "proxy.grpc.neighbour"
	if !strings.Contains(name, b.only) {
		return nil
	}
	delay, p50 := map[string][]float64{}, map[string][]float64{}
	length := 200 * time.Millisecond // the first round only warms up
	for range b.roundsOr(5) + 1 {
		for _, w := range ways {
			alone, beside, err := b.besideLarge(ctx, w, length)
			if err != nil && w.reverse {
				b.say(fmt.Sprintf("%s: %s is left out of a round: %v", name, w.name, err))
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: %s: %w", name, w.name, err)
			}
			if length == trialTime {
				delay[w.name] = append(delay[w.name], float64(beside-alone)/float64(time.Microsecond))
				p50[w.name] = append(p50[w.name], float64(beside)/float64(time.Microsecond))
			}
		}
		length = trialTime
	}
	less := pairwise(delay[through], delay[straight], func(a, b float64) float64 { return a - b })
	r.AddRuns(name+".delay_over_straight_us", less, "us", fmt.Sprintf("what %d large calls of another connection add to the median latency of a small one through conch, less what they add straight", neighbours))
	for _, w := range ways {
		if len(delay[w.name]) == 0 {
			continue
		}
		r.AddRuns(name+"."+w.name+"_delay_us", delay[w.name], "us", fmt.Sprintf("median latency of a small call beside %d large ones of another connection, less alone", neighbours))
		b.say(fmt.Sprintf("%s: %s: p50 %.0f us, of which %.0f us by the large calls", name, w.name, median(p50[w.name]), median(delay[w.name])))
	}
	return nil
}

// besideLarge returns the median latency of small calls that are alone, and of such beside large ones.
func (b *bench) besideLarge(ctx context.Context, w way, length time.Duration) (alone, beside time.Duration, err error) {
	small, closeSmall, err := b.caller("grpc", w.grpc, w.http, payloads[0], 1)
	if err != nil {
		return 0, 0, err
	}
	defer closeSmall()
	large, closeLarge, err := b.caller("grpc", w.grpc, w.http, payloads[1], neighbours)
	if err != nil {
		return 0, 0, err
	}
	defer closeLarge()
	bounded, cancel := context.WithTimeout(ctx, 3*length+patience)
	defer cancel()
	machine := clock.System()
	got, err := loadgen.Closed(bounded, 1, length, small, machine)
	if err != nil {
		return 0, 0, err
	}
	alone = got.Quantile(.5)
	var load sync.WaitGroup
	var failed error
	load.Go(func() { _, failed = loadgen.Closed(bounded, neighbours, 3*length/2, large, machine) })
	select {
	case <-time.After(length / 4): // until the large calls are under way
	case <-bounded.Done():
	}
	got, err = loadgen.Closed(bounded, 1, length, small, machine)
	load.Wait()
	if err == nil {
		err = failed
	}
	if err != nil {
		return 0, 0, err
	}
	return alone, got.Quantile(.5), nil
}
