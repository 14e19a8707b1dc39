// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/zoo/executions"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// neighbours are models that take 100 ms each on partitions of their own on one GPU, and slow each other by `by`.
func neighbours(t *testing.T, n int, by float64, arrivals ...workload.Arrival) sim.World {
	s := small{
		models: n, gpus: 1, beta: 50 * time.Millisecond, slo: time.Minute, batch: 1, discipline: "eager", drop: "none",
		duration: time.Second, shares: make([]uint32, n),
	}
	for i := range s.shares {
		s.shares[i] = 50
	}
	w := s.world(t)
	for i, p := range w.Plan.Partitions {
		p.Instances = p.Instances[i : i+1]
	}
	w.Snapshot.Interference = []*policy.Interference{{GpuType: "X", Constant: by}}
	w.Streams = []workload.Stream{workload.Slice(arrivals...)}
	w.Timeline.Max = 10
	return w
}

// TestTheSlowdownIsThatOfTheStart: two executions of 100 ms overlap, and the one that starts beside the other is twice as slow. Executions that
// start or end later change nothing.
//
//	0        40        100               240
//	|------- m00 -------|
//	         |---------- m01: 2 * 100 ----|
func TestTheSlowdownIsThatOfTheStart(t *testing.T) {
	r := run(t, neighbours(t, 2, 2, workload.Arrival{}, workload.Arrival{At: 40 * time.Millisecond, Model: 1}))
	require.Equal(t, []sim.BatchRecord{
		{Partition: 0, Model: 0, Rows: 1, Requests: 1, Start: 0, End: 100e3},
		{Partition: 1, Model: 1, Rows: 1, Requests: 1, Start: 40e3, End: 240e3},
	}, r.Timeline)
}

// TestExecutions holds the simulator to the table that minitriton and the python model behind a real tritonserver are held to.
func TestExecutions(t *testing.T) {
	cases, err := executions.Cases()
	require.NoError(t, err)
	for _, c := range cases {
		w := sim.World{
			Snapshot: &policy.Snapshot{
				Revision: 1, Nodes: []*policy.Node{{Name: "n", Gpus: []*policy.GPU{{Id: "g", Type: "X"}}}}, Interference: []*policy.Interference{policy.GpuletInterference("X")},
			},
			Plan:     &policy.Plan{SnapshotRevision: 1, Policy: "test"},
			Duration: time.Second, Seed: 1, Timeline: sim.Timeline{Max: 10},
		}
		add := func(share int, alpha, beta time.Duration, knee int, l2, bandwidth float64) {
			name := fmt.Sprintf("m%d", len(w.Snapshot.Models))
			w.Snapshot.Models = append(w.Snapshot.Models, &policy.Model{Name: name, MaxBatchSize: 8, Batchable: true})
			p := &policy.Profile{Model: name, GpuType: "X", Usable: true}
			for _, batch := range []uint32{1, 9} {
				slow := float64(knee) / float64(min(share, knee))
				p.Points = append(p.Points, &policy.ProfilePoint{
					Batch: batch, ThreadPercentage: uint32(share), LatencyUs: &policy.Estimate{Value: float64((beta + time.Duration(batch)*alpha).Microseconds()) * slow},
					L2Utilization: &policy.Estimate{Value: l2 * float64(share) / 100}, BandwidthUtilization: &policy.Estimate{Value: bandwidth * float64(share) / 100},
				})
			}
			w.Snapshot.Profiles = append(w.Snapshot.Profiles, p)
			w.Plan.Partitions = append(w.Plan.Partitions, &policy.Partition{
				Id: name, Node: "n", Gpus: []string{"g"}, ThreadPercentage: uint32(share), Instances: []*policy.Instance{policy.ModelInstance(name, 0)},
			})
			w.Plan.Dispatch = append(w.Plan.Dispatch, &policy.Dispatch{Model: name, Discipline: "eager", DropPolicy: "none"})
		}
		add(c.Share, executions.Alpha, executions.Beta, c.Knee, c.L2, c.Bandwidth)
		var arrivals []workload.Arrival
		for i, o := range c.Others {
			add(o.Share, 0, o.Takes*time.Duration(o.Share)/100, 100, o.L2, o.Bandwidth)
			arrivals = append(arrivals, workload.Arrival{Model: int32(i + 1)})
		}
		w.Streams = []workload.Stream{workload.Slice(append(arrivals, workload.Arrival{At: executions.After, Rows: int32(c.Rows)})...)}
		timeline := run(t, w).Timeline
		own := timeline[slices.IndexFunc(timeline, func(b sim.BatchRecord) bool { return b.Model == 0 })]
		require.InDelta(t, float64(c.Latency.Nanoseconds())/1e3, own.End-own.Start, 1, "%+v", c)
	}
}

// TestAnotherGPUDoesNotInterfere.
func TestAnotherGPUDoesNotInterfere(t *testing.T) {
	w := neighbours(t, 2, 2, workload.Arrival{}, workload.Arrival{Model: 1})
	w.Snapshot.Nodes[0].Gpus = append(w.Snapshot.Nodes[0].Gpus, &policy.GPU{Id: "other", Type: "X"})
	w.Plan.Partitions[1].Gpus = []string{"other"}
	for _, b := range run(t, w).Timeline {
		require.InDelta(t, 100e3, b.End-b.Start, 1e-3)
	}
}

// TestTheQueueExpectsInterference: under the worst slowdown nothing is late; planned without, much is.
func TestTheQueueExpectsInterference(t *testing.T) {
	late := func(expect sim.Expectation) uint64 {
		s := resnet50()
		s.models, s.gpus, s.shares, s.rate, s.slo, s.duration = 2, 2, []uint32{50, 50}, 400, 80*time.Millisecond, 10*time.Second
		w := s.world(t)
		w.Snapshot.Interference = []*policy.Interference{{GpuType: "X", Constant: 1.3}}
		w.Expect = expect
		r := run(t, w)
		require.Positive(t, r.Total.Good)
		return r.Total.Late
	}
	require.Zero(t, late(sim.ExpectWorst))
	require.Positive(t, late(sim.ExpectNone))
}
