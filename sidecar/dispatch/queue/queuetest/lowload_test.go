// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queuetest_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// TestLowLoadIsQuickOnFewExecutors: under low load a request does not wait for
// company, and the load takes few executors, where eager takes them all and
// deferred the whole SLO.
func TestLowLoadIsQuickOnFewExecutors(t *testing.T) {
	lone := func(r rule) Result { return runWorkload(workload(resnet50(t, r), 1, 8, 20), 5) }
	require.Less(t, lone(rule{"adaptive", "reserve"}).MeanLatency, .0075, "l(1) is 6.1 ms")
	require.Greater(t, lone(rule{"deferred", "window"}).MeanLatency, .022)

	const peak = 5500
	for _, share := range []float64{.1, .3} {
		adaptive := runWorkload(workload(resnet50(t, rule{"adaptive", "reserve"}), 1, 8, 10), share*peak)
		eager := runWorkload(workload(resnet50(t, rule{"eager", "prefix"}), 1, 8, 10), share*peak)
		require.LessOrEqual(t, adaptive.WorstBad(), .001)
		deferred := runWorkload(workload(resnet50(t, rule{"deferred", "window"}), 1, 8, 10), share*peak)
		require.LessOrEqual(t, adaptive.Used, deferred.Used+1, "at %.0f%%", 100*share)
		require.Less(t, adaptive.MeanLatency, deferred.MeanLatency)
		require.Equal(t, 8, eager.Used)
	}
}

// eightOnSixteen are models that have less than one and a half executors to
// themselves each. Their peak is taken for 10,000 req/s.
func eightOnSixteen(tb testing.TB, discipline, idle, drop string) Workload {
	m := resnet50(tb, rule{discipline, drop})
	if idle != "" {
		var err error
		m.Discipline, err = queue.NewDiscipline(discipline, map[string]string{"idle": idle})
		require.NoError(tb, err)
	}
	return workload(m, 8, 16, 10)
}

// TestLowLoadOfManyModels: the idle time follows the load of many models too
// (Symphony, section 3.5: (p-o)/p), on few executors.
func TestLowLoadOfManyModels(t *testing.T) {
	for _, c := range []struct {
		idle  string
		share float64
	}{{"", .1}, {"", .2}, {"", .3}, {"", .5}, {"0", .1}, {"0", .2}, {"0", .3}, {"0", .5}} {
		got := runWorkload(eightOnSixteen(t, "adaptive", c.idle, "reserve"), c.share*10_000)
		require.LessOrEqual(t, got.WorstBad(), .002)
		require.GreaterOrEqual(t, 1-got.Busy, .75*(1-c.share), "idle %q at %g", c.idle, c.share)
		if c.share < .5 {
			require.LessOrEqual(t, got.Used, int(16*c.share)+7, "idle %q at %g", c.idle, c.share)
		}
	}
}

// BenchmarkLowLoad measures low load, of one model and of many; run it with
//
//	go test -bench LowLoad -benchtime 1x ./sidecar/dispatch/queue/queuetest
func BenchmarkLowLoad(b *testing.B) {
	report := func(b *testing.B, share float64, run func() Result) {
		var result Result
		for b.Loop() {
			result = run()
		}
		b.ReportMetric(100*(1-result.Busy), "%idle")
		b.ReportMetric(100*(1-share), "%idle-Symphony")
		b.ReportMetric(float64(result.Used), "executors")
		b.ReportMetric(1000*result.MeanLatency, "ms")
		b.ReportMetric(100*result.WorstBad(), "%bad")
		b.ReportMetric(0, "ns/op")
	}
	for _, r := range []rule{{"adaptive", "reserve"}, {"deferred", "window"}, {"eager", "prefix"}} {
		for _, share := range []float64{.001, .1, .2, .3, .4, .5, .6, .8, .95} {
			b.Run(fmt.Sprintf("1on8/%v/%.3f", r, share), func(b *testing.B) {
				report(b, share, func() Result { return runWorkload(workload(resnet50(b, r), 1, 8, 20), share*5500) })
			})
		}
	}
	for _, c := range []struct{ discipline, idle, drop string }{{"adaptive", "", "reserve"}, {"adaptive", "0", "reserve"}, {"deferred", "", "window"}} {
		for _, share := range []float64{.1, .2, .3, .5, .7} {
			b.Run(fmt.Sprintf("8on16/%s%s/%.3f", c.discipline, c.idle, share), func(b *testing.B) {
				report(b, share, func() Result {
					return runWorkload(eightOnSixteen(b, c.discipline, c.idle, c.drop), share*10_000)
				})
			})
		}
		b.Run(fmt.Sprintf("8on16/%s%s/goodput", c.discipline, c.idle), func(b *testing.B) {
			for b.Loop() {
				b.ReportMetric(Goodput(eightOnSixteen(b, c.discipline, c.idle, c.drop), 10_000), "goodput-req/s")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
