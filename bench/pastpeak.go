// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// doorRoom is how many requests wait to be taken in. Those that arrive beyond are refused, before anything else is done for them, as conch's edge
// refuses what exceeds limits.queueRequests.
const doorRoom = 1024

// cpuTime is what this process has used. The queue has a core of its own, so that is its time; unlike wall time it does not count what other
// processes took.
func cpuTime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		return 0, fmt.Errorf("the process's own time: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// multiples of what the core can schedule that are offered.
func multiples() []float64 { return []float64{.7, .85, 1, 1.2, 1.5, 3} }

// offers are requests to come, drawn beforehand and repeated: the scheduler is measured, and not the sender. How many have come by a moment is
// looked up and not counted out, because a live sender, or the kernel, has that number; what is done about each of them is the scheduler's side.
type offers struct {
	at    []queue.Time // since began, rising; the last ends the lap
	model []uint8
	began queue.Time // the lap
	next  int
}

func newOffers(gaps []queue.Time, models int, multiple float64, began queue.Time) *offers {
	o := &offers{at: make([]queue.Time, len(gaps)), model: make([]uint8, len(gaps)), began: began}
	at := 0.
	for i, gap := range gaps {
		at += float64(gap) / multiple
		o.at[i], o.model[i] = queue.Time(at), uint8(i%models)
	}
	return o
}

// come is how many came until now and were not taken yet.
func (o *offers) come(now queue.Time) int {
	lap := o.at[len(o.at)-1]
	past := max(0, now-o.began)
	i, _ := slices.BinarySearch(o.at, past%lap+1)
	return int(past/lap)*len(o.at) + i - o.next
}

// take returns the next one.
func (o *offers) take() (at queue.Time, model uint8) {
	at, model = o.began+o.at[o.next], o.model[o.next]
	o.skip(1)
	return at, model
}

// skip passes over so many that are left of the lap.
func (o *offers) skip(many int) {
	if o.next += many; o.next == len(o.at) {
		o.next, o.began = 0, o.began+o.at[len(o.at)-1]
	}
}

// door is a crowd whose core is offered a multiple of what it can schedule.
type door struct {
	*crowd
	*offers
	multiple float64
	// bounded doors refuse a request that finds doorRoom others waiting; at unbounded doors all wait.
	bounded bool
	clock   queue.Time
	offered int
	refused []int // by model
	// perSecond is, by slice, how many requests a second of the core's time were in time.
	perSecond []float64
}

func newDoor(multiple float64, bounded bool, models, partitions, warm int, seed uint64) (*door, error) {
	c, err := newCrowd(models, partitions, seed)
	if err != nil {
		return nil, err
	}
	for i := range warm {
		c.arrive(i % models)
	}
	return &door{
		crowd: c, offers: newOffers(c.gaps, models, multiple, c.now),
		multiple: multiple, bounded: bounded, clock: c.now, refused: make([]int, models),
	}, nil
}

// open lets requests come for so long of the core's time. Speed is how many virtual seconds pass in one of the core's: so many that the
// partitions, which are few, end batches as fast as the core can schedule them.
func (d *door) open(speed float64, length time.Duration) error {
	began, err := cpuTime()
	if err != nil {
		return err
	}
	origin, before := d.clock, d.good
	for {
		used, err := cpuTime()
		if err != nil {
			return err
		}
		took := used - began
		d.clock = origin + queue.Time(float64(took)*speed)
		if took >= length {
			d.perSecond = append(d.perSecond, float64(d.good-before)/took.Seconds())
			return nil
		}
		d.until(d.clock)
		d.admit(d.come(d.clock))
	}
}

// admit admits the requests that have come, as far as there is room for them.
func (d *door) admit(come int) {
	d.offered += min(come, doorRoom)
	for range min(come, doorRoom) {
		at, model := d.take()
		d.enqueue(d.clock, at, int(model))
	}
	if d.bounded { // at others they wait on
		d.refuse(max(0, come-doorRoom))
	}
}

// refuse does for each of the next ones what is to be done for the refused: to see which model it is for, and to count it there.
func (d *door) refuse(many int) {
	d.offered += many
	for many > 0 {
		some := d.model[d.next:min(len(d.model), d.next+many)]
		for _, model := range some {
			d.refused[model]++
		}
		d.skip(len(some))
		many -= len(some)
	}
}

// forget begins the measurement anew.
func (d *door) forget() {
	d.perSecond, d.offered = d.perSecond[:0], 0
	clear(d.refused)
}

// refusedShare is the refused part of what was offered.
func (d *door) refusedShare() float64 {
	n := 0
	for _, refused := range d.refused {
		n += refused
	}
	return float64(n) / float64(d.offered)
}

// full is a crowd to whose core requests come as fast as it can schedule them.
type full struct {
	*crowd
	next int
}

// run returns how many requests per second of its time the core took in, for so long.
func (f *full) run(length time.Duration) (float64, error) {
	began, err := cpuTime()
	if err != nil {
		return 0, err
	}
	for n := 0; ; n += doorRoom {
		used, err := cpuTime()
		if err != nil {
			return 0, err
		}
		if took := used - began; took >= length {
			return float64(n) / took.Seconds(), nil
		}
		for range doorRoom {
			f.arrive(f.next)
			if f.next++; f.next == len(f.models) {
				f.next = 0
			}
		}
	}
}

// slice is how long a load runs before it is the next one's turn: so short that what else the machine does disturbs all loads alike.
const slice = 20 * time.Millisecond

// capacitySlices is over how many slices the core's capacity is taken, which changes with what else the machine does.
const capacitySlices = 9

// inTurns runs the doors in turns, each for so many slices, at multiples of the core's capacity of the moment.
func inTurns(ctx context.Context, whole *full, doors []*door, turns int) error {
	var capacity []float64
	for len(capacity) < turns+capacitySlices {
		perSecond, err := whole.run(slice)
		if err != nil {
			return err
		}
		if capacity = append(capacity, perSecond); len(capacity) <= capacitySlices {
			continue
		}
		speed := median(capacity[len(capacity)-capacitySlices:]) / whole.rate
		for _, d := range doors {
			if err := errors.Join(ctx.Err(), d.open(speed, slice)); err != nil {
				return err
			}
		}
	}
	return nil
}

func median(runs []float64) float64 {
	sorted := slices.Sorted(slices.Values(runs))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// peak is the door whose median is the highest. The highest of all single measurements would be the luckiest slice, above what any load can do,
// and the more loads there are, the further.
func peak(doors []*door) *door {
	return slices.MaxFunc(doors, func(a, b *door) int { return cmp.Compare(median(a.perSecond), median(b.perSecond)) })
}

// paired is the median ratio of two doors' slices of the same turn.
func paired(a, b *door) float64 { return median(ratios(a.perSecond, b.perSecond)) }

// pastThePeak offers up to three times what the core can schedule, with a bounded door, and at the end without.
func (b *bench) pastThePeak(ctx context.Context, r *figure.Report) error {
	const models, partitions, warmTurns = 24, 1000, 25
	rounds := b.roundsOr(5)
	warm, turns := int(b.simulated(1e6)), int(b.simulated(100))
	runs := map[string][]float64{}
	name := func(multiple float64) string {
		return fmt.Sprintf("core.past.offered%g.scheduled_per_second", multiple)
	}
	var flat, refused, unbounded []float64
	for round := range rounds {
		b.say(fmt.Sprintf("past the core's capacity: round %d of %d", round+1, rounds))
		seed := b.seed + uint64(round)
		c, err := newCrowd(models, partitions, seed)
		if err != nil {
			return err
		}
		var doors []*door
		for _, multiple := range append(multiples(), 3) {
			d, err := newDoor(multiple, len(doors) < len(multiples()), models, partitions, warm, seed)
			if err != nil {
				return err
			}
			doors = append(doors, d)
		}
		for i := range warm {
			c.arrive(i % models)
		}
		whole := &full{crowd: c}
		if err := inTurns(ctx, whole, doors, warmTurns); err != nil {
			return err
		}
		for _, d := range doors {
			d.forget()
		}
		if err := inTurns(ctx, whole, doors, turns); err != nil {
			return err
		}
		bounded, without := doors[:len(multiples())], doors[len(multiples())]
		last, most := bounded[len(bounded)-1], peak(bounded)
		for _, d := range bounded {
			runs[name(d.multiple)] = append(runs[name(d.multiple)], median(d.perSecond))
		}
		flat = append(flat, paired(last, most))
		refused = append(refused, last.refusedShare())
		unbounded = append(unbounded, paired(without, most))
	}
	for _, multiple := range multiples() {
		r.AddRuns(name(multiple), runs[name(multiple)], "req/s", fmt.Sprintf("in time, at %g times what the core can schedule; per second of its own time", multiple))
	}
	r.AddRuns("core.past.offered3.over_peak", flat, "ratio", "scheduled in time at three times the core's capacity, over the load with the highest median; medians of slices in turns")
	r.AddRuns("core.past.offered3.refused", refused, "ratio", "of the offered requests, at the door")
	r.AddRuns("core.past.offered3.unbounded_over_peak", unbounded, "ratio", "the same where every request is taken in, however many wait")
	return nil
}

// ratios are a over b, one by one.
func ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}
