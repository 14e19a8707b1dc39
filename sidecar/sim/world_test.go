// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// small describes a world of equal models on equal GPUs, for tests.
type small struct {
	models, gpus     int
	alpha, beta, slo time.Duration
	batch            uint32
	rate             float64 // of all models together
	discipline, drop string
	late             policy.LatePolicy
	shares           []uint32 // of each GPU; nil: one partition of 100
	duration, warmup time.Duration
	seed             uint64
}

func resnet50() small {
	return small{
		models: 1, gpus: 8, alpha: 1053 * time.Microsecond, beta: 5072 * time.Microsecond, slo: 25 * time.Millisecond, batch: 64,
		discipline: "deferred", drop: "window", late: policy.LatePolicy_LATE_POLICY_DROP, duration: 20 * time.Second, warmup: time.Second, seed: 1,
	}
}

// linear is l(b, p) = (beta + alpha*b) * 100/p.
func linear(model string, alpha, beta time.Duration, batch uint32) *policy.Profile {
	p := &policy.Profile{Model: model, GpuType: "X", Usable: true}
	for _, share := range []uint32{50, 100} {
		for _, b := range []uint32{1, batch + 1} {
			us := float64((beta + time.Duration(b)*alpha).Nanoseconds()) / 1e3 * 100 / float64(share)
			p.Points = append(p.Points, &policy.ProfilePoint{Batch: b, ThreadPercentage: share, LatencyUs: &policy.Estimate{Value: us}})
		}
	}
	return p
}

func (s small) snapshot() *policy.Snapshot {
	snapshot := &policy.Snapshot{Revision: 1, Nodes: []*policy.Node{{Name: "n"}}}
	for i := range s.gpus {
		snapshot.Nodes[0].Gpus = append(snapshot.Nodes[0].Gpus, &policy.GPU{Id: fmt.Sprintf("g%03d", i), Type: "X", Index: uint32(i)})
	}
	for i := range s.models {
		name := fmt.Sprintf("m%02d", i)
		snapshot.Models = append(snapshot.Models, &policy.Model{
			Name: name, SloUs: s.slo.Microseconds(), Late: s.late, MaxBatchSize: s.batch, Batchable: true, Rate: s.rate / float64(s.models),
		})
		snapshot.Profiles = append(snapshot.Profiles, linear(name, s.alpha, s.beta, s.batch))
	}
	return snapshot
}

// plan puts every model on every partition.
func (s small) plan() *policy.Plan {
	p := &policy.Plan{SnapshotRevision: 1, Policy: "test"}
	shares := s.shares
	if shares == nil {
		shares = []uint32{100}
	}
	for i := range s.gpus {
		for k, share := range shares {
			part := &policy.Partition{Id: fmt.Sprintf("p%03d.%d", i, k), Node: "n", Gpus: []string{fmt.Sprintf("g%03d", i)}, ThreadPercentage: share, Rank: uint32(len(p.Partitions))}
			for m := range s.models {
				part.Instances = append(part.Instances, policy.ModelInstance(fmt.Sprintf("m%02d", m), 0))
			}
			p.Partitions = append(p.Partitions, part)
		}
	}
	for m := range s.models {
		p.Dispatch = append(p.Dispatch, &policy.Dispatch{Model: fmt.Sprintf("m%02d", m), Discipline: s.discipline, DropPolicy: s.drop})
	}
	return p
}

func (s small) world(t testing.TB) sim.World {
	t.Helper()
	w := sim.World{Snapshot: s.snapshot(), Plan: s.plan(), Duration: s.duration, Warmup: s.warmup, Seed: s.seed}
	for i, m := range w.Snapshot.GetModels() {
		stream, err := workload.Renewal{Model: int32(i), Curve: workload.Constant(m.GetRate()), Random: workload.Seed(s.seed, "arrivals", m.GetName())}.Stream()
		require.NoError(t, err)
		w.Streams = append(w.Streams, stream)
	}
	return w
}

func run(t testing.TB, w sim.World) *sim.Result {
	t.Helper()
	r, err := sim.Run(t.Context(), w)
	require.NoError(t, err)
	return r
}
