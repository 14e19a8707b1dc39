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
	ends    map[queue.PartitionID]queue.Time
	first   *batch
	dropped int
}

func (g *gpus) Dispatch(b *queue.Batch) {
	if g.first == nil {
		g.first = &batch{b.Rows, float64(b.Start) / float64(unit)}
	}
	g.ends[b.Partition] = b.Finish
}

func (g *gpus) Drop(*queue.Request, queue.DropReason) { g.dropped++ }

// next is the partition that is done next, and when.
func (g *gpus) next() (id queue.PartitionID, at queue.Time) {
	at = queue.Never
	for p, end := range g.ends {
		if end < at || end == at && p < id {
			id, at = p, end
		}
	}
	return id, at
}

// example drives the queue through Symphony's example with three requests missing, and returns its first batch and how many were dropped.
func example(d queue.Discipline, drop queue.DropPolicy) (first batch, dropped int) {
	const requests = 75
	g := &gpus{ends: map[queue.PartitionID]queue.Time{}}
	s := queue.New(g, queue.Options{})
	m := s.AddModel(0, queue.ModelSpec{
		Classes: []queue.Table{queue.Linear(unit, 5*unit, 32)}, MaxBatch: 32, SLO: 12 * unit, Late: queue.LateDrop, Discipline: d, Drop: drop,
	})
	for rank := range int32(3) {
		s.AddPartition(0, queue.PartitionSpec{Rank: rank, Serves: []queue.Service{{Model: m}}})
	}
	for i := 1; ; {
		if i == 13 {
			i = 16
		}
		arrival := queue.Never
		if i <= requests {
			arrival = queue.Time(i-1) * unit * 3 / 4
		}
		id, done := g.next()
		now := min(arrival, done, s.Next())
		switch now {
		case queue.Never:
			return *g.first, g.dropped
		case done:
			delete(g.ends, id)
			s.Complete(now, id)
		case arrival:
			s.Enqueue(now, m, &queue.Request{Arrival: now, Rows: 1})
			i++
		default:
			s.Advance(now)
		}
	}
}
