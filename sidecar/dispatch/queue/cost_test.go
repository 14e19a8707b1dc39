// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

const (
	short, long = 64, 64 * 64 // waiting requests
	// steeper is by how many times as much processor time a request may take in a long lane. What is linear in the lane
	// takes dozens of times as much; what is not differs only by the effect of the processor's caches.
	steeper = 6
)

// crowd is a lane in which requests wait for one executor that is busy.
type crowd struct {
	*queue.Scheduler
	t        *testing.T
	model    queue.ModelID
	running  queue.ExecutorID
	now      queue.Time
	requests []queue.Request
}

const hour = queue.Time(time.Hour)

func (c *crowd) Dispatch(b *queue.Batch) { c.running = b.Executor }

func (c *crowd) Drop(_ *queue.Request, why queue.DropReason) {
	require.Fail(c.t, "nobody is late", why.String())
}

// arrive lets the next n requests arrive.
func (c *crowd) arrive(n int) {
	for i := range n {
		r := &c.requests[i]
		r.Arrival = c.now
		c.Enqueue(c.now, c.model, r)
		c.Advance(c.now)
	}
	c.requests = c.requests[n:]
}

// newCrowd lets so many requests wait, and has room for more. Of the executors the first is busy.
func newCrowd(t *testing.T, d queue.Discipline, waiting, more, maxBatch, executors int) *crowd {
	c := &crowd{t: t, requests: make([]queue.Request, 1+waiting+more)}
	c.Scheduler = queue.New(c, queue.Options{})
	c.model = c.AddModel(0, queue.ModelSpec{Classes: []queue.Table{queue.Linear(1e3, 1e6, maxBatch)}, MaxBatch: maxBatch, SLO: hour, Discipline: d})
	for rank := range executors {
		c.AddExecutor(0, queue.ExecutorSpec{Rank: int32(rank), Serves: []queue.Service{{Model: c.model}}})
	}
	c.arrive(1)
	if c.running == queue.NoExecutor { // it waits for company as long as it can
		c.now = c.Next()
		c.Advance(c.now)
	}
	require.NotEqual(t, queue.NoExecutor, c.running)
	c.arrive(waiting)
	requests, _ := c.Queued(c.model)
	require.Equal(t, waiting, requests, "they wait")
	return c
}

// TestARequestCostsTheSameInALongLane: the cost of queueing and running a request does not grow with the number of waiting requests. The test
// compares the processor time of this thread, the least of some rounds in turns, which does not include the time of other processes.
func TestARequestCostsTheSameInALongLane(t *testing.T) {
	const full = 64
	whole := func(waiting int) int { return 2 * waiting }
	for name, of := range map[string]struct {
		maxBatch  func(waiting int) int
		executors int
		in        func(c *crowd)
		requests  int // that it takes
		// only are the disciplines that the case is for, all of them if empty; but are the disciplines that it leaves out, and why.
		only []string
		but  map[string]string
	}{
		"arrive at a batch that has room for all": {
			maxBatch: whole, executors: 1, requests: short, in: func(c *crowd) { c.arrive(short) },
			but: map[string]string{"duty-cycle": "its limit is that of the turn, so that what has gathered is looked at again"},
		},
		"arrive behind full batches": {maxBatch: func(int) int { return full }, executors: 1, requests: short, in: func(c *crowd) { c.arrive(short) }},
		"arrive where waiting is on purpose": {
			maxBatch: whole, executors: 4, requests: short, in: func(c *crowd) { c.arrive(short) },
			only: []string{"adaptive", "deferred", "timeout"},
		},
		"arrive, and run in full batches": {
			maxBatch: func(int) int { return full }, executors: 1, requests: 4 * full, in: func(c *crowd) {
				for range 4 {
					c.arrive(full)
					c.Complete(c.now, c.running)
				}
			},
		},
	} {
		for _, discipline := range queue.Names() {
			if len(of.only) > 0 && !slices.Contains(of.only, discipline) || of.but[discipline] != "" {
				continue
			}
			t.Run(name+"/"+discipline, func(t *testing.T) {
				params := map[string]string{}
				if discipline == "timeout" {
					params["max_queue_delay"] = "1h"
				}
				d, err := queue.NewDiscipline(discipline, params)
				require.NoError(t, err)
				least := map[int]time.Duration{short: math.MaxInt64, long: math.MaxInt64}
				for range 5 {
					for waiting, before := range least {
						c := newCrowd(t, d, waiting, of.requests, of.maxBatch(waiting), of.executors)
						least[waiting] = min(before, threadTime(t, func() { of.in(c) }))
					}
				}
				ratio := float64(least[long]) / float64(least[short])
				t.Logf("%v per request with %d waiting, %v with %d: %.2f times", least[short]/time.Duration(of.requests), short, least[long]/time.Duration(of.requests), long, ratio)
				require.Less(t, ratio, float64(steeper), "a request costs more the more others wait")
			})
		}
	}
}

// TestARequestThatMayExpireCostsTheSameInALongLane: it enlarges no batch, and comes behind others whose deadlines have passed and whose expiries have not. Only its own expiry is new.
func TestARequestThatMayExpireCostsTheSameInALongLane(t *testing.T) {
	const arriving, slo = 64, queue.Time(1000)
	least := map[int]time.Duration{short: math.MaxInt64, long: math.MaxInt64}
	for range 5 {
		for waiting, before := range least {
			c := &crowd{t: t, requests: make([]queue.Request, 1+waiting+arriving)}
			for i := range c.requests {
				c.requests[i].Expiry = hour
			}
			c.Scheduler = queue.New(c, queue.Options{})
			c.model = c.AddModel(0, queue.ModelSpec{MaxBatch: 8, SLO: slo})
			c.AddExecutor(0, queue.ExecutorSpec{Serves: []queue.Service{{Model: c.model}}})
			c.arrive(1 + waiting)
			c.now = 2 * slo
			c.Advance(c.now)
			least[waiting] = min(before, threadTime(t, func() { c.arrive(arriving) }))
		}
	}
	t.Logf("%v with %d waiting, %v with %d", least[short]/arriving, short, least[long]/arriving, long)
	require.Less(t, float64(least[long])/float64(least[short]), float64(steeper), "a request costs more the more others wait")
}

// threadTime is how long f keeps a processor busy.
func threadTime(t *testing.T, f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var from, to unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &from))
	f()
	require.NoError(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &to))
	return time.Duration(to.Nano() - from.Nano())
}
