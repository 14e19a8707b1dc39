// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

// TestSpeedChangesWhileABatchRuns: two executions of 100 ms overlap. Side by side they go at half speed, alone at full speed.
//
//	0        40                  160   200
//	|-- m00: 40 + 120/2 = 100 ---|
//	         |-- m01: 120/2 + 40 ------|
func TestSpeedChangesWhileABatchRuns(t *testing.T) {
	r := run(t, neighbours(t, 2, 2, workload.Arrival{}, workload.Arrival{At: 40 * time.Millisecond, Model: 1}))
	require.Equal(t, []sim.BatchRecord{
		{Partition: 0, Model: 0, Rows: 1, Requests: 1, Start: 0, End: 160e3},
		{Partition: 1, Model: 1, Rows: 1, Requests: 1, Start: 40e3, End: 200e3},
	}, r.Timeline)
}

// TestAnyNumberOfCoRunners: with the linear model a third one that is no worse changes nothing, a worse one does. Loads: m00 .1, m01 .2,
// m02 .4 of the bandwidth; a co-runner's bandwidth counts five times, so that m00 goes at 1/2 beside m01, and at 1/3 beside m02.
func TestAnyNumberOfCoRunners(t *testing.T) {
	w := neighbours(t, 3, 1, workload.Arrival{}, workload.Arrival{Model: 1}, workload.Arrival{Model: 2, At: 100 * time.Millisecond})
	w.Snapshot.Interference[0].BandwidthOther = 5
	for i, p := range w.Snapshot.Profiles {
		for _, q := range p.Points {
			q.BandwidthUtilization = &policy.Estimate{Value: []float64{.1, .2, .4}[i]}
		}
	}
	r := run(t, w)
	ends := map[int]float64{}
	for _, b := range r.Timeline {
		ends[b.Model] = b.End / 1e3
	}
	// m01 beside m00: 1.5, after 100 ms 33.3 ms of work are left, beside m02 3: done at 200 ms.
	require.InDelta(t, 200, ends[1], 1e-3)
	// m00 beside m01: 2, half is left at 100 ms, beside m02 3: done at 250 ms.
	require.InDelta(t, 250, ends[0], 1e-3)
	// m02 beside m01: 2 until 200 ms (50 done), beside m00 1.5 until 250 ms (33.3 done), then alone.
	require.InDelta(t, 250+100-50-100/3., ends[2], 1e-3)
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
