// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/conch-serving/conch/internal/figure"
)

// besideSwaps runs the dispatcher's own benchmark of requests beside changes of the route table, and reads its output.
func (b *bench) besideSwaps(ctx context.Context, r *figure.Report) error {
	rounds := b.roundsOr(5)
	b.say(fmt.Sprintf("sidecar/dispatch: BenchmarkInferBesideSwaps, %d runs", rounds))
	cases, err := ownBenchmark(ctx, "BenchmarkInferBesideSwaps", "./sidecar/dispatch", "-benchtime", "20x", "-count", strconv.Itoa(rounds))
	if err != nil {
		return err
	}
	for _, c := range cases {
		r.AddRuns("swaps.p99_ratio", c.values["p99-ratio"], "ratio",
			"99th percentile of requests beside ten swaps a second, of 1,001 models on eight partitions of which ten change, over that without, in turns of a quarter of a second")
		r.AddRuns("swaps.p99_without_us", c.values["us-p99"], "us", "99th percentile without swaps")
	}
	r.Emulated = "GPU time: an execution sleeps for 2 ms in servers of the benchmark's own"
	return nil
}
