// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// spin does so many steps of work that nothing else waits for.
func spin(steps int, x uint64) uint64 {
	for range steps {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

// spinFor is how many steps take so long on this machine.
func spinFor(length time.Duration) (steps int, err error) {
	const probe = 1 << 24
	began, err := cpuTime()
	if err != nil {
		return 0, err
	}
	sink := spin(probe, 88172645463325252)
	ended, err := cpuTime()
	if err != nil || sink == 0 {
		return 0, err
	}
	return int(float64(probe) * length.Seconds() / (ended - began).Seconds()), nil
}

// spinning is how many steps a second so many goroutines do that share nothing, on as many cores.
func spinning(cores, steps int) float64 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
	var group sync.WaitGroup
	var sum atomic.Uint64
	began := time.Now()
	for i := range cores {
		group.Go(func() { sum.Add(spin(steps, uint64(i)+1)) })
	}
	group.Wait()
	return float64(cores*steps) / time.Since(began).Seconds()
}

// handed is how fast requests were handed in.
type handed struct {
	perSecond float64 // of wall time
	cpu       float64 // microseconds of all cores per request
}

// handIn lets all callers of an intake hand requests in until so many were, each after so many steps of work of its own.
func handIn(in intake, kind intakeKind, models, requests, steps int) (handed, error) {
	var group sync.WaitGroup
	var sum atomic.Uint64
	callers, stride := kind.callers()
	each := requests / callers
	used, err := cpuTime()
	if err != nil {
		return handed{}, err
	}
	began := time.Now()
	for caller := range callers {
		group.Go(func() {
			// A walk over the models in an order of the caller's own; all are alike.
			model, x := caller, uint64(caller)+1
			for range each {
				x = spin(steps, x)
				in.arrive(caller, model%models)
				model += stride
			}
			sum.Add(x) // so that the work is done
		})
	}
	group.Wait()
	wall := time.Since(began)
	after, err := cpuTime()
	n := float64(each * callers)
	return handed{perSecond: n / wall.Seconds(), cpu: float64((after - used).Nanoseconds()) / 1e3 / n}, err
}

// ownWork is what a request costs its caller besides the queue. Live it is more: reading, batching and answering a small request take some tens of
// microseconds.
const ownWork = 10 * time.Microsecond

// spinSteps are some tens of milliseconds.
const spinSteps = 1 << 24

// cores compares the intakes on one core and on two, in turns within one run: as fast as they can, and with callers that have work of their own.
func (b *bench) cores(ctx context.Context, r *figure.Report) error {
	steps, err := spinFor(ownWork)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name               string
		models, partitions int
		requests, steps    int
		note               string
	}{
		{"24x1000", 24, 1000, 1.5e6, 0, ""},
		{"64x4000", 64, 4000, 1.5e6, 0, ""},
		{"24x1000.working", 24, 1000, 1e5, steps, "; each request after " + ownWork.String() + " of its caller's own work"},
	} {
		if err := b.intakes(ctx, r, "core.sharded."+c.name, c.models, c.partitions, int(b.simulated(float64(c.requests))), c.steps, c.note); err != nil {
			return err
		}
	}
	r.Emulated = queueAlone
	return b.splitting(ctx, r)
}

func (b *bench) intakes(ctx context.Context, r *figure.Report, name string, models, partitions, requests, steps int, note string) error {
	rounds := b.roundsOr(7)
	var free []float64
	speeds, costs := map[string][]float64{}, map[string][]float64{}
	key := func(kind string, cores int) string { return fmt.Sprintf("%s.%s.%dcore", name, kind, cores) }
	for round := range rounds {
		b.say(fmt.Sprintf("%s, %d callers: round %d of %d", name, callers, round+1, rounds))
		single := spinning(1, spinSteps)
		free = append(free, spinning(2, spinSteps)/single)
		for _, cores := range []int{1, 2} {
			for _, kind := range intakes() {
				if err := ctx.Err(); err != nil {
					return err
				}
				result, err := measure(kind, models, partitions, requests, steps, cores, b.seed)
				if err != nil {
					return err
				}
				speeds[key(kind.name, cores)] = append(speeds[key(kind.name, cores)], result.perSecond)
				costs[key(kind.name, cores)] = append(costs[key(kind.name, cores)], result.cpu)
			}
		}
	}
	for _, kind := range intakes() {
		for _, cores := range []int{1, 2} {
			r.AddRuns(key(kind.name, cores)+".requests_per_second", speeds[key(kind.name, cores)], "req/s", kind.note+note)
			r.AddRuns(key(kind.name, cores)+".cpu_microseconds", costs[key(kind.name, cores)], "us", "of processor time per request")
		}
	}
	for _, kind := range intakes() {
		if kind.name != "lock" {
			r.AddRuns(fmt.Sprintf("%s.%s_over_lock", name, kind.name), ratios(speeds[key(kind.name, 2)], speeds[key("lock", 2)]), "ratio", "requests per second on two cores, in turns")
		}
	}
	for _, kind := range intakes() {
		r.AddRuns(fmt.Sprintf("%s.%s.two_cores_over_one", name, kind.name), ratios(speeds[key(kind.name, 2)], speeds[key(kind.name, 1)]), "ratio", "requests per second, in turns")
	}
	r.AddRuns(name+".spinning.two_cores_over_one", free, "ratio", "work that shares nothing, before each round: below 2, others had a part of the cores")
	return nil
}

// intakeRemarks say what is set against what, and what is not.
func intakeRemarks() []figure.Remark {
	return []figure.Remark{
		{About: "What runs on the cores", Text: "The callers too, except for `pinned`: 64 goroutines that do nothing but hand requests in leave less than two cores for the scheduling. " +
			"`pinned` is what the schedulers alone do with a core each: every shard makes its own requests, as in Symphony's own measurement of its scheduler (section 5.5)."},
		{About: "What Symphony does and no row measures", Text: "Model threads that gather candidates, and one thread that matches them with all GPUs (section 4.2). " +
			"The queue gathers and matches in one call, on lanes and partitions that one scheduler holds together, and `adaptive` looks at all of them to decide when a candidate may start. " +
			"`stripes` match in one goroutine, which also gathers; `owned` and `pinned` are threads per shard of the models, each with its own part of the partitions, so that nothing is matched between them. " +
			"What that costs in goodput is in the `halves_over_whole` rows."},
		{About: "How quiet the machine was", Text: "The `spinning` rows are a control: the speed of two goroutines that share nothing, on two cores, over that of one. It is 2 where nobody else runs."},
	}
}

// measure runs one intake on so many cores.
func measure(kind intakeKind, models, partitions, requests, steps, cores int, seed uint64) (handed, error) {
	in, err := kind.make(models, partitions, seed)
	if err != nil {
		return handed{}, err
	}
	defer in.close()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
	if _, err := handIn(in, kind, models, 500*partitions, 0); err != nil { // fills the queues
		return handed{}, err
	}
	return handIn(in, kind, models, requests, steps)
}

// ratios of two series of rounds.
func ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

// splitting measures what shards cost: partitions that are not shared. Models and GPUs are dealt out to two schedulers, as shards would have them.
func (b *bench) splitting(ctx context.Context, r *figure.Report) error {
	cases, err := zoo.Cases()
	if err != nil {
		return err
	}
	p := cases[0].Profile
	type pair struct{ whole, halves *cell }
	var pairs []pair
	var cells []*cell
	for _, load := range []struct {
		models, gpus int
		zipf         float64
	}{{8, 4, 0}, {8, 8, 0}, {8, 8, .9}, {24, 64, 0}, {24, 64, .9}} {
		popularity := "equal"
		model := scenario.Model{Name: p.Model, Count: load.models, Profile: &scenario.Profile{Alpha: scenario.Duration(p.Alpha), Beta: scenario.Duration(p.Beta)}, SLO: scenario.Duration(p.SLO), Late: "drop"}
		dealt := func(subclusters int) *cell {
			s := world(load.gpus, b.simulated(10), rule("adaptive", "", nil), model)
			if subclusters > 1 {
				s.Plan = &scenario.Plan{Subclusters: subclusters}
			}
			if load.zipf > 0 {
				popularity = "zipf"
				s.Zipf = &load.zipf
			}
			name := fmt.Sprintf("core.sharded.goodput.%don%d.%s", load.models, load.gpus, popularity)
			return &cell{name: name, guess: 400 * float64(load.gpus), scenario: s}
		}
		p := pair{dealt(1), dealt(2)}
		p.halves.name += ".halves"
		pairs, cells = append(pairs, p), append(cells, p.whole, p.halves)
	}
	if err := b.search(ctx, cells, min(3, b.roundsOr(3))); err != nil {
		return err
	}
	for _, p := range pairs {
		note := "simulated goodput of two schedulers with half of the models and GPUs each, over that of one with all"
		r.AddRuns(strings.TrimSuffix(p.halves.name, ".halves")+".halves_over_whole", ratios(rates(p.halves.found), rates(p.whole.found)), "ratio", note)
	}
	return nil
}
