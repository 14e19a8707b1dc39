// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package learning_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/observe"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// plant is queue, forecast and recorder in one loop on a virtual clock, as conch ties them
// together: what the queue executes is what the recorder learns from, and what it learnt is
// what the queue decides by. Executions take the truth, 1% of noise, and what disturbs them.
type plant struct {
	load
	t        testing.TB
	recorder *observe.Recorder
	sched    *queue.Scheduler
	arrivals *rand.Rand
	noise    *rand.Rand
	now      queue.Time
	running  []completion
	ids      []queue.ModelID
	specs    []queue.ModelSpec
	pushed   map[string]*policy.Profile

	// good and bad count requests by the second of their arrival; sizes the batches of
	// each model in the last ten seconds, by rows.
	good, bad []int
	sizes     []map[int][]queue.Time
}

// load is what a plant is given.
type load struct {
	models, partitions int
	rate               float64 // requests per second, of all models
	seconds            int
	slo                time.Duration
	late               queue.Late
	seed               uint64
	// truth of l(b) without noise, and by what factor a batch of a model that starts at a
	// moment is slower.
	truth   func(rows int) time.Duration
	disturb func(at time.Duration, model, rows int) float64
	// declared is the line that an operator declares, calibrated whether a warm-up measures
	// each model at the start.
	declared   *observe.Line
	calibrated bool
}

type completion struct {
	at       queue.Time
	batch    *queue.Batch
	start    queue.Time
	requests []*queue.Request
}

const (
	plantGPU  = "T4"
	plantMost = 16
)

func modelName(i int) string { return fmt.Sprint("m", i) }

// wall is the wall clock's time of the virtual clock's zero.
func wall(now queue.Time) time.Time { return start.Add(now.Duration()) }

func (l load) run(t testing.TB) *plant {
	p := &plant{
		load: l, t: t, arrivals: rand.New(rand.NewPCG(l.seed, 7)), noise: rand.New(rand.NewPCG(l.seed, 8)), pushed: map[string]*policy.Profile{},
		good: make([]int, l.seconds), bad: make([]int, l.seconds),
	}
	var err error
	p.recorder, err = observe.New(nil)
	require.NoError(t, err)
	p.sched = queue.New(p, queue.Options{Trial: 5e8})
	spec := queue.ExecutorSpec{}
	for i := range l.models {
		p.recorder.SetModel(modelName(i), "r", plantMost, l.declared)
		p.recorder.DeclareOn(modelName(i), plantGPU)
		p.specs = append(p.specs, queue.ModelSpec{Name: modelName(i), MaxBatch: plantMost, SLO: queue.Time(l.slo), Late: l.late})
		p.ids = append(p.ids, p.sched.AddModel(0, p.specs[i]))
		p.sizes = append(p.sizes, map[int][]queue.Time{})
		spec.Serves = append(spec.Serves, queue.Service{Model: p.ids[i]})
		if l.calibrated {
			var samples []observe.Sample
			for rows := 1; rows <= plantMost; rows *= 2 {
				for range 3 {
					samples = append(samples, observe.Sample{Rows: rows, Duration: p.takes(i, rows)})
				}
			}
			p.recorder.Calibrated(modelName(i), plantGPU, 100, samples)
		}
	}
	p.sched.Reconfigure(0, func() {
		for rank := range int32(l.partitions) {
			spec.Rank = rank
			p.sched.AddExecutor(0, spec)
		}
	})
	p.push()
	p.loop()
	return p
}

func (p *plant) takes(model, rows int) time.Duration {
	factor := 1 + .01*p.noise.NormFloat64()
	if p.disturb != nil {
		factor *= p.disturb(p.now.Duration(), model, rows)
	}
	return time.Duration(float64(p.truth(rows)) * factor)
}

// loop runs the events in order.
func (p *plant) loop() {
	next := func() queue.Time { return p.now + queue.Time(p.arrivals.ExpFloat64()/p.rate*1e9) }
	arrival, tick, end := next(), queue.Time(5e8), queue.Time(p.seconds)*1e9
	for {
		done := queue.Never
		if len(p.running) > 0 {
			done = p.running[0].at
		}
		p.now = min(arrival, done, tick, p.sched.Next())
		if p.now >= end {
			return
		}
		switch p.now {
		case done:
			p.complete()
		case arrival:
			i := p.arrivals.IntN(p.models)
			p.recorder.Arrived(modelName(i), 1, wall(p.now))
			p.sched.Enqueue(p.now, p.ids[i], &queue.Request{Arrival: p.now, Tag: i})
			arrival = next()
		case tick:
			p.push()
			tick += 5e8
		default:
			p.sched.Advance(p.now)
		}
	}
}

func (p *plant) Dispatch(b *queue.Batch) {
	model := b.Requests[0].Tag.(int)
	c := completion{at: p.now + queue.Time(p.takes(model, b.Rows)), batch: b, start: p.now, requests: slices.Clone(b.Requests)}
	i, _ := slices.BinarySearchFunc(p.running, c.at, func(o completion, at queue.Time) int { return cmp.Compare(o.at, at) })
	p.running = slices.Insert(p.running, i, c)
	p.sizes[model][b.Rows] = append(p.sizes[model][b.Rows], p.now)
}

func (p *plant) complete() {
	c := p.running[0]
	p.running = p.running[1:]
	model := c.requests[0].Tag.(int)
	p.recorder.Executed(observe.Execution{
		Model: modelName(model), Partition: "p", GPUType: plantGPU, ThreadPercentage: 100, Rows: len(c.requests), Requests: len(c.requests), Start: wall(c.start), End: wall(p.now),
	})
	for _, r := range c.requests {
		p.count(r, p.now <= r.Arrival+queue.Time(p.slo))
	}
	p.sched.Complete(p.now, c.batch.Executor)
}

func (p *plant) Drop(r *queue.Request, _ queue.DropReason) { p.count(r, false) }

func (p *plant) count(r *queue.Request, ok bool) {
	if ok {
		p.good[r.Arrival/1e9]++
	} else {
		p.bad[r.Arrival/1e9]++
	}
}

// push passes the profiles that moved to the queue, as control does twice a second.
func (p *plant) push() {
	for _, profile := range p.recorder.Profiles() {
		before := p.pushed[profile.GetModel()]
		if !observe.Moved(before, profile, .02) {
			continue
		}
		p.pushed[profile.GetModel()] = profile
		i := slices.IndexFunc(p.specs, func(s queue.ModelSpec) bool { return s.Name == profile.GetModel() })
		if profile.GetUsable() {
			p.specs[i].Classes = []queue.Table{forecast.Table(profile, 100, plantMost, 0)}
			p.specs[i].Optimistic = []queue.Table{forecast.Optimistic(profile, 100, plantMost, 0)}
		}
		require.NoError(p.t, p.sched.SetModel(p.now, p.ids[i], p.specs[i]))
	}
}

// goodput is in requests per second, of those that arrived from one second to another.
func (p *plant) goodput(from, to int) (good, badRate float64) {
	g, b := 0, 0
	for s := from; s < to; s++ {
		g, b = g+p.good[s], b+p.bad[s]
	}
	return float64(g) / float64(to-from), float64(b) / float64(g+b)
}

// inUse lists the sizes that a model was executed with in the time, at least so many times.
func (p *plant) inUse(model int, from, to queue.Time, times int) []int {
	var sizes []int
	for rows, at := range p.sizes[model] {
		n := 0
		for _, t := range at {
			if t >= from && t < to {
				n++
			}
		}
		if n >= times {
			sizes = append(sizes, rows)
		}
	}
	slices.Sort(sizes)
	return sizes
}

// resnet is ResNet50 on a GTX 1080 Ti by Symphony's Table 2, five-fold: 30.6 ms for a row.
func resnet(rows int) time.Duration {
	return 5 * (5072*time.Microsecond + time.Duration(rows)*1053*time.Microsecond)
}

var declaredResnet = &observe.Line{Alpha: 5 * 1053 * time.Microsecond, Beta: 5 * 5072 * time.Microsecond}

// disturbance slows executions down for five seconds.
type disturbance struct {
	name string
	from int // seconds
	// slow is by what factor a batch of so many rows takes longer meanwhile that starts so
	// long after the beginning.
	slow func(since time.Duration, rows int) float64
}

func (d disturbance) factor(at time.Duration, _, rows int) float64 {
	since := at - time.Duration(d.from)*time.Second
	if since < 0 || since >= 5*time.Second {
		return 1
	}
	return d.slow(since, rows)
}

func disturbances() []disturbance {
	all := func(time.Duration, int) float64 { return 4 }
	threeRows := func(_ time.Duration, rows int) float64 {
		if rows == 3 {
			return 2.5
		}
		return 1
	}
	batches := func(_ time.Duration, rows int) float64 {
		if rows > 2 {
			return 2.5
		}
		return 1
	}
	stalls := func(since time.Duration, _ int) float64 {
		if since%(500*time.Millisecond) < 200*time.Millisecond {
			return 6
		}
		return 1
	}
	return []disturbance{
		{"all sizes at the start", 0, all}, {"all sizes later", 20, all}, {"one size at the start", 0, threeRows}, {"one size later", 20, threeRows},
		{"larger batches at the start", 0, batches}, {"larger batches later", 20, batches}, {"stalls at the start", 0, stalls},
	}
}

// TestDisturbancesEnd: from twenty seconds after a disturbance of five on goodput is what it
// would be, every l(b) in use is within 3% of the truth, and every one that would be in use had
// nothing happened within 15%, so that nothing keeps it out.
func TestDisturbancesEnd(t *testing.T) {
	const later, end = 25, 60 // seconds: from the beginning of a disturbance until it must be over, and in all
	loads := map[string]load{
		"twenty models, late dropped":            {models: 20, partitions: 8, rate: 150, slo: 110 * time.Millisecond, late: queue.LateDrop},
		"eight models under load":                {models: 8, partitions: 4, rate: 235, slo: 125 * time.Millisecond, late: queue.LateDrop},
		"one model under load, late served last": {models: 1, partitions: 4, rate: 450, slo: 125 * time.Millisecond},
	}
	for _, prior := range []string{"declared", "calibrated", "nothing known"} {
		for _, name := range slices.Sorted(maps.Keys(loads)) {
			l := loads[name]
			l.truth, l.seconds, l.seed = resnet, end, 1
			switch prior {
			case "declared":
				l.declared = declaredResnet
			case "calibrated":
				l.calibrated = true
			}
			quiet := l.run(t)
			for _, d := range disturbances() {
				t.Run(prior+"/"+name+"/"+d.name, func(t *testing.T) {
					l := l
					l.disturb = d.factor
					p := l.run(t)
					want, _ := quiet.goodput(d.from+later, end)
					good, bad := p.goodput(d.from+later, end)
					t.Logf("goodput %.1f, %.1f undisturbed, bad %.2f%%; %d trials, %d probes", good, want, 100*bad, p.sched.Stats().Trials, p.sched.Stats().Probes)
					require.Greater(t, good, .97*want)
					for model := range l.models {
						profile := p.pushed[modelName(model)]
						used := p.inUse(model, (end-10)*1e9, end*1e9, 3)
						wanted := quiet.inUse(model, (end-10)*1e9, end*1e9, 5)
						for _, rows := range slices.Compact(slices.Sorted(slices.Values(append(wanted, used...)))) {
							got, ok := profile.Latency(uint32(rows), 100)
							require.True(t, ok)
							off, most := got/float64(resnet(rows).Microseconds())-1, .03
							if !slices.Contains(used, rows) {
								most = .15 // it is not in use, but would be without the disturbance: nothing keeps it out
							}
							require.Less(t, math.Abs(off), most, "%s: l(%d) is off by %.1f%%; in use %v, undisturbed %v", modelName(model), rows, 100*off, used, wanted)
						}
					}
				})
			}
		}
	}
}
