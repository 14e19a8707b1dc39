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

// callers is how many goroutines hand requests in at once, as the goroutines of calls do live.
const callers = 64

// intake is a way in which many callers reach the queue.
type intake interface {
	// arrive hands one request in, for a caller.
	arrive(caller, model int)
	// close ends what runs in the background.
	close()
}

// intakes are what is compared: one scheduler behind one lock, which is how sidecar/dispatch does it; Symphony's division of labour (section 4),
// in which callers leave requests in stripes and a goroutine alone matches; and schedulers of their own for halves of the models and partitions.
func intakes() []struct {
	name, note string
	make       func(models, partitions int, seed uint64) (intake, error)
} {
	return []struct {
		name, note string
		make       func(models, partitions int, seed uint64) (intake, error)
	}{
		{"lock", "one scheduler behind one lock, as conch has it", func(m, p int, seed uint64) (intake, error) { return newShards(1, m, p, seed) }},
		{"stripes", "callers leave requests in stripes, one goroutine matches", newStripes},
		{"sharded", "two schedulers, each with half of the models and partitions", func(m, p int, seed uint64) (intake, error) { return newShards(2, m, p, seed) }},
	}
}

// shards split models and partitions evenly over schedulers with a lock each.
type shards []*shard

type shard struct {
	mu sync.Mutex
	*crowd
	_ [64]byte // the next one's lock is on another cache line
}

func newShards(n, models, partitions int, seed uint64) (intake, error) {
	all := make(shards, n)
	for i := range all {
		c, err := newCrowd(models/n, partitions/n, seed+uint64(i))
		if err != nil {
			return nil, err
		}
		all[i] = &shard{crowd: c}
	}
	return all, nil
}

func (all shards) arrive(_, model int) {
	s := all[model%len(all)]
	s.mu.Lock()
	s.arrive(model / len(all))
	s.mu.Unlock()
}

func (shards) close() {}

const (
	stripeCount = 8
	// stripeRoom is how many requests wait in a stripe before callers do.
	stripeRoom = 512
)

// stripes collect what callers hand in; one goroutine takes it from there.
type stripes struct {
	crowd *crowd
	all   [stripeCount]stripe
	// wake tells the goroutine that a stripe was empty and is not any more.
	wake  chan struct{}
	stop  chan struct{}
	ended sync.WaitGroup
}

type stripe struct {
	mu     sync.Mutex
	room   sync.Cond
	models []int32
	_      [64]byte // the next one's lock is on another cache line
}

func newStripes(models, partitions int, seed uint64) (intake, error) {
	c, err := newCrowd(models, partitions, seed)
	if err != nil {
		return nil, err
	}
	s := &stripes{crowd: c, wake: make(chan struct{}, 1), stop: make(chan struct{})}
	for i := range s.all {
		one := &s.all[i]
		one.models, one.room.L = make([]int32, 0, stripeRoom), &one.mu
	}
	s.ended.Go(s.match)
	return s, nil
}

func (s *stripes) arrive(caller, model int) {
	one := &s.all[caller%stripeCount]
	one.mu.Lock()
	for len(one.models) == cap(one.models) {
		one.room.Wait()
	}
	one.models = append(one.models, int32(model))
	first := len(one.models) == 1
	one.mu.Unlock()
	if first {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// match is the one goroutine that knows the scheduler.
func (s *stripes) match() {
	spare := make([]int32, 0, stripeRoom)
	for {
		select {
		case <-s.wake:
		case <-s.stop:
			s.take(spare)
			return
		}
		spare = s.take(spare)
	}
}

// take empties all stripes, and returns the space of the last.
func (s *stripes) take(spare []int32) []int32 {
	for i := range s.all {
		one := &s.all[i]
		one.mu.Lock()
		taken := one.models
		one.models = spare[:0]
		one.room.Broadcast()
		one.mu.Unlock()
		for _, model := range taken {
			s.crowd.arrive(int(model))
		}
		spare = taken
	}
	return spare
}

func (s *stripes) close() {
	close(s.stop)
	s.ended.Wait()
}

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

// handed is how fast requests were handed in.
type handed struct {
	perSecond float64 // of wall time
	cpu       float64 // microseconds of all cores per request
}

// handIn lets all callers hand requests in until so many were, each after so many steps of work of its own.
func handIn(in intake, models, requests, steps int) (handed, error) {
	var group sync.WaitGroup
	var sum atomic.Uint64
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
				model += 7
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
	speeds, costs := map[string][]float64{}, map[string][]float64{}
	key := func(kind string, cores int) string { return fmt.Sprintf("%s.%s.%dcore", name, kind, cores) }
	for round := range rounds {
		b.say(fmt.Sprintf("%s, %d callers: round %d of %d", name, callers, round+1, rounds))
		for _, cores := range []int{1, 2} {
			for _, kind := range intakes() {
				if err := ctx.Err(); err != nil {
					return err
				}
				one, err := measure(kind.make, models, partitions, requests, steps, cores, b.seed)
				if err != nil {
					return err
				}
				speeds[key(kind.name, cores)] = append(speeds[key(kind.name, cores)], one.perSecond)
				costs[key(kind.name, cores)] = append(costs[key(kind.name, cores)], one.cpu)
			}
		}
	}
	for _, kind := range intakes() {
		for _, cores := range []int{1, 2} {
			r.AddRuns(key(kind.name, cores)+".requests_per_second", speeds[key(kind.name, cores)], "req/s", kind.note+note)
			r.AddRuns(key(kind.name, cores)+".cpu_microseconds", costs[key(kind.name, cores)], "us", "of processor time per request")
		}
	}
	for _, kind := range []string{"stripes", "sharded"} {
		r.AddRuns(fmt.Sprintf("%s.%s_over_lock", name, kind), ratios(speeds[key(kind, 2)], speeds[key("lock", 2)]), "ratio", "requests per second on two cores, in turns")
	}
	return nil
}

// measure runs one intake on so many cores.
func measure(open func(models, partitions int, seed uint64) (intake, error), models, partitions, requests, steps, cores int, seed uint64) (handed, error) {
	in, err := open(models, partitions, seed)
	if err != nil {
		return handed{}, err
	}
	defer in.close()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
	if _, err := handIn(in, models, 500*partitions, 0); err != nil { // fills the queues
		return handed{}, err
	}
	return handIn(in, models, requests, steps)
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
		one := pair{dealt(1), dealt(2)}
		one.halves.name += ".halves"
		pairs, cells = append(pairs, one), append(cells, one.whole, one.halves)
	}
	if err := b.search(ctx, cells, min(3, b.roundsOr(3))); err != nil {
		return err
	}
	for _, one := range pairs {
		note := "simulated goodput of two schedulers with half of the models and GPUs each, over that of one with all"
		r.AddRuns(strings.TrimSuffix(one.halves.name, ".halves")+".halves_over_whole", ratios(rates(one.halves.found), rates(one.whole.found)), "ratio", note)
	}
	return nil
}
