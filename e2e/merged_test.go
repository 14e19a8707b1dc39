// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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
	var out []float32
	for b := r.GetRawOutputContents()[0]; len(b) > 0; b = b[4:] {
		out = append(out, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return out, nil
}

// differs is the largest difference of two answers over their largest number.
func differs(a, b []float32) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	most, largest := 0.0, 0.0
	for i := range a {
		most, largest = max(most, math.Abs(float64(a[i]-b[i]))), max(largest, math.Abs(float64(a[i])))
	}
	return most / largest
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

	const inputs = 6
	var own [3][inputs][]float32
	for m, name := range names {
		for seed := range inputs {
			r, err := server.ModelInfer(t.Context(), tokens(name, seed, 1+seed%2))
			require.NoError(t, err)
			own[m][seed], err = scores(r, name)
			require.NoError(t, err)
		}
	}

	const bound = 1e-5
	var stop atomic.Bool
	var answered atomic.Int64
	var clients sync.WaitGroup
	faults := make(chan error, 16)
	for i := range 6 {
		clients.Go(func() {
			for n := i; !stop.Load(); n++ {
				m, seed := n%3, n%inputs
				r, err := server.ModelInfer(context.WithoutCancel(t.Context()), tokens(names[m], seed, 1+seed%2))
				var got []float32
				if err == nil {
					got, err = scores(r, names[m])
				}
				if err == nil && !(differs(own[m][seed], got) <= bound) {
					err = fmt.Errorf("%s: %v instead of %v", names[m], got, own[m][seed])
				}
				if err != nil {
					faults <- err
					return
				}
				answered.Add(1)
			}
		})
	}
	finish := sync.OnceFunc(func() { stop.Store(true); clients.Wait() })
	defer finish()
	flows := func() {
		t.Helper()
		before := answered.Load()
		require.Eventually(t, func() bool { return answered.Load() > before+30 || len(faults) > 0 }, time.Minute, 10*time.Millisecond)
		select {
		case err := <-faults:
			require.NoError(t, err)
		default:
		}
	}
	loaded := func() (all []string) {
		for _, p := range partitions(t, a) {
			all = append(all, p.Serving...)
		}
		return all
	}
	flows()

	reconfigure(t, c, func(settings map[string]any) {
		settings["merge"] = []map[string]any{{"members": names}}
	})
	group := ""
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		now := loaded()
		if assert.Len(collect, now, 1) {
			group = now[0]
			assert.True(collect, strings.HasPrefix(group, "merge.first.second.third"), group)
		}
	}, 2*time.Minute, 50*time.Millisecond, "one model serves all three: %v", eventKinds(t, a, 0))
	flows()
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

	// An execution with rows of several members is one of the group, and counts for each member.
	behind, err := grpc.NewClient(partitions(t, a)[0].GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer behind.Close() //nolint:errcheck // it was only asked
	executed := func() (members, groups uint64) {
		all, err := server.ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{})
		require.NoError(t, err)
		for _, s := range all.GetModelStats() {
			require.Contains(t, names, s.GetName())
			members += s.GetExecutionCount()
		}
		all, err = tritonpb.NewGRPCInferenceServiceClient(behind).ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{Name: group})
		require.NoError(t, err)
		return members, all.GetModelStats()[0].GetExecutionCount()
	}
	members, groups := executed()
	flows()
	membersNow, groupsNow := executed()
	require.Greater(t, membersNow-members, groupsNow-groups+5, "executions that the members took part in, and executions of the group")
	out, code := tritonctl(t, c, "plan", "explain", "second")
	require.Zero(t, code, out)
	require.Contains(t, out, "as "+group)

	reconfigure(t, c, func(settings map[string]any) { delete(settings, "merge") })
	require.EventuallyWithT(t, func(collect *assert.CollectT) { assert.ElementsMatch(collect, names, loaded()) }, 2*time.Minute, 50*time.Millisecond)
	flows()
	finish()
	select {
	case err := <-faults:
		require.NoError(t, err)
	default:
	}
	t.Logf("%d requests were answered", answered.Load())

	// What was made is kept while its members are what it was made of, and made again when one is another.
	made := func() int { return strings.Count(strings.Join(eventKinds(t, a, 0), "\n"), "merged: merge group ") }
	reconfigure(t, c, func(settings map[string]any) { settings["merge"] = "auto" })
	require.EventuallyWithT(t, func(collect *assert.CollectT) { assert.Equal(collect, []string{group}, loaded()) }, 2*time.Minute, 50*time.Millisecond)
	require.Equal(t, 1, made())
	require.NoError(t, os.RemoveAll(filepath.Join(models, "third")))
	fineTune(t, filepath.Join(models, "third"), 9)
	out, code = tritonctl(t, c, "repo", "import")
	require.Zero(t, code, out)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		assert.Equal(collect, 2, made())
		assert.Equal(collect, []string{group}, loaded())
	}, 2*time.Minute, 50*time.Millisecond)
	for m, name := range names {
		r, err := server.ModelInfer(t.Context(), tokens(name, 0, 1))
		require.NoError(t, err)
		got, err := scores(r, name)
		require.NoError(t, err)
		require.Equal(t, m < 2, differs(own[m][0], got) <= bound, "%s: the third is another now", name)
	}
}
