// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// BenchmarkSim measures the simulator: requests per second of wall time of a run of 24 models on 64 partitions at 85% of their peak
// (24x64), and how long a second of 6,000 GPUs takes (6000gpus), reading the scenario included. One operation is one run.
func BenchmarkSim(b *testing.B) {
	for _, name := range []string{"24x64", "6000gpus"} {
		b.Run(name, func(b *testing.B) {
			s := load(b, name+".yaml")
			var requests uint64
			var heap runtime.MemStats
			begin := time.Now()
			n := 0
			var r *sim.Result
			for b.Loop() {
				w, err := s.World(scenario.Options{})
				require.NoError(b, err)
				r, err = sim.Run(b.Context(), w.World)
				require.NoError(b, err)
				requests += r.Queue.Enqueued
				n++
			}
			elapsed := time.Since(begin).Seconds()
			runtime.ReadMemStats(&heap)
			b.ReportMetric(float64(requests)/elapsed, "requests/s")
			b.ReportMetric(elapsed/float64(n), "wall-s")
			b.ReportMetric(float64(heap.HeapSys)/(1<<20), "heap-MiB")
			b.ReportMetric(100*(1-r.Total.BadRate), "%good")
		})
	}
}
