// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"slices"
	"sync"
	"time"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// duration is a count and the nanoseconds spent on it.
type duration struct{ count, ns uint64 }

func (d *duration) add(n int, each time.Duration) {
	d.count += uint64(n)
	d.ns += uint64(n) * uint64(max(0, each))
}

func (d *duration) merge(o duration) { d.count, d.ns = d.count+o.count, d.ns+o.ns }

func (d duration) proto() *pb.StatisticDuration {
	return &pb.StatisticDuration{Count: d.count, Ns: d.ns}
}

// compute is the three parts of an execution.
type compute struct{ input, infer, output duration }

func (c *compute) add(n int, t timing) {
	c.input.add(n, t.input)
	c.infer.add(n, t.infer)
	c.output.add(n, t.output)
}

func (c *compute) merge(o compute) {
	c.input.merge(o.input)
	c.infer.merge(o.infer)
	c.output.merge(o.output)
}

// failure reasons, as the metrics label them.
const (
	failRejected = iota
	failCanceled
	failBackend
	failOther
	failReasons
)

var failReasonNames = [failReasons]string{"REJECTED", "CANCELED", "BACKEND", "OTHER"}

// counters is what Triton counts of one version of a model.
type counters struct {
	last          time.Time
	inferences    uint64 // rows
	executions    uint64
	success, fail duration
	queue         duration
	compute       compute
	failed        [failReasons]uint64
	batches       map[int]*compute // by total rows
}

func (c *counters) merge(o *counters) {
	if o.last.After(c.last) {
		c.last = o.last
	}
	c.inferences += o.inferences
	c.executions += o.executions
	c.success.merge(o.success)
	c.fail.merge(o.fail)
	c.queue.merge(o.queue)
	c.compute.merge(o.compute)
	for i, n := range o.failed {
		c.failed[i] += n
	}
	for rows, batch := range o.batches {
		c.batch(rows).merge(*batch)
	}
}

func (c *counters) batch(rows int) *compute {
	if c.batches == nil {
		c.batches = map[int]*compute{}
	}
	b := c.batches[rows]
	if b == nil {
		b = &compute{}
		c.batches[rows] = b
	}
	return b
}

// timing is how long the parts of one execution took.
type timing struct {
	start                time.Time
	input, infer, output time.Duration
	end                  time.Time
}

// statistics guards the counters of one loaded version.
type statistics struct {
	mu sync.Mutex
	c  counters
}

// executed counts one execution. ok says which requests count as success: an error of the whole execution fails them all, an error a
// model gives one request counts as success, as in Triton.
func (s *statistics) executed(p *payload, t timing, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.c.executions++
	s.c.last = t.end
	s.c.batch(p.rows).add(1, t)
	if !ok {
		for _, r := range p.requests {
			s.c.fail.add(1, t.end.Sub(r.enqueued))
		}
		s.c.failed[failBackend] += uint64(len(p.requests))
		return
	}
	s.c.inferences += uint64(p.rows)
	s.c.compute.add(len(p.requests), t)
	for _, r := range p.requests {
		s.c.success.add(1, t.end.Sub(r.enqueued))
		s.c.queue.add(1, t.start.Sub(r.enqueued))
	}
}

func (s *statistics) refused(reason int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.c.fail.add(1, took)
	s.c.failed[reason]++
}

// copy returns counters of their own.
func (s *statistics) copy() *counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &counters{}
	c.merge(&s.c)
	return c
}

func (s *statistics) restore(c *counters) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.c.merge(c)
}

// proto is the counters in ModelStatistics' form, batches in ascending order.
func (c *counters) proto(name, version string) *pb.ModelStatistics {
	ms := &pb.ModelStatistics{
		Name: name, Version: version,
		InferenceCount: c.inferences, ExecutionCount: c.executions,
		InferenceStats: &pb.InferStatistics{
			Success: c.success.proto(), Fail: c.fail.proto(), Queue: c.queue.proto(),
			ComputeInput: c.compute.input.proto(), ComputeInfer: c.compute.infer.proto(), ComputeOutput: c.compute.output.proto(),
			CacheHit: &pb.StatisticDuration{}, CacheMiss: &pb.StatisticDuration{},
		},
	}
	if !c.last.IsZero() {
		ms.LastInference = uint64(c.last.UnixMilli())
	}
	sizes := make([]int, 0, len(c.batches))
	for rows := range c.batches {
		sizes = append(sizes, rows)
	}
	slices.Sort(sizes)
	for _, rows := range sizes {
		b := c.batches[rows]
		ms.BatchStats = append(ms.BatchStats, &pb.InferBatchStatistics{BatchSize: uint64(rows),
			ComputeInput: b.input.proto(), ComputeInfer: b.infer.proto(), ComputeOutput: b.output.proto()})
	}
	return ms
}
