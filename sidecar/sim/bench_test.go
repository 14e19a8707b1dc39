// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/sim"
)

// BenchmarkSim is the figure sim.24x64.requests_per_second: 24 models on 64 partitions at 85% of what they can do in batches of 64, for
// two seconds of virtual time. One operation is one run.
func BenchmarkSim(b *testing.B) {
	s := small{
		models: 24, gpus: 64, alpha: 1082 * time.Microsecond, beta: 5204 * time.Microsecond, slo: 100 * time.Millisecond, batch: 64,
		discipline: "adaptive", rate: .85 * 64 * 64 / .074452, duration: 20 * time.Second, warmup: time.Second, seed: 1,
	}
	b.Run("24x64", func(b *testing.B) {
		var requests uint64
		var elapsed time.Duration
		for b.Loop() {
			w := s.world(b)
			begin := time.Now()
			r, err := sim.Run(b.Context(), w)
			elapsed += time.Since(begin)
			require.NoError(b, err)
			requests += r.Queue.Enqueued
			b.ReportMetric(100*(1-r.Total.BadRate), "%good")
			b.ReportMetric(r.Models[0].MeanBatch, "rows/batch")
		}
		b.ReportMetric(float64(requests)/elapsed.Seconds(), "requests/s")
	})
}
