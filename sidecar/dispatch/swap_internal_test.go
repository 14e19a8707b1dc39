// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// manyModels is a table of models, each on two of some partitions. Every table is made anew, as the plan way does.
func manyModels(revision uint64, models, partitions int, change func(i int, m *router.Model)) *router.Table {
	t := &router.Table{Revision: revision, Models: map[string]*router.Model{}}
	for i := range partitions {
		t.Partitions = append(t.Partitions, &router.PartitionSpec{ID: fmt.Sprint("p", i), GPU: "g", GPUType: "T", ThreadPercentage: 100, Rank: i, Endpoint: router.Endpoint{GRPC: fmt.Sprint("127.0.0.1:", i+1)}})
	}
	for i := range models {
		name := fmt.Sprint("m", i)
		m := &router.Model{
			Name: name, Versions: []string{"1"}, SLO: 100 * time.Millisecond, Batchable: true, Revision: "1",
			Config: &tritonpb.ModelConfig{
				Name: name, MaxBatchSize: 8,
				Input:  []*tritonpb.ModelInput{{Name: "IN", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{4}}},
				Output: []*tritonpb.ModelOutput{{Name: "OUT", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{4}}},
			},
		}
		for _, p := range []int{i % partitions, (i + 1 + i/partitions) % partitions} {
			if at := (router.Place{Partition: fmt.Sprint("p", p)}); !slices.Contains(m.Places, at) {
				m.Places = append(m.Places, at)
			}
		}
		if change != nil {
			change(i, m)
		}
		t.Models[name] = m
	}
	return t
}

// TestAFewChangesOfManyModelsStopNobody: while ten of a thousand models change, no request can be queued. That takes less than an eighth of what a change
// of all of them takes. The least of several swaps is judged: a busy machine makes others longer.
func TestAFewChangesOfManyModelsStopNobody(t *testing.T) {
	const models, partitions, changing = 1000, 8, 10
	for name, change := range map[string]func(revision uint64) func(int, *router.Model){
		"their SLO": func(revision uint64) func(int, *router.Model) {
			return func(i int, m *router.Model) {
				if i < changing {
					m.SLO += time.Duration(revision) * time.Millisecond
				}
			}
		},
		"their places": func(revision uint64) func(int, *router.Model) {
			return func(i int, m *router.Model) {
				if i < changing {
					m.Places = []router.Place{{Partition: fmt.Sprint("p", (uint64(i)+revision)%partitions)}}
				}
			}
		},
		"which there are": func(revision uint64) func(int, *router.Model) {
			return func(i int, m *router.Model) {
				if i < changing {
					m.Revision = fmt.Sprint(revision)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var held time.Duration
			d := New(Options{Swapped: func(d time.Duration) { held = d }})
			t.Cleanup(func() { require.NoError(t, d.Close()) })
			require.NoError(t, d.Swap(t.Context(), manyModels(0, models, partitions, nil)))
			for i := range models {
				p := &policy.Profile{Model: fmt.Sprint("m", i), GpuType: "T", Usable: true}
				for b := 1; b <= 8; b++ {
					p.Points = append(p.Points, &policy.ProfilePoint{Batch: uint32(b), ThreadPercentage: 100, LatencyUpperUs: float64(1000 + 100*b)})
				}
				d.SetProfile(p)
			}
			all := time.Hour
			for revision := range 3 {
				require.NoError(t, d.Swap(t.Context(), manyModels(0, models, partitions, func(_ int, m *router.Model) { m.SLO += time.Duration(revision + 1) })))
				all = min(all, held)
			}
			require.NoError(t, d.Swap(t.Context(), manyModels(0, models, partitions, nil)))
			least := time.Hour
			for revision := range uint64(15) {
				next := manyModels(revision+1, models, partitions, change(revision+1))
				if name == "which there are" {
					for i := range changing {
						was := fmt.Sprint("m", i)
						m := next.Models[was]
						delete(next.Models, was)
						m.Name = fmt.Sprint(was, "-", revision)
						m.Config.Name = m.Name
						next.Models[m.Name] = m
					}
				}
				require.NoError(t, d.Swap(t.Context(), next))
				least = min(least, held)
			}
			t.Logf("requests waited for %v; for %v while all models changed", least, all)
			require.Less(t, 8*least, all)
		})
	}
}

// BenchmarkSwapOfTen is how long no request can be queued while the places of ten of a thousand models change.
func BenchmarkSwapOfTen(b *testing.B) {
	var held, sum time.Duration
	d := New(Options{Swapped: func(d time.Duration) { held = d }})
	defer func() { require.NoError(b, d.Close()) }()
	require.NoError(b, d.Swap(b.Context(), manyModels(0, 1000, 8, nil)))
	revision := 0
	for b.Loop() {
		revision++
		require.NoError(b, d.Swap(b.Context(), manyModels(uint64(revision), 1000, 8, func(i int, m *router.Model) {
			if i < 10 {
				m.Places = []router.Place{{Partition: fmt.Sprint("p", (i+revision)%8)}}
			}
		})))
		sum += held
	}
	b.ReportMetric(float64(sum.Microseconds())/float64(revision), "us-held/op")
}
