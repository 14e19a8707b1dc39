// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package schedulability

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/exact"
)

// Shape is a model of a table. On a whole GPU l(b) is a line from One to Full; a batch fills so many percent of the GPU, on a line from NeedOne to
// NeedFull, and on a smaller share it takes longer in proportion to what it lacks.
type Shape struct {
	Name string
	// SLO, and the latency of one row and of 32 on a whole GPU, in milliseconds.
	SLO, One, Full float64
	// NeedOne and NeedFull in percent of a GPU.
	NeedOne, NeedFull float64
	// L2 and Bandwidth utilisation on a whole GPU, as fractions, whatever the batch.
	L2, Bandwidth float64
}

// maxBatch is gpulet's.
const maxBatch = 32

//go:embed table.csv
var table []byte

// Table is the table that policies are judged by, read from table.csv: nine models with the names and SLOs of gpulet's table 4. Its latencies are
// ours and not measured. They are such that about half of the mixes can be served at all, which is where policies differ most.
func Table() ([]Shape, error) { return Parse(table) }

// Parse reads a table: a header, then a line for every model, its columns those of [Shape] in milliseconds, percent and fractions.
func Parse(text []byte) ([]Shape, error) {
	r := csv.NewReader(bytes.NewReader(text))
	r.Comment = '#'
	lines, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("schedulability: %w", err)
	}
	var all []Shape
	for i, line := range lines {
		if i == 0 {
			continue
		}
		s := Shape{Name: line[0]}
		into := []*float64{&s.SLO, &s.One, &s.Full, &s.NeedOne, &s.NeedFull, &s.L2, &s.Bandwidth}
		if len(line) != len(into)+1 {
			return nil, fmt.Errorf("schedulability: model %s has %d columns; it takes %d", s.Name, len(line), len(into)+1)
		}
		for k, v := range into {
			if *v, err = strconv.ParseFloat(line[k+1], 64); err != nil || !(*v >= 0) || math.IsInf(*v, 0) {
				return nil, fmt.Errorf("schedulability: model %s, column %d: %q is no number from 0 on", s.Name, k+2, line[k+1])
			}
		}
		all = append(all, s)
	}
	return all, nil
}

// Draw makes a table of nine models from a seed, with SLOs, latencies and needs in the range of those of [Table].
func Draw(seed uint64) []Shape {
	random := rand.New(rand.NewPCG(seed, 0x7461626c65))
	between := func(low, high float64) float64 { return low + (high-low)*random.Float64() }
	all := make([]Shape, 9)
	for i := range all {
		slo := between(20, 220)
		single := between(.35, .65) * slo / 2
		all[i] = Shape{
			Name: fmt.Sprintf("m%d", i), SLO: slo, One: single, Full: between(1.6, 2.2) * slo / 2,
			NeedOne: between(10, 60), NeedFull: between(60, 100), L2: between(.1, .4), Bandwidth: between(.1, .5),
		}
	}
	return all
}

const gpuType = "table"

// World of a table: so many GPUs, without load. Interference is gpulet's, with the coefficients of its artifact.
func World(shapes []Shape, gpus int) *policy.Snapshot {
	s := &policy.Snapshot{Revision: 1, Seed: 1, Nodes: []*policy.Node{{Name: "n"}}, Interference: []*policy.Interference{
		{GpuType: gpuType, L2Self: .1129, L2Other: .7160, BandwidthSelf: .3549, BandwidthOther: .0882, Constant: .8954},
	}}
	for i := range gpus {
		s.Nodes[0].Gpus = append(s.Nodes[0].Gpus, &policy.GPU{
			Id: fmt.Sprintf("gpu%d", i), Type: gpuType, Index: uint32(i), MemoryBytes: 11 << 30, CostPerHour: 1, Emulated: true, SharesEnforced: true, //nolint:gosec // small
		})
	}
	for _, m := range shapes {
		s.Models = append(s.Models, &policy.Model{
			Name: m.Name, SloUs: int64(m.SLO * 1e3), MaxBatchSize: maxBatch, Batchable: true, MemoryBytes: 200 << 20, Burstiness: 1, Late: policy.LatePolicy_LATE_POLICY_DROP,
		})
		p := &policy.Profile{Model: m.Name, GpuType: gpuType, Usable: true, Source: policy.ProfileSource_PROFILE_SOURCE_DECLARED}
		for _, share := range exact.Sizes() {
			for _, batch := range []uint32{1, 2, 4, 8, 16, maxBatch} {
				p.Points = append(p.Points, m.point(batch, share))
			}
		}
		s.Profiles = append(s.Profiles, p)
	}
	return s
}

func (m Shape) point(batch, share uint32) *policy.ProfilePoint {
	fill := float64(batch-1) / (maxBatch - 1)
	need := m.NeedOne + (m.NeedFull-m.NeedOne)*fill
	us := 1e3 * (m.One + (m.Full-m.One)*fill) * math.Max(1, need/float64(share))
	// What a batch requires is the least size on which it is as fast as on the whole GPU.
	creq := 100.0
	for _, size := range exact.Sizes() {
		if float64(size) >= need {
			creq = float64(size)
			break
		}
	}
	return &policy.ProfilePoint{
		Batch: batch, ThreadPercentage: share, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us,
		Creq: &policy.Estimate{Value: creq / 100}, Mreq: &policy.Estimate{Value: .02},
		L2Utilization: &policy.Estimate{Value: m.L2}, BandwidthUtilization: &policy.Estimate{Value: m.Bandwidth},
	}
}
