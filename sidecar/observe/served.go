// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"time"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Executions are executions of one batch size that a server counted itself, with
// their mean time on its device.
type Executions struct {
	Rows  int
	Count uint64
	Mean  time.Duration
}

// Served takes the executions of a server that batches requests itself, while
// they are passed on to it as they came. They are its model's profile then, and
// round trips are not: the time of a request includes what the server let it wait
// for company, and requests of one row say nothing of larger batches, which the
// server forms all the time. Unserved ends that. A model never heard of is left
// alone.
func (r *Recorder) Served(name, gpuType string, threadPercentage uint32, all []Executions) {
	m := (*r.models.Load())[name]
	if m == nil || len(all) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.curve(class{gpuType, threadPercentage})
	for _, e := range all {
		c.Serve(e.Rows, e.Count, e.Mean, m.latest)
	}
}

// Unserved is called when Conch begins to batch: the servers' own statistics stay as
// the knowledge before the first own execution, and the round trips that were
// measured meanwhile are dropped.
func (r *Recorder) Unserved() {
	for _, m := range r.sorted() {
		m.mu.Lock()
		for _, c := range m.classes {
			c.Unserve()
		}
		m.mu.Unlock()
	}
}

// ServerStatistics computes what a server executed between two reads of its
// statistics. The zero value has not read any: the first read gives everything that
// the server executed since it loaded its models. It is not safe for concurrent use.
type ServerStatistics struct{ before map[counter]counted }

type counter struct {
	model, version string
	rows           uint64
}

type counted struct{ executions, nanoseconds uint64 }

// Since is what was executed since the last look, by model: batch_stats of Triton's
// statistics extension, which counts executions by their rows. Input and output are
// part of an execution, as the device waits for both. A counter that went back
// belongs to a model that was loaded again, and counts from zero.
func (s *ServerStatistics) Since(all []*tritonpb.ModelStatistics) map[string][]Executions {
	now, since := make(map[counter]counted), make(map[string][]Executions)
	for _, m := range all {
		for _, b := range m.GetBatchStats() {
			key := counter{m.GetName(), m.GetVersion(), b.GetBatchSize()}
			n := counted{b.GetComputeInfer().GetCount(), b.GetComputeInput().GetNs() + b.GetComputeInfer().GetNs() + b.GetComputeOutput().GetNs()}
			now[key] = n
			was := s.before[key]
			if n.executions < was.executions || n.nanoseconds < was.nanoseconds {
				was = counted{}
			}
			if count := n.executions - was.executions; count > 0 {
				since[m.GetName()] = append(since[m.GetName()], Executions{
					Rows: int(min(key.rows, maxRows)), Count: count, Mean: time.Duration((n.nanoseconds - was.nanoseconds) / count),
				})
			}
		}
	}
	s.before = now
	return since
}
