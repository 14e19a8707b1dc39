// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queuetest_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

const (
	us queue.Time = 1e3
	ms queue.Time = 1e6
)

// rule is a discipline with a drop policy.
type rule struct{ discipline, drop string }

func (r rule) String() string { return r.discipline + "/" + r.drop }

// The two models of Symphony's table 2.
func resnet50(tb testing.TB, r rule) queue.ModelSpec {
	return spec(tb, r, queue.Linear(1053*us, 5072*us, 64), 25*ms)
}

func inceptionResNetV2(tb testing.TB, r rule) queue.ModelSpec {
	return spec(tb, r, queue.Linear(5090*us, 18368*us, 64), 70*ms)
}

func spec(tb testing.TB, r rule, table queue.Table, slo queue.Time) queue.ModelSpec {
	tb.Helper()
	d, err := queue.NewDiscipline(r.discipline, nil)
	require.NoError(tb, err)
	p, err := queue.NewDropPolicy(r.drop)
	require.NoError(tb, err)
	return queue.ModelSpec{
		Classes: []queue.Table{table}, MaxBatch: len(table) - 2, SLO: slo,
		Late: queue.LateDrop, Discipline: d, Drop: p,
	}
}

func workload(model queue.ModelSpec, models, executors int, seconds float64) Workload {
	return Workload{
		Models: Copies(model, models), Executors: Equal(executors),
		Seconds: seconds, Warmup: 1, Seed: 1,
	}
}

// table is copies of ResNet50 on equal executors.
func table() []struct{ models, executors int } {
	return []struct{ models, executors int }{
		{1, 1}, {1, 8}, {1, 4}, {2, 2}, {4, 4}, {8, 8}, {8, 4}, {20, 8}, {8, 2}, {8, 10}, {8, 12}, {8, 16}, {16, 32},
	}
}

// enough is how many seconds make a percent of bad requests a number to trust,
// and the tests still quick: fewer executors take fewer requests a second.
func enough(executors int) float64 { return max(3, 32/float64(executors)) }

// TestPublishedGoodput holds each discipline near what Symphony's own scheduler
// reaches in virtual time without delays, and eager near what that scheduler
// reaches when it is made eager.
func TestPublishedGoodput(t *testing.T) {
	for _, c := range []struct {
		name     string
		model    func(testing.TB, rule) queue.ModelSpec
		rule     rule
		low, top float64
	}{
		{"ResNet50", resnet50, rule{"deferred", "window"}, 5264, 5400},
		{"ResNet50", resnet50, rule{"eager", "window"}, 3740, 4000},
		{"ResNet50", resnet50, rule{"adaptive", "reserve"}, 5450, 5700},
		{"InceptionResNetV2", inceptionResNetV2, rule{"deferred", "window"}, 926, 970},
		{"InceptionResNetV2", inceptionResNetV2, rule{"adaptive", "reserve"}, 960, 1010},
	} {
		t.Run(fmt.Sprintf("%s/%v", c.name, c.rule), func(t *testing.T) {
			got := Goodput(workload(c.model(t, c.rule), 1, 8, 20), (c.low+c.top)/2)
			t.Logf("%.0f req/s", got)
			require.GreaterOrEqual(t, got, c.low)
			require.LessOrEqual(t, got, c.top)
		})
	}
}

// TestAdaptiveIsNeverFarFromTheBest compares disciplines, each with the drop
// policy that suits it, where deferring is right and where it collapses.
func TestAdaptiveIsNeverFarFromTheBest(t *testing.T) {
	for _, c := range table() {
		if c.models > 8 || c.executors == 10 || c.executors == 12 {
			continue // left to BenchmarkGoodput: too many requests for a quick test
		}
		goodput := func(r rule) float64 {
			return Goodput(workload(resnet50(t, r), c.models, c.executors, enough(c.executors)), 400*float64(c.executors))
		}
		adaptive := goodput(rule{"adaptive", "reserve"})
		best := max(goodput(rule{"deferred", "window"}), goodput(rule{"eager", "window"}))
		t.Logf("%d on %d: adaptive %.0f, best other %.0f", c.models, c.executors, adaptive, best)
		require.GreaterOrEqual(t, adaptive, .95*best, "%d models on %d executors", c.models, c.executors)
	}
}

// TestServingLateCostsLittle: serving requests that were given up costs at most 4% of
// the goodput.
func TestServingLateCostsLittle(t *testing.T) {
	for _, c := range []struct{ models, executors int }{{1, 1}, {1, 8}, {8, 4}, {4, 4}} {
		model := resnet50(t, rule{"adaptive", "reserve"})
		dropping := Goodput(workload(model, c.models, c.executors, enough(c.executors)), 400*float64(c.executors))
		model.Late = queue.LateServe
		serving := Goodput(workload(model, c.models, c.executors, enough(c.executors)), dropping)
		require.GreaterOrEqual(t, serving, .96*dropping, "%d models on %d executors", c.models, c.executors)
	}
}

// TestOverloadIsFlat: past the peak, more load does not mean fewer answers in
// time (Symphony, section 3.5), even while late requests are kept.
func TestOverloadIsFlat(t *testing.T) {
	for _, late := range []queue.Late{queue.LateDrop, queue.LateServe} {
		for _, r := range []rule{{"deferred", "window"}, {"adaptive", "reserve"}} {
			model := resnet50(t, r)
			model.Late = late
			for _, rate := range []float64{6000, 10000, 20000} {
				result := runWorkload(workload(model, 1, 8, 3), rate)
				good := float64(result.Sent[0]-result.Bad[0]) / 2
				require.Greater(t, good, 5300., "%v, late: %v, at %.0f req/s", r, late, rate)
			}
		}
	}
}

// TestOverloadKeepsThePeak: at three and ten times the load of full batches,
// adaptive answers at least .95 of the most that it answers in time at any load,
// whatever the profile, the SLO, and the numbers of models and executors.
func TestOverloadKeepsThePeak(t *testing.T) {
	for _, c := range []struct {
		name        string
		alpha, beta queue.Time
		most        int
		slo         queue.Time
	}{
		{"a limit of rows", 10 * ms, 20 * ms, 16, 500 * ms},
		{"a limit and a loose SLO", 10 * ms, 5 * ms, 16, 1000 * ms},
		{"strong", 1 * ms, 15 * ms, 64, 50 * ms},
		{"strong and loose", 1 * ms, 15 * ms, 64, 500 * ms},
		{"very strong", 1 * ms, 30 * ms, 32, 100 * ms},
		{"ResNet50", 1053 * us, 5072 * us, 64, 25 * ms},
		{"InceptionResNetV2", 5090 * us, 18368 * us, 64, 70 * ms},
		{"weak", 1 * ms, 1 * ms, 64, 25 * ms},
		{"very weak", 5 * ms, 1 * ms, 64, 50 * ms},
	} {
		table := queue.Linear(c.alpha, c.beta, c.most)
		largest := c.most
		for table.At(largest) > c.slo {
			largest--
		}
		for _, executors := range []int{1, 2, 8} {
			for _, models := range []int{1, 4} {
				full := float64(executors*largest) / table.At(largest).Duration().Seconds()
				w := workload(spec(t, rule{"adaptive", "reserve"}, table, c.slo), models, executors, max(5, 12*c.slo.Duration().Seconds()))
				w.Warmup = w.Seconds / 4
				good := func(of float64) float64 {
					result := runWorkload(w, of*full)
					n := 0
					for i, sent := range result.Sent {
						n += sent - result.Bad[i]
					}
					return float64(n) / (w.Seconds - w.Warmup)
				}
				peak := 0.0
				for _, of := range []float64{.8, .9, 1, 1.1, 1.3, 1.6} {
					// What was queued at the end of the warm-up is beyond what can be done.
					peak = max(peak, min(good(of), full))
				}
				for _, of := range []float64{3, 10} {
					require.GreaterOrEqual(t, good(of), .95*peak, "%s, %d models on %d executors, at %g times", c.name, models, executors, of)
				}
			}
		}
	}
}

// TestOverloadStaysOffTheEdge: where the SLO leaves room, executions that take
// longer than predicted do not make whole batches late while requests are given
// up in any case.
func TestOverloadStaysOffTheEdge(t *testing.T) {
	for _, c := range []struct {
		alpha, beta queue.Time
		most        int
		slo         queue.Time
	}{{10 * ms, 20 * ms, 16, 500 * ms}, {1 * ms, 15 * ms, 64, 500 * ms}, {10 * ms, 5 * ms, 16, 1000 * ms}} {
		table := queue.Linear(c.alpha, c.beta, c.most)
		for _, executors := range []int{1, 8} {
			w := workload(spec(t, rule{"adaptive", "reserve"}, table, c.slo), 1, executors, 12)
			w.Jitter, w.Inflated = .05, 1.05
			full := float64(executors*c.most) / table.At(c.most).Duration().Seconds()
			for _, of := range []float64{3, 10} {
				result := runWorkload(w, of*full)
				good := float64(result.Sent[0]-result.Bad[0]) / (w.Seconds - w.Warmup)
				require.GreaterOrEqual(t, good, full, "%v + %v a row, %d executors, at %g times", c.beta.Duration(), c.alpha.Duration(), executors, of)
			}
		}
	}
}

// TestStartsWellAtFullLoad: before rates are known, adaptive does no worse than
// deferring.
func TestStartsWellAtFullLoad(t *testing.T) {
	start := func(r rule) float64 {
		w := workload(resnet50(t, r), 1, 8, .5)
		w.Warmup = 0
		return runWorkload(w, 5300).WorstBad()
	}
	require.LessOrEqual(t, start(rule{"adaptive", "reserve"}), start(rule{"deferred", "thrift"})+.005)
}

// BenchmarkGoodput measures copies of a model on few executors under rivals with several drop policies; run it with
//
//	go test -bench Goodput -benchtime 1x ./sidecar/dispatch/queue/queuetest
func BenchmarkGoodput(b *testing.B) {
	measure := func(b *testing.B, w Workload, guess float64) {
		for b.Loop() {
			b.ReportMetric(Goodput(w, guess), "goodput-req/s")
		}
		b.ReportMetric(0, "ns/op")
	}
	rules := []rule{
		{"deferred", "window"}, {"deferred", "thrift"}, {"eager", "window"}, {"eager", "prefix"},
		{"eager", "thrift"}, {"eager", "reserve"}, {"adaptive", "thrift"}, {"adaptive", "reserve"},
	}
	for _, c := range table() {
		for _, r := range rules {
			b.Run(fmt.Sprintf("ResNet50/%dx%d/%v", c.models, c.executors, r), func(b *testing.B) {
				measure(b, workload(resnet50(b, r), c.models, c.executors, 60), 400*float64(c.executors))
			})
		}
	}
	for _, r := range rules {
		b.Run(fmt.Sprintf("InceptionResNetV2/1x8/%v", r), func(b *testing.B) {
			measure(b, workload(inceptionResNetV2(b, r), 1, 8, 100), 900)
		})
	}
}
