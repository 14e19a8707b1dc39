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

// slow is one model that takes 100 ms a request, on GPUs of their own.
func slow(t *testing.T, gpus int, arrivals ...workload.Arrival) sim.World {
	s := small{
		models: 1, gpus: gpus, beta: 100 * time.Millisecond, slo: time.Second, batch: 1, discipline: "eager", drop: "none", duration: 2 * time.Second,
	}
	w := s.world(t)
	w.Streams = []workload.Stream{workload.Slice(arrivals...)}
	w.Timeline.Max = 10
	return w
}

// TestALostBatchRunsElsewhere, although the partition that lost it is back.
func TestALostBatchRunsElsewhere(t *testing.T) {
	w := slow(t, 2, workload.Arrival{})
	w.Failures = []sim.Failure{{At: 50 * time.Millisecond, For: time.Millisecond, GPU: "n/g000"}}
	r := run(t, w)
	require.Equal(t, []sim.BatchRecord{
		{Partition: 0, Rows: 1, Requests: 1, Start: 0, End: 50e3},
		{Partition: 1, Rows: 1, Requests: 1, Start: 50e3, End: 150e3},
	}, r.Timeline)
	require.EqualValues(t, 1, r.Total.Good)
	require.EqualValues(t, 1, r.Total.Requeued)
	require.Equal(t, []sim.Event{
		{At: .05, Kind: sim.EventFailure, Text: "GPU n/g000 fails"}, {At: .051, Kind: sim.EventRecovery, Text: "GPU n/g000 is back"},
	}, r.Events)
}

// TestTheOnlyPartitionComesBack: its request waits for it.
func TestTheOnlyPartitionComesBack(t *testing.T) {
	w := slow(t, 1, workload.Arrival{})
	w.Failures = []sim.Failure{{At: 50 * time.Millisecond, For: 100 * time.Millisecond, Partition: "p000.0"}}
	r := run(t, w)
	require.EqualValues(t, 1, r.Total.Good)
	require.InDelta(t, 250e3, r.Models[0].Latency.MaxUs, .01)
}

// TestARequestIsTriedTwice, and not more often.
func TestARequestIsTriedTwice(t *testing.T) {
	w := slow(t, 3, workload.Arrival{})
	w.Failures = []sim.Failure{{At: 50 * time.Millisecond, GPU: "g000"}, {At: 80 * time.Millisecond, Partition: "p001.0"}}
	r := run(t, w)
	require.EqualValues(t, 1, r.Total.Failed)
	require.EqualValues(t, 1, r.Total.Requeued)
	require.InDelta(t, 1., r.Total.BadRate, 0)
}

// TestNobodyIsLeft: what waits for a partition that never comes back has no answer at the end.
func TestNobodyIsLeft(t *testing.T) {
	w := slow(t, 1, workload.Arrival{At: time.Second}, workload.Arrival{At: time.Second})
	w.Failures = []sim.Failure{{At: 0, GPU: "g000"}}
	r := run(t, w)
	require.EqualValues(t, 2, r.Total.Unanswered)
	require.Equal(t, 2, r.Queue.Queued)
	require.InDelta(t, 1., r.Total.BadRate, 0)
}

// TestAModelWithoutAPartitionIsRefused, as the sidecar does.
func TestAModelWithoutAPartitionIsRefused(t *testing.T) {
	w := slow(t, 1, workload.Arrival{})
	w.Plan = &policy.Plan{}
	require.EqualValues(t, 1, run(t, w).Total.Refused)
}

// TestBreakdowns: the share of time that a GPU is down is repair/(between+repair); what it cannot serve then is lost.
func TestBreakdowns(t *testing.T) {
	s := small{
		models: 1, gpus: 1, beta: time.Millisecond, slo: 2 * time.Millisecond, batch: 1, rate: 100, discipline: "eager", drop: "prefix",
		late: policy.LatePolicy_LATE_POLICY_DROP, duration: 2000 * time.Second, seed: 3,
	}
	w := s.world(t)
	w.Breakdowns = sim.Breakdowns{Between: 3 * time.Second, Repair: time.Second}
	healthy := run(t, s.world(t)).Total.BadRate
	require.InDelta(t, .25+.75*healthy, run(t, w).Total.BadRate, .02)
}
