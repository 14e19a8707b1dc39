// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/conch-serving/conch/internal/pymodels"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// moodyGroup is a fine-tune's model.py that fails in every execution of a merge group while a file is there: what merges them keeps it.
func moodyGroup(t *testing.T, flag string) []byte {
	t.Helper()
	source := string(pymodels.ONNX)
	const at = "    def execute(self, requests):\n"
	require.Equal(t, 1, strings.Count(source, at), "model.py has one execute")
	return []byte(strings.Replace(source, at, at+fmt.Sprintf("        import os\n        if '/merge.' in os.path.abspath(__file__) and os.path.exists(%q):\n            raise RuntimeError('the group is in a bad mood')\n", flag), 1))
}

// A merge group that serves begins to fail, and later is unloaded, not by conch. No request is lost: its members serve until it works again, and
// it is put back by itself.
func TestAGroupThatFailsWhileItServes(t *testing.T) {
	t.Parallel()
	models, flag := t.TempDir(), filepath.Join(t.TempDir(), "bad-mood")
	names := []string{"first", "second"}
	for i, name := range names {
		fineTune(t, filepath.Join(models, name), uint64(2+i)) //nolint:gosec // small
		require.NoError(t, os.WriteFile(filepath.Join(models, name, "1", "model.py"), moodyGroup(t, flag), 0o644))
	}
	c := serve(t, rig.ConchOptions{Repository: models, GPUs: 1, Await: names, Settings: map[string]any{
		"defaults": map[string]any{"slo": "2s"}, "merge": []map[string]any{{"members": names}},
	}})
	server, a := triton(t, c), admin(t, c)
	group := ""
	merged := func(collect *assert.CollectT) {
		if now := servedNow(t, a); assert.Len(collect, now, 1) && assert.True(collect, strings.HasPrefix(now[0], "merge."), now[0]) {
			group = now[0]
		}
	}
	require.EventuallyWithT(t, merged, 2*time.Minute, 50*time.Millisecond)

	load := askFineTunes(t, server, names, 5)
	load.flows()

	require.NoError(t, os.WriteFile(flag, nil, 0o600))
	require.EventuallyWithT(t, func(collect *assert.CollectT) { assert.ElementsMatch(collect, names, servedNow(t, a)) }, time.Minute, 20*time.Millisecond,
		"the members serve: %v", eventKinds(t, a, 0))
	load.flows()
	kinds := strings.Join(eventKinds(t, a, 0), "\n")
	require.Contains(t, kinds, "merge_group_faulted: merge group "+group+": its executions fail on partition ")
	require.Contains(t, kinds, "the group is in a bad mood")
	// On a busy machine it may have been tried again meanwhile, and have failed.
	faults := func() float64 {
		return float64(strings.Count(strings.Join(eventKinds(t, a, 0), "\n"), "merge_group_faulted: "))
	}
	least := faults()
	count := scrape(t, c)["conch_merge_group_faults_total"].GetMetric()
	require.Len(t, count, 1)
	require.GreaterOrEqual(t, count[0].GetCounter().GetValue(), least)
	require.Eventually(t, func() bool { return faults() >= count[0].GetCounter().GetValue() }, 30*time.Second, 20*time.Millisecond, "each fault is an event")
	logged := func(text string) func() bool {
		return func() bool { return strings.Contains(strings.Join(eventKinds(t, a, 0), "\n"), text) }
	}
	require.Eventually(t, logged("degraded: group "+group+": "), 30*time.Second, 100*time.Millisecond, "a condition says so")

	require.NoError(t, os.Remove(flag))
	require.EventuallyWithT(t, merged, 2*time.Minute, 50*time.Millisecond, "it is tried again: %v", eventKinds(t, a, 0))
	load.flows()
	require.Eventually(t, logged("recovered: group "+group), 30*time.Second, 100*time.Millisecond)

	behind, err := grpc.NewClient(partitions(t, a)[0].GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer behind.Close()
	direct := tritonpb.NewGRPCInferenceServiceClient(behind)
	ready := func() bool {
		r, err := direct.ModelReady(t.Context(), &tritonpb.ModelReadyRequest{Name: group})
		require.NoError(t, err)
		return r.GetReady()
	}
	require.True(t, ready())
	_, err = direct.RepositoryModelUnload(t.Context(), &tritonpb.RepositoryModelUnloadRequest{ModelName: group})
	require.NoError(t, err)
	require.Eventually(t, ready, time.Minute, 20*time.Millisecond, "it is loaded again")
	load.flows()
	load.close()
}
