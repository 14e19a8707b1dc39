// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/plan"
)

// cluster is a snapshot with so many GPUs, four a node, and so many models, and a plan that has ten of them on each GPU.
func cluster(gpus, models int) (*policy.Snapshot, *policy.Plan) {
	s, p := &policy.Snapshot{Revision: 1}, &policy.Plan{SnapshotRevision: 1}
	for i := range models {
		m := &policy.Model{Name: fmt.Sprintf("m%03d", i), SloUs: 100_000, Rate: 100, RowRate: 100, MaxBatchSize: 32, Batchable: true, MemoryBytes: 1 << 30}
		own := &policy.Profile{Model: m.Name, GpuType: "X", Usable: true}
		for _, share := range []uint32{20, 50, 100} {
			for _, batch := range []uint32{1, 8, 32} {
				l := 1e5 * (4 + .5*float64(batch)) / float64(share)
				own.Points = append(own.Points, &policy.ProfilePoint{Batch: batch, ThreadPercentage: share, LatencyUs: &policy.Estimate{Value: l}, LatencyUpperUs: l})
			}
		}
		s.Models, s.Profiles = append(s.Models, m), append(s.Profiles, own)
	}
	for i := range gpus {
		if i%4 == 0 {
			s.Nodes = append(s.Nodes, &policy.Node{Name: fmt.Sprintf("node-%04d", i/4)})
		}
		n := s.Nodes[len(s.Nodes)-1]
		g := &policy.GPU{Id: fmt.Sprintf("gpu%d", i), Type: "X", Index: uint32(i), MemoryBytes: 16 << 30}
		n.Gpus = append(n.Gpus, g)
		part := &policy.Partition{Id: g.GetId(), Node: n.GetName(), Gpus: []string{g.GetId()}, ThreadPercentage: 100, Rank: uint32(i)}
		for k := range 10 {
			part.Instances = append(part.Instances, &policy.Instance{Model: fmt.Sprintf("m%03d", (10*i+k)%models), MaxBatch: 8, Rate: 1})
		}
		p.Partitions = append(p.Partitions, part)
	}
	for _, m := range s.Models {
		p.Dispatch = append(p.Dispatch, &policy.Dispatch{Model: m.GetName(), Discipline: "adaptive"})
	}
	return s, p
}

// BenchmarkCluster: what a plan for 4,000 GPUs and 400 models goes through, next to one in force that has other models on every twentieth.
func BenchmarkCluster(b *testing.B) {
	s, p := cluster(4000, 400)
	next := proto.CloneOf(p)
	for i := range next.Partitions {
		if i%20 == 0 {
			next.Partitions[i].Instances[0].Model = fmt.Sprintf("m%03d", (10*i+200)%400)
		}
	}
	require.Empty(b, plan.Validate(s, next))
	now, then := &policy.Outcome{Goodput: 100}, &policy.Outcome{Goodput: 200}
	b.Run("validate", func(b *testing.B) {
		for b.Loop() {
			plan.Validate(s, next)
		}
	})
	b.Run("diff", func(b *testing.B) {
		for b.Loop() {
			plan.Compute(p, next)
		}
	})
	d := plan.Compute(p, next)
	b.Run("judge", func(b *testing.B) {
		for b.Loop() {
			plan.Judge(s, d, p, next, now, then, margins())
		}
	})
	b.Run("text", func(b *testing.B) {
		for b.Loop() {
			_ = d.Text()
		}
	})
}

// Twice the GPUs and models take no more than about twice the work.
func TestJudgingGrowsWithTheCluster(t *testing.T) {
	work := func(gpus, models int) float64 {
		s, p := cluster(gpus, models)
		next := proto.CloneOf(p)
		next.Partitions[0].Instances = next.Partitions[0].Instances[1:]
		now, then := &policy.Outcome{Goodput: 100}, &policy.Outcome{Goodput: 200}
		return testing.AllocsPerRun(1, func() {
			plan.Validate(s, next)
			plan.Judge(s, plan.Compute(p, next), p, next, now, then, margins())
		})
	}
	require.LessOrEqual(t, work(400, 80), 2.5*work(200, 40))
}
