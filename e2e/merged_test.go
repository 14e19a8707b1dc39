// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"encoding/binary"
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
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// tokens is a request of rows for a fine-tune, whose tokens follow from the seed.
func tokens(model string, seed, rows int) *tritonpb.ModelInferRequest {
	var data []byte
	for i := range 16 * rows {
		data = binary.LittleEndian.AppendUint64(data, uint64((seed*31+i*7)%100)) //nolint:gosec // small
	}
	return &tritonpb.ModelInferRequest{
		ModelName:        model,
		Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "TOKENS", Datatype: "INT64", Shape: []int64{int64(rows), 16}}},
		RawInputContents: [][]byte{data},
	}
}

// scores are the answer's numbers, if it is the model's own.
func scores(r *tritonpb.ModelInferResponse, model string) ([]float32, error) {
	if r.GetModelName() != model || len(r.GetOutputs()) != 1 || r.GetOutputs()[0].GetName() != "SCORES" {
		return nil, fmt.Errorf("%s answered as %s with %v", model, r.GetModelName(), r.GetOutputs())
	}
	return floats(r.GetRawOutputContents()[0]), nil
}

// differs is the largest difference of two answers over their largest number.
func differs(a, b []float32) float64 {
	return distance(a, b) / distance(a, make([]float32, len(a)))
}

// Fine-tunes are asked for by their names all the time, while they are merged and while they are not any more: every request is answered,
// and as before within the bound of the verification. Merged, requests of all of them share executions.
func TestFineTunesAreMergedUnderLoad(t *testing.T) {
	t.Parallel()
	models := t.TempDir()
	names := []string{"first", "second", "third"}
	for i, name := range names {
		fineTune(t, filepath.Join(models, name), uint64(2+i)) //nolint:gosec // small
	}
	c := serve(t, rig.ConchOptions{Repository: models, GPUs: 1, Await: names, Settings: map[string]any{"defaults": map[string]any{"slo": "2s"}}})
	server, a := triton(t, c), admin(t, c)

	load := askFineTunes(t, server, names, 6)
	load.flows()

	reconfigure(t, c, func(settings map[string]any) {
		settings["merge"] = []map[string]any{{"members": names}}
	})
	group := ""
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		now := servedNow(t, a)
		if assert.Len(collect, now, 1) {
			group = now[0]
			assert.True(collect, strings.HasPrefix(group, "merge.first.second.third"), group)
		}
	}, 2*time.Minute, 50*time.Millisecond, "one model serves all three: %v", eventKinds(t, a, 0))
	load.flows()
	kinds := strings.Join(eventKinds(t, a, 0), "\n")
	require.Contains(t, kinds, "merging: merge group "+group)
	require.Contains(t, kinds, "merged: merge group "+group+": made and verified by")

	// To clients nothing is different.
	index, err := server.RepositoryIndex(t.Context(), &tritonpb.RepositoryIndexRequest{Ready: true})
	require.NoError(t, err)
	var ready []string
	for _, m := range index.GetModels() {
		ready = append(ready, m.GetName())
	}
	require.Equal(t, names, ready)
	metadata, err := server.ModelMetadata(t.Context(), &tritonpb.ModelMetadataRequest{Name: "second"})
	require.NoError(t, err)
	require.Len(t, metadata.GetInputs(), 1)
	_, err = server.ModelInfer(t.Context(), tokens(group, 0, 1))
	require.ErrorContains(t, err, "is not found")
	wrong := tokens("second", 0, 1)
	wrong.Inputs[0].Name = "TOKES"
	_, err = server.ModelInfer(t.Context(), wrong)
	require.Error(t, err)
	require.NotContains(t, status.Convert(err).Message(), group)
	require.NotContains(t, status.Convert(err).Message(), "conch_member")

	// An execution with rows of several members is one of the group, and counts for each member. Requests go on between two readings: the
	// group's count is read first at the start and last at the end, so that the members' can only be too small.
	behind, err := grpc.NewClient(partitions(t, a)[0].GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer behind.Close()
	executionsOf := func(at require.TestingT, from tritonpb.GRPCInferenceServiceClient, models ...string) (executions uint64) {
		all, err := from.ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{})
		require.NoError(at, err)
		for _, s := range all.GetModelStats() {
			require.Contains(at, models, s.GetName())
			executions += s.GetExecutionCount()
		}
		return executions
	}
	partition := tritonpb.NewGRPCInferenceServiceClient(behind)
	groups := executionsOf(t, partition, group)
	members := executionsOf(t, server, names...)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		membersNow := executionsOf(collect, server, names...)
		groupsNow := executionsOf(collect, partition, group)
		assert.Greater(collect, membersNow-members, groupsNow-groups+5, "executions that the members took part in, and executions of the group")
	}, time.Minute, 50*time.Millisecond)
	load.flows()
	out, code := tritonctl(t, c, "plan", "explain", "second")
	require.Zero(t, code, out)
	require.Contains(t, out, "as "+group)

	reconfigure(t, c, func(settings map[string]any) { delete(settings, "merge") })
	require.EventuallyWithT(t, func(collect *assert.CollectT) { assert.ElementsMatch(collect, names, servedNow(t, a)) }, 2*time.Minute, 50*time.Millisecond)
	load.flows()

	// By order conch verifies a merge beside what serves, and keeps nothing of it.
	before := servedNow(t, a)
	out, code = tritonctl(t, c, "merge", "verify", "first", "second")
	require.Zero(t, code, out)
	require.Contains(t, out, "verified: ")
	require.Contains(t, out, "a scratch server of conch")
	out, code = tritonctl(t, c, "merge", "verify", "first", "nobody")
	require.NotZero(t, code)
	require.Contains(t, out, `no model is called "nobody" in the repository`)
	require.ElementsMatch(t, before, servedNow(t, a))
	load.flows()
	load.close()

	// What was made is kept while its members are what it was made of, and made again when one is another.
	made := func() int { return strings.Count(strings.Join(eventKinds(t, a, 0), "\n"), "merged: merge group ") }
	reconfigure(t, c, func(settings map[string]any) { settings["merge"] = "auto" })
	require.EventuallyWithT(t, func(collect *assert.CollectT) { assert.Equal(collect, []string{group}, servedNow(t, a)) }, 2*time.Minute, 50*time.Millisecond)
	require.Equal(t, 1, made())
	require.NoError(t, os.RemoveAll(filepath.Join(models, "third")))
	fineTune(t, filepath.Join(models, "third"), 9)
	out, code = tritonctl(t, c, "repo", "import")
	require.Zero(t, code, out)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		assert.Equal(collect, 2, made())
		assert.Equal(collect, []string{group}, servedNow(t, a))
	}, 2*time.Minute, 50*time.Millisecond)
	for m, name := range names {
		r, err := server.ModelInfer(t.Context(), tokens(name, 0, 1))
		require.NoError(t, err)
		got, err := scores(r, name)
		require.NoError(t, err)
		require.Equal(t, m < 2, differs(load.own[name][0], got) <= fineTuneBound, "%s: the third is another now", name)
	}
}
