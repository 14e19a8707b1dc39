// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

const (
	crowdAlpha, crowdBeta = queue.Time(1082e3), queue.Time(5204e3)
	crowdSLO              = queue.Time(100e6)
	crowdBatch            = 64
	// crowdLoad is the share of what the partitions can do in full batches.
	crowdLoad = .85
)

// crowd is a scheduler with models and partitions under load, on virtual time: the models of 1.082b+5.204 ms with an SLO of 100 ms that Symphony's
// scheduler was measured with, every model on every partition, requests reused. It is not safe for concurrent use.
type crowd struct {
	s      *queue.Scheduler
	models []queue.ModelID
	rate   float64      // requests per virtual second
	gaps   []queue.Time // between arrivals, drawn beforehand
	i      int
	now    queue.Time
	// arrival is when the next request arrives.
	arrival queue.Time
	ends    []batchEnd // a heap by moment
	free    []*queue.Request
	// running and waiting requests, and what became of the others.
	inside, good, bad int

	_ [64]byte // the next crowd, which another core may own, is on another cache line
}

type batchEnd struct {
	at    queue.Time
	batch *queue.Batch
}

func newCrowd(models, partitions int, seed uint64) (*crowd, error) {
	discipline, err := queue.NewDiscipline("adaptive", nil)
	if err != nil {
		return nil, err
	}
	table := queue.Linear(crowdAlpha, crowdBeta, crowdBatch)
	c := &crowd{gaps: make([]queue.Time, 1<<12), rate: crowdLoad * float64(partitions) * crowdBatch / (float64(table.At(crowdBatch)) / 1e9)}
	c.s = queue.New(c, queue.Options{})
	var serves []queue.Service
	for range models {
		id := c.s.AddModel(0, queue.ModelSpec{Classes: []queue.Table{table}, MaxBatch: crowdBatch, SLO: crowdSLO, Late: queue.LateDrop, Discipline: discipline})
		c.models, serves = append(c.models, id), append(serves, queue.Service{Model: id})
	}
	c.s.Reconfigure(0, func() {
		for rank := range partitions {
			c.s.AddExecutor(0, queue.ExecutorSpec{Rank: int32(rank), Serves: serves})
		}
	})
	random := rand.New(rand.NewPCG(seed, 1))
	for i := range c.gaps {
		c.gaps[i] = queue.Time(random.ExpFloat64() / c.rate * 1e9)
	}
	return c, nil
}

// arrive lets the next request arrive, after everything that was due until then.
func (c *crowd) arrive(model int) {
	c.until(c.arrival)
	at := c.nextGap()
	c.enqueue(at, at, model)
}

// nextGap is when the next request arrives; the one after it is drawn.
func (c *crowd) nextGap() queue.Time {
	at := c.arrival
	c.i = (c.i + 1) & (len(c.gaps) - 1)
	c.arrival += c.gaps[c.i]
	return at
}

// enqueue takes a request in now that arrived at a moment before.
func (c *crowd) enqueue(now, arrived queue.Time, model int) {
	var r *queue.Request
	if n := len(c.free); n > 0 {
		r, c.free = c.free[n-1], c.free[:n-1]
	} else {
		r = new(queue.Request)
	}
	r.Arrival, r.Deadline, r.Rows = arrived, arrived+crowdSLO, 1
	c.inside++
	c.s.Enqueue(now, c.models[model], r)
}

// until ends batches and lets the scheduler act, up to a moment.
func (c *crowd) until(now queue.Time) {
	for {
		switch due := c.s.Next(); {
		case len(c.ends) > 0 && c.ends[0].at <= min(now, due):
			c.finish()
		case due <= now:
			c.now = max(c.now, due)
			c.s.Advance(due)
		default:
			c.now = max(c.now, now)
			return
		}
	}
}

// Dispatch implements queue.Sink.
func (c *crowd) Dispatch(b *queue.Batch) {
	c.ends = append(c.ends, batchEnd{b.Finish, b})
	h := c.ends
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if h[parent].at <= h[i].at {
			return
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}

// Drop implements queue.Sink.
func (c *crowd) Drop(r *queue.Request, _ queue.DropReason) {
	c.bad++
	c.inside--
	c.free = append(c.free, r)
}

// finish ends the batch that ends first.
func (c *crowd) finish() {
	first := c.ends[0]
	last := len(c.ends) - 1
	c.ends[0] = c.ends[last]
	c.ends = c.ends[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child+1 < last && c.ends[child+1].at < c.ends[child].at {
			child++
		}
		if child >= last || c.ends[i].at <= c.ends[child].at {
			break
		}
		c.ends[i], c.ends[child] = c.ends[child], c.ends[i]
		i = child
	}
	c.now = max(c.now, first.at)
	for _, r := range first.batch.Requests {
		if first.at <= r.Deadline {
			c.good++
		} else {
			c.bad++
		}
	}
	c.inside -= len(first.batch.Requests)
	c.free = append(c.free, first.batch.Requests...)
	c.s.Complete(c.now, first.batch.Executor)
}
