// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/plugins/policy"
)

// TestASnapshotUnderLoadShowsEachInstance: tritonctl record --snapshot writes what the admin API answers here.
func TestASnapshotUnderLoadShowsEachInstance(t *testing.T) {
	t.Parallel()
	// Alpha is on one GPU, idle on the other, beta on both. An execution takes four times (1 ms for each row and 2 ms, or 3 ms).
	yaml := text(writeZoo(t, "alpha", "beta", "idle"), t.TempDir(), "models: {alpha: {gpus: [gpu0]}, idle: {gpus: [gpu1]}}")
	c := startConch(t, strings.Replace(yaml, "kind: embedded", "kind: embedded, stretch: 4", 1))
	look := func() map[string]*policy.InstanceObservation {
		for _, model := range []string{"alpha", "beta"} {
			for _, err := range c.burst(model, 40) {
				require.NoError(t, err)
			}
		}
		raw, err := c.admin.Snapshot(t.Context())
		require.NoError(t, err)
		var s policy.Snapshot
		require.NoError(t, protojson.Unmarshal(raw, &s))
		all := map[string]*policy.InstanceObservation{}
		for _, o := range s.GetObservations() {
			all[o.GetModel()+" on "+o.GetPartition()] = o
		}
		return all
	}
	all := look()
	for ended := time.Now().Add(time.Minute); all["alpha on gpu0"].GetRowRate() == 0 && time.Now().Before(ended); {
		all = look() // a busy machine let the window pass in between
	}
	require.Equal(t, []string{"alpha on gpu0", "beta on gpu0", "beta on gpu1", "idle on gpu1"}, slices.Sorted(maps.Keys(all)))
	for name, o := range all {
		require.True(t, o.GetReady(), "%s: %s", name, o.GetCondition())
	}
	alpha, idle := all["alpha on gpu0"], all["idle on gpu1"]
	require.Positive(t, alpha.GetRowRate())
	require.GreaterOrEqual(t, alpha.GetMeanBatch(), 1.0)
	require.Positive(t, alpha.GetBusyShare())
	require.Greater(t, alpha.GetLatencyP50Us(), .9*12_000, "four times what one row takes")
	require.GreaterOrEqual(t, alpha.GetLatencyP99Us(), alpha.GetLatencyP50Us())
	require.Zero(t, idle.GetRowRate()+idle.GetMeanBatch()+idle.GetBusyShare()+idle.GetLatencyP50Us(), "what others do on its partition is not its own")
	require.Positive(t, all["beta on gpu0"].GetRowRate()+all["beta on gpu1"].GetRowRate())
}
