// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/conch-serving/conch/sidecar/dispatch/queue"

// unit of time of Symphony's example.
const unit queue.Time = 1e9

// batch that an example started.
type batch struct {
	rows  int
	start float64
}

// gpus of an example: a sink that remembers what ends when.
type gpus struct {
	ends    map[queue.ExecutorID]queue.Time
	batches []batch
	dropped []int // numbers of requests, R1 is 1
}

func (g *gpus) Dispatch(b *queue.Batch) {
	g.batches = append(g.batches, batch{b.Rows, float64(b.Start) / float64(unit)})
	g.ends[b.Executor] = b.Finish
}

func (g *gpus) Drop(q *queue.Request, _ queue.DropReason) {
	number, _ := q.Tag.(int)
	g.dropped = append(g.dropped, number)
}

// next is the partition that is done next, and when.
func (g *gpus) next() (id queue.ExecutorID, at queue.Time) {
	at = queue.Never
	for p, end := range g.ends {
		if end < at || end == at && p < id {
			id, at = p, end
		}
	}
	return id, at
}

// exampleRequests arrive in the example, the three that are missing counted; afterGap is the first after them.
const exampleRequests, afterGap = 75, 16

// exampleRule is a discipline with a drop policy for the example's model: l(b) = b + 5, an SLO of 12.
func exampleRule(discipline, drop string) (queue.ModelSpec, error) {
	d, err := queue.NewDiscipline(discipline, nil)
	if err != nil {
		return queue.ModelSpec{}, err
	}
	p, err := queue.NewDropPolicy(drop)
	return queue.ModelSpec{
		Classes: []queue.Table{queue.Linear(unit, 5*unit, 32)}, MaxBatch: 32, SLO: 12 * unit, Late: queue.LateDrop, Discipline: d, Drop: p,
	}, err
}

// example drives the queue through Symphony's example with three requests missing: three GPUs, a request each .75, under one rule until the gap
// and under another from the first request after it on. A request that arrives when a batch ends is there when the next one starts, as in the
// paper's figure 5a.
func example(before, after queue.ModelSpec) (*gpus, error) {
	g := &gpus{ends: map[queue.ExecutorID]queue.Time{}}
	s := queue.New(g, queue.Options{})
	m := s.AddModel(0, before)
	for rank := range int32(3) {
		s.AddExecutor(0, queue.ExecutorSpec{Rank: rank, Serves: []queue.Service{{Model: m}}})
	}
	for i := 1; ; {
		if i == 13 {
			i = afterGap
		}
		arrival := queue.Never
		if i <= exampleRequests {
			arrival = queue.Time(i-1) * unit * 3 / 4
		}
		id, done := g.next()
		now := min(arrival, done, s.Next())
		switch now {
		case queue.Never:
			return g, nil
		case arrival:
			if i == afterGap {
				if err := s.SetModel(now, m, after); err != nil {
					return nil, err
				}
			}
			s.Enqueue(now, m, &queue.Request{Arrival: now, Rows: 1, Tag: i})
			i++
		case done:
			delete(g.ends, id)
			s.Complete(now, id)
		default:
			s.Advance(now)
		}
	}
}

// regained is when batches are staggered again after the gap: from then on all but the last have four rows and start three units apart. Zero
// if they never are.
func (g *gpus) regained() (at float64) {
	all := g.batches[:len(g.batches)-1]
	for i := len(all) - 1; i > 0 && all[i].rows == 4; i-- {
		if i+1 < len(all) && all[i+1].start != all[i].start+3 {
			break
		}
		if all[i].start <= float64(afterGap-1)*.75 {
			break
		}
		at = all[i].start
	}
	return at
}
