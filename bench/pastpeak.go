// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
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

// door is a crowd whose core is offered a multiple of what it can schedule.
type door struct {
	*crowd
	multiple float64
	room     int
	gaps     []queue.Time
	next     int // the model of the next request
	// took is the core's time; of the offered requests some were refused.
	took             time.Duration
	offered, refused int
	before           int // good requests
}

func newDoor(multiple float64, room, models, partitions, warm int, seed uint64) (*door, error) {
	c, err := newCrowd(models, partitions, seed)
	if err != nil {
		return nil, err
	}
	d := &door{crowd: c, multiple: multiple, room: room, gaps: make([]queue.Time, len(c.gaps))}
	for i, gap := range c.gaps {
		// Drawn beforehand: what is measured is the scheduler, not who sends.
		d.gaps[i] = queue.Time(float64(gap) / multiple)
	}
	for i := range warm {
		c.arrive(i % models)
	}
	d.before = c.good
	return d, nil
}

// open lets more requests come. Speed is how many virtual seconds pass in one of the core's: so many that the partitions, which are few, end
// batches as fast as the core can schedule them.
func (d *door) open(speed float64, requests int) error {
	began, err := cpuTime()
	if err != nil {
		return err
	}
	origin, most := d.now, d.offered+requests
	d.arrival = d.now
	var took time.Duration
	for d.offered < most {
		used, err := cpuTime()
		if err != nil {
			return err
		}
		took = used - began
		now := origin + queue.Time(float64(took)*speed)
		d.until(now)
		for taken := 0; d.arrival <= now; d.offered++ {
			arrived := d.arrival
			d.i = (d.i + 1) & (len(d.gaps) - 1)
			d.arrival += d.gaps[d.i]
			if taken >= d.room {
				d.refused++
				continue
			}
			taken++
			d.enqueue(now, arrived, d.next)
			if d.next++; d.next == len(d.models) {
				d.next = 0
			}
		}
	}
	d.took += took
	return nil
}

// scheduled is how many requests a second of the core's time were in time.
func (d *door) scheduled() float64 { return float64(d.good-d.before) / d.took.Seconds() }

// capacity is how many requests per second of its time a core takes through a scheduler.
func capacity(models, partitions, requests int, seed uint64) (perSecond, virtual float64, err error) {
	c, err := newCrowd(models, partitions, seed)
	if err != nil {
		return 0, 0, err
	}
	for i := range requests { // fills the queues
		c.arrive(i % models)
	}
	began, err := cpuTime()
	if err != nil {
		return 0, 0, err
	}
	for i := range requests {
		c.arrive(i % models)
	}
	ended, err := cpuTime()
	return float64(requests) / (ended - began).Seconds(), c.rate, err
}

// pieces is into how many pieces each load is cut: they take turns, so that what else the machine does disturbs all loads alike.
const pieces = 10

// pastThePeak offers up to three times what the core can schedule, with a bounded door, and at the end without.
func (b *bench) pastThePeak(ctx context.Context, r *figure.Report) error {
	const models, partitions = 24, 1000
	rounds := b.roundsOr(5)
	warm, requests := int(b.simulated(1e6)), b.simulated(2e6)
	runs := map[string][]float64{}
	name := func(multiple float64) string {
		return fmt.Sprintf("core.past.offered%g.scheduled_per_second", multiple)
	}
	var flat, refused, unbounded []float64
	for round := range rounds {
		b.say(fmt.Sprintf("past the core's capacity: round %d of %d", round+1, rounds))
		seed := b.seed + uint64(round)
		perSecond, virtual, err := capacity(models, partitions, warm, seed)
		if err != nil {
			return err
		}
		var doors []*door
		for _, multiple := range append(multiples(), 3) {
			room := doorRoom
			if len(doors) == len(multiples()) {
				room = math.MaxInt // the last takes everybody in
			}
			d, err := newDoor(multiple, room, models, partitions, warm, seed)
			if err != nil {
				return err
			}
			doors = append(doors, d)
		}
		for range pieces {
			for _, d := range doors {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := d.open(perSecond/virtual, int(requests*max(1, d.multiple)/pieces)); err != nil {
					return err
				}
			}
		}
		peak := 0.0
		for _, d := range doors[:len(multiples())] {
			runs[name(d.multiple)] = append(runs[name(d.multiple)], d.scheduled())
			peak = max(peak, d.scheduled())
		}
		last, without := doors[len(multiples())-1], doors[len(multiples())]
		flat = append(flat, last.scheduled()/peak)
		refused = append(refused, float64(last.refused)/float64(last.offered))
		unbounded = append(unbounded, without.scheduled()/peak)
	}
	for _, multiple := range multiples() {
		r.AddRuns(name(multiple), runs[name(multiple)], "req/s", fmt.Sprintf("in time, at %g times what the core can schedule; per second of its own time", multiple))
	}
	r.AddRuns("core.past.offered3.over_peak", flat, "ratio", "scheduled in time at three times the core's capacity, over the most at any load")
	r.AddRuns("core.past.offered3.refused", refused, "ratio", "of the offered requests, at the door")
	r.AddRuns("core.past.offered3.unbounded_over_peak", unbounded, "ratio", "the same where every request is taken in, however many wait")
	return nil
}
