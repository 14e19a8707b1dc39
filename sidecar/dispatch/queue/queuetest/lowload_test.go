// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queuetest_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/queuetest"
)

// TestLowLoadIsQuickOnFewPartitions: under low load a request does not wait for
// company, and the load takes few partitions, where eager takes them all and
// deferred the whole SLO.
func TestLowLoadIsQuickOnFewPartitions(t *testing.T) {
	lone := func(r rule) queuetest.Result { return queuetest.Run(workload(resnet50(t, r), 1, 8, 20), 5) }
	require.Less(t, lone(rule{"adaptive", "reserve"}).MeanLatency, .0075, "l(1) is 6.1 ms")
	require.Greater(t, lone(rule{"deferred", "window"}).MeanLatency, .022)

	const peak = 5500
	for _, share := range []float64{.1, .3} {
		adaptive := queuetest.Run(workload(resnet50(t, rule{"adaptive", "reserve"}), 1, 8, 10), share*peak)
		eager := queuetest.Run(workload(resnet50(t, rule{"eager", "prefix"}), 1, 8, 10), share*peak)
		require.LessOrEqual(t, adaptive.WorstBad(), .001)
		deferred := queuetest.Run(workload(resnet50(t, rule{"deferred", "window"}), 1, 8, 10), share*peak)
		require.LessOrEqual(t, adaptive.Used, deferred.Used+1, "at %.0f%%", 100*share)
		require.Less(t, adaptive.MeanLatency, deferred.MeanLatency)
		require.Equal(t, 8, eager.Used)
	}
}

// BenchmarkLowLoad measures the table of README.md about low load; run it with
//
//	go test -bench LowLoad -benchtime 1x ./sidecar/dispatch/queue/queuetest
func BenchmarkLowLoad(b *testing.B) {
	for _, r := range []rule{{"adaptive", "reserve"}, {"deferred", "window"}, {"eager", "prefix"}} {
		for _, share := range []float64{.001, .1, .2, .3, .4, .5, .6, .8, .95} {
			b.Run(fmt.Sprintf("%v/%.3f", r, share), func(b *testing.B) {
				var result queuetest.Result
				for b.Loop() {
					result = queuetest.Run(workload(resnet50(b, r), 1, 8, 20), share*5500)
				}
				b.ReportMetric(100*(1-result.Busy), "%idle")
				b.ReportMetric(100*(1-share), "%idle-Symphony")
				b.ReportMetric(float64(result.Used), "partitions")
				b.ReportMetric(1000*result.MeanLatency, "ms")
				b.ReportMetric(100*result.WorstBad(), "%bad")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
