// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/observe"
)

// batches is Triton's account of executions: rows, how many, and the nanoseconds of
// all of them together.
func batches(model string, all ...[3]uint64) []*tritonpb.ModelStatistics {
	s := &tritonpb.ModelStatistics{Name: model, Version: "1"}
	for _, b := range all {
		part := func(ns uint64) *tritonpb.StatisticDuration {
			return &tritonpb.StatisticDuration{Count: b[1], Ns: ns}
		}
		s.BatchStats = append(s.BatchStats, &tritonpb.InferBatchStatistics{
			BatchSize: b[0], ComputeInput: part(b[2] / 10), ComputeInfer: part(b[2] / 10 * 8), ComputeOutput: part(b[2] / 10),
		})
	}
	return []*tritonpb.ModelStatistics{s}
}

func TestServerStatisticsTellWhatIsNew(t *testing.T) {
	var s observe.ServerStatistics
	for _, look := range []struct {
		name string
		now  []*tritonpb.ModelStatistics
		want []observe.Executions
	}{
		{"all since the server loaded the model", batches("m", [3]uint64{1, 2, 20e6}, [3]uint64{4, 1, 14e6}), []observe.Executions{{1, 2, 10 * time.Millisecond}, {4, 1, 14 * time.Millisecond}}},
		{"the difference", batches("m", [3]uint64{1, 2, 20e6}, [3]uint64{4, 3, 44e6}), []observe.Executions{{4, 2, 15 * time.Millisecond}}},
		{"nothing", batches("m", [3]uint64{1, 2, 20e6}, [3]uint64{4, 3, 44e6}), nil},
		{"loaded again: from zero", batches("m", [3]uint64{1, 1, 11e6}), []observe.Executions{{1, 1, 11 * time.Millisecond}}},
		{"gone", nil, nil},
	} {
		require.Equal(t, look.want, s.Since(look.now)["m"], look.name)
	}
}

func latency(t *testing.T, p *policy.Profile, rows uint32) time.Duration {
	t.Helper()
	for _, q := range p.GetPoints() {
		if q.GetBatch() == rows {
			return time.Duration(q.GetLatencyUs().GetValue() * 1e3)
		}
	}
	require.Failf(t, "no point", "of %d rows", rows)
	return 0
}

// Clients that send single rows, and a server that waits 5 ms for company: what the
// server says of its batches is the profile, and round trips of single rows are not.
func TestAServersOwnBatchesAreTheProfileWhileItBatches(t *testing.T) {
	r := recorder(t)
	r.SetModel("m", "r1", 8, nil)
	now := start
	trip := func(took time.Duration) {
		r.Executed(observe.Execution{Model: "m", Partition: "p", GPUType: "A100", ThreadPercentage: 100, Rows: 1, Requests: 1, Start: now, End: now.Add(took)})
		now = now.Add(500 * time.Millisecond)
	}
	for range 20 {
		trip(11 * time.Millisecond)
	}
	require.Equal(t, "only one batch size was observed often enough", r.Unusable("m", "A100"), "the round trips of single rows alone say nothing of batches")
	r.Served("m", "A100", 100, []observe.Executions{{Rows: 1, Count: 1000, Mean: 6 * time.Millisecond}})
	require.False(t, profile(t, r).GetUsable(), "nor does a server that formed none")
	r.Served("m", "A100", 100, []observe.Executions{{Rows: 4, Count: 10, Mean: 9 * time.Millisecond}, {Rows: 0, Count: 9, Mean: 1}})
	r.Served("stranger", "A100", 100, []observe.Executions{{Rows: 4, Count: 10, Mean: time.Second}})
	p := profile(t, r)
	require.True(t, p.GetUsable())
	require.Equal(t, policy.ProfileSource_PROFILE_SOURCE_OBSERVED, p.GetSource())
	require.InDelta(t, 6*time.Millisecond, latency(t, p, 1), 1e4)
	require.InDelta(t, 9*time.Millisecond, latency(t, p, 4), 1e4)
	require.InDelta(t, 13*time.Millisecond, latency(t, p, 8), 1e5)
	require.EqualValues(t, 1000, p.GetPoints()[0].GetObservations())
	for range 20 {
		trip(11 * time.Millisecond)
	}
	require.InDelta(t, 6*time.Millisecond, latency(t, profile(t, r), 1), 1e4, "a round trip has the server's waiting in it")

	// It survives a restart.
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "state"), 0o600, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, r.Save(store.NewBolt(db)))
	again := recorder(t)
	again.SetModel("m", "r1", 8, nil)
	require.NoError(t, again.Restore(store.NewBolt(db)))
	require.Empty(t, again.Unusable("m", "A100"))

	// Conch batches from here on: its own executions count again, from the first.
	r.Unserved()
	require.True(t, profile(t, r).GetUsable())
	require.InDelta(t, 6*time.Millisecond, latency(t, profile(t, r), 1), 1e4)
	for range 20 {
		trip(7 * time.Millisecond)
	}
	require.InDelta(t, 7*time.Millisecond, latency(t, profile(t, r), 1), 2e4)
	require.InEpsilon(t, 10500*time.Microsecond, latency(t, profile(t, r), 4), .02, "other sizes in proportion")
}
