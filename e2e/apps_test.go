// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/pymodels"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// variants writes a repository of emulated models that differ in their times, each with its profile beside it.
func variants(t *testing.T, times map[string]time.Duration) string {
	t.Helper()
	dir := t.TempDir()
	for name, alpha := range times {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name, "1"), 0o755))
		config := fmt.Sprintf(`name: %q
backend: "python"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "conch_emulate_alpha_us" value { string_value: "%d" } }
parameters { key: "conch_emulate_beta_us" value { string_value: "1000" } }
`, name, alpha.Microseconds())
		var profile strings.Builder
		profile.WriteString("model,gpu_type,source,batch,thread_percentage,latency_us\n")
		for b := int64(1); b <= 8; b *= 2 {
			fmt.Fprintf(&profile, "%s,,declared,%d,100,%d\n", name, b, 1000+b*alpha.Microseconds())
		}
		for file, text := range map[string]string{"config.pbtxt": config, "profile.csv": profile.String(), "1/model.py": string(pymodels.Emulate)} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name, file), []byte(text), 0o600))
		}
	}
	return dir
}

// asking is a request for one row with parameters.
func asking(name string, parameters map[string]*tritonpb.InferParameter) *tritonpb.ModelInferRequest {
	return &tritonpb.ModelInferRequest{
		ModelName: name, Id: "one", Parameters: parameters,
		Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "INPUT", Datatype: "FP32", Shape: []int64{1, 4}}},
		RawInputContents: [][]byte{make([]byte, 16)},
	}
}

func accuracy(least float64) map[string]*tritonpb.InferParameter {
	return map[string]*tritonpb.InferParameter{"accuracy": {ParameterChoice: &tritonpb.InferParameter_DoubleParam{DoubleParam: least}}}
}

// Clients ask for an app: the cheapest variant, on the machine's CPUs, serves requests with low wishes; a request with higher wishes gets a
// variant that is loaded for it; a request that no variant meets gets an error that names the variants.
func TestAnAppByAccuracyAndLatency(t *testing.T) {
	t.Parallel()
	c := serve(t, rig.ConchOptions{
		Repository: variants(t, map[string]time.Duration{"small": time.Millisecond, "medium": 2 * time.Millisecond, "large": 4 * time.Millisecond}),
		GPUs:       2, Await: []string{"classify"},
		Settings: map[string]any{
			"policy": map[string]any{"name": "infaas"},
			"cpus":   map[string]any{"cores": 4},
			"models": map[string]any{"small": map[string]any{"slo": "1s"}, "medium": map[string]any{"slo": "1s"}, "large": map[string]any{"slo": "2s"}},
			"apps": map[string]any{"classify": map[string]any{"accuracy": .6, "slo": "10s", "variants": []map[string]any{
				{"model": "small", "accuracy": .7, "places": []string{"cpu"}, "costPerHour": .1},
				{"model": "medium", "accuracy": .8, "costPerHour": 1},
				{"model": "large", "accuracy": .9, "costPerHour": 3},
			}}},
		},
	})
	server := triton(t, c)
	a := admin(t, c)
	served := func(parameters map[string]*tritonpb.InferParameter) (*tritonpb.ModelInferResponse, string) {
		t.Helper()
		r, err := server.ModelInfer(t.Context(), asking("classify", parameters))
		require.NoError(t, err)
		require.Equal(t, "classify", r.GetModelName())
		require.Equal(t, "one", r.GetId())
		return r, r.GetParameters()["conch_variant"].GetStringParam()
	}

	_, variant := served(nil)
	require.Equal(t, "small", variant)
	all := partitions(t, a)
	require.Len(t, all, 1, "nothing else is asked for")
	require.True(t, all[0].Up)

	// Over HTTP as well.
	body := `{"parameters": {"latency": "5s"}, "inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}`
	response, err := http.Post("http://"+c.HTTP+"/v2/models/classify/infer", "application/json", strings.NewReader(body)) //nolint:noctx // a test's own server
	require.NoError(t, err)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode, string(text))
	var answer struct {
		Model      string         `json:"model_name"`
		Parameters map[string]any `json:"parameters"`
	}
	require.NoError(t, json.Unmarshal(text, &answer))
	require.Equal(t, "classify", answer.Model)
	require.Equal(t, "small", answer.Parameters["conch_variant"])

	// Nothing that runs is so accurate: the request waits while the variant is planned and loaded.
	_, variant = served(accuracy(.75))
	require.Equal(t, "medium", variant)
	_, variant = served(accuracy(.85))
	require.Equal(t, "large", variant)
	_, variant = served(nil)
	require.Equal(t, "small", variant, "who wishes for little still gets little")
	out, code := tritonctl(t, c, "events")
	require.Zero(t, code, out)
	require.Contains(t, out, "classify is asked for an accuracy of at least 0.85 within 10s")

	_, err = server.ModelInfer(t.Context(), asking("classify", accuracy(.95)))
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	for _, there := range []string{"'small' with accuracy 0.7 within 1s", "'medium' with accuracy 0.8 within 1s", "'large' with accuracy 0.9 within 2s"} {
		require.ErrorContains(t, err, there)
	}

	metadata, err := server.ModelMetadata(t.Context(), &tritonpb.ModelMetadataRequest{Name: "classify"})
	require.NoError(t, err)
	require.Equal(t, "classify", metadata.GetName())
	require.Equal(t, "INPUT", metadata.GetInputs()[0].GetName())
	config, err := server.ModelConfig(t.Context(), &tritonpb.ModelConfigRequest{Name: "classify"})
	require.NoError(t, err)
	require.Equal(t, "classify", config.GetConfig().GetName())

	page := scrape(t, c)
	require.InDelta(t, 3, page.sum("conch_named_requests_total", "name=classify", "model=small"), 0)
	require.InDelta(t, 1, page.sum("conch_named_requests_total", "name=classify", "model=large"), 0)

	// A variant without requests is unloaded, after the ticks that the paper's code waits for.
	require.EventuallyWithT(t, func(collect *assert.CollectT) { assert.Len(collect, partitions(t, a), 1) }, 90*time.Second, time.Second)
	_, variant = served(nil)
	require.Equal(t, "small", variant)
}
