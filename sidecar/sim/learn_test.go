// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// TestTheInstanceThatHasWaitedLongest takes the next batch of its model: the third request of the first model comes to the first GPU again, its fourth to the
// second one, where the other model's batch executes.
func TestTheInstanceThatHasWaitedLongest(t *testing.T) {
	const ms = time.Millisecond
	s := small{models: 2, gpus: 2, beta: 10 * ms, slo: time.Second, batch: 1, rate: 1, discipline: "eager", drop: "none", duration: time.Second, seed: 1}
	w := s.world(t)
	w.Nodes = [][]string{{w.Plan.GetPartitions()[0].GetId(), w.Plan.GetPartitions()[1].GetId()}}
	first := func(at time.Duration) workload.Arrival { return workload.Arrival{At: at, Rows: 1} }
	w.Streams = []workload.Stream{workload.Slice(first(0), first(20*ms), first(40*ms), workload.Arrival{At: 59 * ms, Model: 1, Rows: 1}, first(60*ms))}
	r := run(t, w)
	require.InDelta(t, 12250, r.Models[0].Latency.MeanUs, 20, "10, 10, 10 and 19 ms")
}

// TestWaitsBehindAServerAreLearnt: on a server over two GPUs the short batches of one model wait now and then for the long ones of the other. A live Conch takes
// what they wait for what they take, and does worse by that where SLOs are short; with a server for each GPU there is nothing of the kind to learn.
func TestWaitsBehindAServerAreLearnt(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		knows sim.Knowledge
		node  bool
		bad   bool
	}{{sim.KnowDelays, true, false}, {sim.LearnDelays, true, true}, {sim.LearnDelays, false, false}} {
		s := small{models: 2, gpus: 2, alpha: ms, beta: 9 * ms, slo: 120 * ms, batch: 16, rate: 80, discipline: "adaptive", duration: time.Minute, warmup: 10 * time.Second, seed: 1}
		world := func() sim.World {
			w := s.world(t)
			w.Snapshot.Profiles[1] = linear("m01", ms, 79*ms, 16)
			w.Snapshot.Models[1].SloUs = (600 * ms).Microseconds()
			if c.node {
				w.Nodes = [][]string{{w.Plan.GetPartitions()[0].GetId(), w.Plan.GetPartitions()[1].GetId()}}
			}
			w.Knowledge = c.knows
			return w
		}
		r := run(t, world())
		require.Equal(t, c.bad, r.WorstBadRate() > .01, "%.3f", r.WorstBadRate())
		require.Equal(t, r, run(t, world()), "it is the same each time")
	}
}
