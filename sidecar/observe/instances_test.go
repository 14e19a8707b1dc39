// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/observe"
)

// on executes batches of a model on a partition, ten a second for some seconds.
func on(r *observe.Recorder, model, partition string, from time.Time, seconds, rows int, took time.Duration) time.Time {
	for i := range 10 * seconds {
		at := from.Add(time.Duration(i) * 100 * time.Millisecond)
		r.Executed(observe.Execution{Model: model, Partition: partition, GPUType: "T4", ThreadPercentage: 50, Rows: rows, Start: at, End: at.Add(took)})
	}
	return from.Add(time.Duration(seconds) * time.Second)
}

// TestEachInstanceHasItsOwnValues, and none of its neighbour's on the same partition or of the same model.
func TestEachInstanceHasItsOwnValues(t *testing.T) {
	r := recorder(t)
	now := on(r, "a", "p0", start, 20, 4, 20*time.Millisecond)
	on(r, "a", "p1", start, 20, 1, 10*time.Millisecond)
	on(r, "b", "p0", start, 20, 2, 50*time.Millisecond)
	for i := range 50 {
		at := now.Add(-time.Duration(i) * 100 * time.Millisecond)
		r.Executed(observe.Execution{Model: "b", Partition: "p1", GPUType: "T4", ThreadPercentage: 50, Rows: 8, Start: at.Add(-10 * time.Millisecond), End: at, Err: errors.New("out of memory")})
	}
	in := func(p, m string) *policy.InstanceObservation { return r.Instance(p, m, now) }
	for _, c := range []struct {
		partition, model            string
		rate, batch, busy, p50, p99 float64
	}{
		{"p0", "a", 40, 4, .2, 20e3, 20e3}, {"p1", "a", 10, 1, .1, 10e3, 10e3}, {"p0", "b", 20, 2, .5, 50e3, 50e3},
		{"p1", "b", 0, 0, .1, 0, 0}, // it failed all the time: busy, and nothing done
		{"p2", "a", 0, 0, 0, 0, 0}, {"p0", "c", 0, 0, 0, 0, 0},
	} {
		o := in(c.partition, c.model)
		require.Equal(t, c.partition, o.GetPartition())
		require.Equal(t, c.model, o.GetModel())
		require.InDelta(t, c.rate, o.GetRowRate(), .05*c.rate, "%s on %s", c.model, c.partition)
		require.InDelta(t, c.batch, o.GetMeanBatch(), 1e-9)
		require.InDelta(t, c.busy, o.GetBusyShare(), .03*c.busy, "%s on %s", c.model, c.partition)
		require.InDelta(t, c.p50, o.GetLatencyP50Us(), .07*c.p50)
		require.InDelta(t, c.p99, o.GetLatencyP99Us(), .07*c.p99)
		require.False(t, o.GetInterfered())
	}
	later := r.Instance("p0", "a", now.Add(observe.Window+2*time.Second))
	require.Zero(t, later.GetRowRate()+later.GetBusyShare()+later.GetLatencyP99Us(), "the window is over")

	r.Forget([]string{"a", "b"}, []string{"p1"})
	require.Zero(t, in("p0", "a").GetRowRate(), "a partition that is gone is forgotten")
	require.NotZero(t, in("p1", "a").GetRowRate())
}

// TestOneInstanceIsInterfered where the other, of the same model on the same type of GPU, is as fast as ever.
func TestOneInstanceIsInterfered(t *testing.T) {
	r := recorder(t)
	r.SetModel("m", "r1", 1, nil)
	r.Calibrated("m", "T4", 50, []observe.Sample{{Rows: 1, Duration: 10 * time.Millisecond}})
	r.Profiles() // which makes the calibration what executions are held against
	now := start
	for range 30 {
		on(r, "m", "quiet", now, 1, 1, 10*time.Millisecond)
		now = on(r, "m", "noisy", now, 1, 1, 18*time.Millisecond)
	}
	require.True(t, r.Instance("noisy", "m", now).GetInterfered())
	require.False(t, r.Instance("quiet", "m", now).GetInterfered())
	for range 90 { // a minute after the last change, at the soonest
		now = on(r, "m", "noisy", now, 1, 1, 10*time.Millisecond)
	}
	require.False(t, r.Instance("noisy", "m", now).GetInterfered(), "it is as fast again as its profile")
}

func TestASnapshotSaysWhichInstancesAreReady(t *testing.T) {
	r := recorder(t)
	now := on(r, "a", "p1", start, 5, 2, 20*time.Millisecond)
	s := r.Snapshot(now, observe.World{
		Models: []*policy.Model{{Name: "a"}, {Name: "b"}},
		Current: &policy.Plan{Partitions: []*policy.Partition{
			{Id: "p1", Instances: []*policy.Instance{{Model: "b"}, {Model: "a"}}}, {Id: "p0", Instances: []*policy.Instance{{Model: "a"}}},
		}},
		Ready: func(partition, model string) (bool, string) {
			if model == "b" {
				return false, "no module named torch"
			}
			return true, ""
		},
	})
	all := s.GetObservations()
	require.Len(t, all, 3, "one for each instance in force, by partition and model")
	require.Equal(t, "p0", all[0].GetPartition())
	require.True(t, all[0].GetReady())
	require.Equal(t, "p1", all[1].GetPartition())
	require.Equal(t, "a", all[1].GetModel())
	require.InDelta(t, 20, all[1].GetRowRate(), 1)
	require.Zero(t, all[0].GetRowRate(), "what p1 does is not p0's")
	require.False(t, all[2].GetReady())
	require.Equal(t, "no module named torch", all[2].GetCondition())
}
