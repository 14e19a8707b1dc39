// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
)

const gib = 1 << 30

// Snapshots makes worlds of up to two nodes with four GPUs each and eight
// models: memory that is unknown, ample or too little, GPUs that may not be
// used, ensembles, pipelines, profiles that are usable or not, orders of the operator that
// contradict each other, and a plan in force.
func Snapshots() *rapid.Generator[*policy.Snapshot] {
	return rapid.Custom(func(t *rapid.T) *policy.Snapshot {
		s := &policy.Snapshot{
			Revision:  rapid.Uint64Range(1, 1<<40).Draw(t, "revision"),
			Seed:      rapid.Uint64().Draw(t, "seed"),
			Objective: policy.Objective_OBJECTIVE_MAX_GOODPUT,
			ChangeCost: &policy.ChangeCost{
				PartitionStartSeconds: 4, DefaultLoadSeconds: 2, RequestsPerSecondOfChange: 1,
			},
		}
		nodes(t, s)
		models(t, s)
		pipelines(t, s)
		profiles(t, s)
		constraints(t, s)
		current(t, s)
		if len(s.Models) > 1 && rapid.Bool().Draw(t, "app") {
			s.Apps = []*policy.App{{Name: "app", SloUs: 100_000, Variants: []*policy.Variant{
				{Model: s.Models[0].Name, Accuracy: .7}, {Model: s.Models[1].Name, Accuracy: .8},
			}}}
		}
		return s
	})
}

func types() []string { return []string{"A100-80GB", "T4"} }

func nodes(t *rapid.T, s *policy.Snapshot) {
	for n := range rapid.IntRange(0, 2).Draw(t, "nodes") {
		node := &policy.Node{Name: fmt.Sprintf("node%d", n)}
		for i := range rapid.IntRange(0, 4).Draw(t, "gpus") {
			node.Gpus = append(node.Gpus, &policy.GPU{
				Id: fmt.Sprintf("gpu%d", i), Index: uint32(i),
				Type:         rapid.SampledFrom(types()).Draw(t, "type"),
				MemoryBytes:  rapid.SampledFrom([]uint64{0, 8 * gib, 24 * gib, 80 * gib}).Draw(t, "memory"),
				ContextBytes: rapid.SampledFrom([]uint64{0, 512 << 20}).Draw(t, "context"),
				CostPerHour:  1, Emulated: true,
				Unavailable: rapid.IntRange(0, 4).Draw(t, "unavailable") == 0,
			})
		}
		s.Nodes = append(s.Nodes, node)
	}
}

func models(t *rapid.T, s *policy.Snapshot) {
	for i := range rapid.IntRange(0, 8).Draw(t, "models") {
		m := &policy.Model{
			Name:                  fmt.Sprintf("model%d", i),
			SloUs:                 rapid.SampledFrom([]int64{0, 5_000, 25_000, 100_000}).Draw(t, "slo"),
			MaxBatchSize:          rapid.SampledFrom([]uint32{0, 1, 8, 64}).Draw(t, "max batch"),
			Rate:                  rapid.SampledFrom([]float64{0, 1, 500}).Draw(t, "rate"),
			MemoryBytes:           rapid.SampledFrom([]uint64{0, gib, 6 * gib, 30 * gib}).Draw(t, "memory"),
			ActivationBytesPerRow: rapid.SampledFrom([]uint64{0, 16 << 20, 256 << 20}).Draw(t, "activation"),
			Priority:              rapid.Int32Range(0, 2).Draw(t, "priority"),
			Batchable:             true,
		}
		if i > 0 && rapid.IntRange(0, 5).Draw(t, "ensemble") == 0 {
			m.DependsOn = []string{s.Models[rapid.IntRange(0, i-1).Draw(t, "step")].Name}
		}
		s.Models = append(s.Models, m)
	}
}

// pipelines asks for an ensemble step by step, or for a DAG that is no model.
func pipelines(t *rapid.T, s *policy.Snapshot) {
	if len(s.Models) == 0 || rapid.IntRange(0, 2).Draw(t, "pipeline") > 0 {
		return
	}
	p := &policy.Pipeline{
		Name: "pipeline", SloUs: rapid.SampledFrom([]int64{5_000, 100_000}).Draw(t, "pipeline slo"),
		Rate: rapid.SampledFrom([]float64{0, 20, 500}).Draw(t, "pipeline rate"),
	}
	byName := make(map[string]*policy.Model)
	for _, m := range s.Models {
		byName[m.Name] = m
		if len(m.DependsOn) > 0 {
			p.Name = m.Name
		}
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "steps") {
		step := &policy.PipelineStep{Model: rapid.SampledFrom(s.Models).Draw(t, "step of").Name, Rows: rapid.SampledFrom([]float64{0, .5, 3}).Draw(t, "rows")}
		if i > 0 && rapid.Bool().Draw(t, "after another") {
			step.After = []uint32{rapid.Uint32Range(0, uint32(i-1)).Draw(t, "after")} //nolint:gosec // few
			step.TakenBytes = []float64{rapid.SampledFrom([]float64{0, 1 << 20}).Draw(t, "bytes")}
		}
		p.Steps = append(p.Steps, step)
	}
	p.Load(byName)
	s.Pipelines = []*policy.Pipeline{p}
}

func profiles(t *rapid.T, s *policy.Snapshot) {
	for _, m := range s.Models {
		for _, gpuType := range types() {
			if rapid.IntRange(0, 2).Draw(t, "no profile") == 0 {
				continue
			}
			p := &policy.Profile{
				Model: m.Name, GpuType: gpuType, Source: policy.ProfileSource_PROFILE_SOURCE_OBSERVED,
				Usable: rapid.Bool().Draw(t, "usable"),
			}
			alpha := rapid.Float64Range(10, 3000).Draw(t, "alpha")
			beta := rapid.Float64Range(100, 40_000).Draw(t, "beta")
			for _, share := range []uint32{25, 50, 100} {
				for _, batch := range []uint32{1, 8, 64} {
					l := (alpha*float64(batch) + beta) * 100 / float64(share)
					p.Points = append(p.Points, &policy.ProfilePoint{
						Batch: batch, ThreadPercentage: share,
						LatencyUs: &policy.Estimate{Value: l, ErrorBound: l / 10}, LatencyUpperUs: l * 1.05,
					})
				}
			}
			s.Profiles = append(s.Profiles, p)
		}
	}
}

func constraints(t *rapid.T, s *policy.Snapshot) {
	names := make([]string, 0, 1+len(s.Models))
	names = append(names, policy.AnyModel)
	for _, m := range s.Models {
		names = append(names, m.Name)
	}
	for range rapid.IntRange(0, 3).Draw(t, "constraints") {
		c := &policy.Constraint{Model: rapid.SampledFrom(names).Draw(t, "constrained")}
		switch rapid.IntRange(0, 6).Draw(t, "order") {
		case 0:
			c.Gpus = []string{rapid.SampledFrom([]string{"gpu0", "gpu1", "gpu7"}).Draw(t, "only on")}
		case 1:
			c.MinInstances = rapid.Uint32Range(1, 5).Draw(t, "at least")
		case 2:
			c.MaxInstances = rapid.Uint32Range(1, 3).Draw(t, "at most")
		case 3:
			c.Exclusive = true
		case 4:
			c.Pinned = true
		case 5:
			c.MaxThreadPercentage = rapid.SampledFrom([]uint32{50, 100}).Draw(t, "share at most")
		case 6:
			c.MinThreadPercentage = rapid.SampledFrom([]uint32{25, 60}).Draw(t, "share at least")
		}
		s.Constraints = append(s.Constraints, c)
	}
	slices.SortStableFunc(s.Constraints, func(a, b *policy.Constraint) int {
		switch {
		case a.Model < b.Model:
			return -1
		case a.Model > b.Model:
			return 1
		}
		return 0
	})
}

// current makes a plan in force that a policy may have made in another world:
// models may have come and gone since.
func current(t *rapid.T, s *policy.Snapshot) {
	if !rapid.Bool().Draw(t, "plan in force") {
		return
	}
	s.Current = &policy.Plan{SnapshotRevision: 1, Policy: "former"}
	for _, n := range s.Nodes {
		for _, g := range n.Gpus {
			shares := rapid.SampledFrom([][]uint32{nil, {100}, {50, 50}}).Draw(t, "shares in force")
			for i, share := range shares {
				part := &policy.Partition{
					Id: fmt.Sprintf("%s.%s.%d", n.Name, g.Id, i), Node: n.Name, Gpus: []string{g.Id},
					ThreadPercentage: share, Rank: uint32(len(s.Current.Partitions)),
				}
				for _, m := range s.Models {
					if rapid.Bool().Draw(t, "in force") {
						part.Instances = append(part.Instances, policy.ModelInstance(m.Name, m.MaxBatchSize))
					}
				}
				s.Current.Partitions = append(s.Current.Partitions, part)
			}
		}
	}
}
