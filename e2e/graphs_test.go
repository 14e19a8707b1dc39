// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// tolerance is what the order of additions may make of FP32: ONNX Runtime itself differs by 2.4e-7 between a batch of 16 and 16 single rows
// of the encoder, and by nothing for the CNN. The rest is room for other machines; answers to different rows are a thousand times as far
// apart, which the test makes sure of.
const tolerance = 1e-5

// graphModel is a model of e2e/models that runs a generated graph.
type graphModel struct {
	name, input, datatype, output string
	shape                         []int64 // of one row
	rowBytes, outElements         int
	fill                          func(random *rand.Rand, row []byte)
}

var graphModels = []graphModel{
	{
		name: "cnn", input: "INPUT", datatype: "FP32", output: "OUTPUT", shape: []int64{3, 32, 32}, rowBytes: 4 * 3 * 32 * 32, outElements: 100,
		fill: func(random *rand.Rand, row []byte) {
			for i := 0; i < len(row); i += 4 {
				binary.LittleEndian.PutUint32(row[i:], math.Float32bits(random.Float32()))
			}
		},
	},
	{
		name: "encoder", input: "TOKENS", datatype: "INT64", output: "SCORES", shape: []int64{32}, rowBytes: 8 * 32, outElements: 8,
		fill: func(random *rand.Rand, row []byte) {
			for i := 0; i < len(row); i += 8 {
				binary.LittleEndian.PutUint64(row[i:], random.Uint64N(1000))
			}
		},
	},
}

// direct runs ONNX Runtime itself on all rows, one row at a time.
func (m graphModel) direct(t *testing.T, rows [][]byte) [][]float32 {
	t.Helper()
	command := exec.CommandContext(t.Context(), setting(t, "CONCH_PYTHON"), "testdata/direct.py", graph(t, m.name))
	command.Stdin = bytes.NewReader(bytes.Join(rows, nil))
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	require.NoError(t, err, stderr.String())
	require.Len(t, out, 4*m.outElements*len(rows))
	var all [][]float32
	for i := range rows {
		all = append(all, floats(out[4*m.outElements*i:4*m.outElements*(i+1)]))
	}
	return all
}

func floats(raw []byte) []float32 {
	out := make([]float32, len(raw)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return out
}

// distance is the largest difference of two answers' elements.
func distance(a, b []float32) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	most := 0.0
	for i := range a {
		d := math.Abs(float64(a[i] - b[i]))
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		most = max(most, d)
	}
	return most
}

// Callers of one to three rows each meet in batches, over gRPC, HTTP with JSON tensors and HTTP with binary ones; each gets what ONNX
// Runtime computes for its rows.
func TestGraphsAnswerLikeONNXRuntime(t *testing.T) {
	t.Parallel()
	c := start(t, 2, nil, "cnn", "encoder")
	grpc := triton(t, c)
	protocols := []struct {
		name string
		call func(ctx context.Context, m graphModel, id string, rows [][]byte) ([]float32, error)
	}{
		{"gRPC", func(ctx context.Context, m graphModel, id string, rows [][]byte) ([]float32, error) {
			return m.overGRPC(ctx, grpc, id, rows)
		}},
		{"HTTP, JSON", func(ctx context.Context, m graphModel, id string, rows [][]byte) ([]float32, error) {
			return m.overHTTP(ctx, c.HTTP, id, rows, false)
		}},
		{"HTTP, binary", func(ctx context.Context, m graphModel, id string, rows [][]byte) ([]float32, error) {
			return m.overHTTP(ctx, c.HTTP, id, rows, true)
		}},
	}
	for _, m := range graphModels {
		t.Run(m.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(3, 4))
			var rows [][]byte
			for range 108 {
				row := make([]byte, m.rowBytes)
				m.fill(random, row)
				rows = append(rows, row)
			}
			want := m.direct(t, rows)
			for i := range rows {
				for j := range i {
					require.Greater(t, distance(want[i], want[j]), 1000*tolerance, "rows %d and %d can be told apart", i, j)
				}
			}
			before, err := c.Usage(t.Context())
			require.NoError(t, err)
			var wg sync.WaitGroup
			requests := 0
			for first, n := 0, 1; first < len(rows); first, n = first+n, n%3+1 {
				// One row, two and three, then the next protocol.
				by := protocols[requests/3%len(protocols)]
				requests++
				wg.Go(func() {
					last := min(first+n, len(rows))
					out, err := by.call(t.Context(), m, strconv.Itoa(first), rows[first:last])
					if !assert.NoError(t, err, by.name) || !assert.Len(t, out, m.outElements*(last-first), by.name) {
						return
					}
					for i := first; i < last; i++ {
						row := out[(i-first)*m.outElements : (i-first+1)*m.outElements]
						assert.LessOrEqual(t, distance(want[i], row), tolerance, "%s, row %d", by.name, i)
					}
				})
			}
			wg.Wait()
			// A server counts an execution after it has answered.
			var used rig.Usage
			require.EventuallyWithT(t, func(collect *assert.CollectT) {
				after, err := c.Usage(t.Context())
				require.NoError(collect, err)
				used = after.Since(before)
				assert.EqualValues(collect, len(rows), used[m.name].Rows)
			}, time.Minute, 20*time.Millisecond)
			require.Less(t, used[m.name].Executions, uint64(requests*2/3), "callers shared executions")
		})
	}
}

// overGRPC sends rows as raw bytes.
func (m graphModel) overGRPC(ctx context.Context, client tritonpb.GRPCInferenceServiceClient, id string, rows [][]byte) ([]float32, error) {
	r, err := client.ModelInfer(ctx, &tritonpb.ModelInferRequest{
		ModelName: m.name, Id: id,
		Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{
			{Name: m.input, Datatype: m.datatype, Shape: append([]int64{int64(len(rows))}, m.shape...)},
		},
		RawInputContents: [][]byte{bytes.Join(rows, nil)},
	})
	if err != nil {
		return nil, err
	}
	if r.Id != id || len(r.Outputs) != 1 || r.Outputs[0].Name != m.output || len(r.RawOutputContents) != 1 {
		return nil, fmt.Errorf("answer with id %q and outputs %v to request %s", r.Id, r.Outputs, id)
	}
	return floats(r.RawOutputContents[0]), nil
}

// overHTTP sends rows as JSON, or by Triton's binary tensor extension.
func (m graphModel) overHTTP(ctx context.Context, address, id string, rows [][]byte, binaryTensors bool) ([]float32, error) {
	raw := bytes.Join(rows, nil)
	input := map[string]any{"name": m.input, "datatype": m.datatype, "shape": append([]int64{int64(len(rows))}, m.shape...)}
	output := map[string]any{"name": m.output}
	if binaryTensors {
		input["parameters"] = map[string]any{"binary_data_size": len(raw)}
		output["parameters"] = map[string]any{"binary_data": true}
	} else {
		input["data"] = m.values(raw)
	}
	header, err := json.Marshal(map[string]any{"id": id, "inputs": []any{input}, "outputs": []any{output}})
	if err != nil {
		return nil, err
	}
	body := header
	if binaryTensors {
		body = append(body, raw...)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v2/models/"+m.name+"/infer", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if binaryTensors {
		request.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(header)))
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %s: %s (%w)", response.Status, answer, err)
	}
	return m.parse(answer, response.Header.Get("Inference-Header-Content-Length"), id)
}

// values is a tensor as JSON writes it.
func (m graphModel) values(raw []byte) any {
	if m.datatype != "INT64" {
		return floats(raw)
	}
	var tokens []uint64
	for i := 0; i < len(raw); i += 8 {
		tokens = append(tokens, binary.LittleEndian.Uint64(raw[i:]))
	}
	return tokens
}

// parse reads an answer over HTTP; header is the length of its JSON part, if there is another.
func (m graphModel) parse(answer []byte, header, id string) ([]float32, error) {
	text, tail := answer, []byte(nil)
	if header != "" {
		n, err := strconv.Atoi(header)
		if err != nil || n > len(answer) {
			return nil, fmt.Errorf("Inference-Header-Content-Length %q of %d bytes", header, len(answer))
		}
		text, tail = answer[:n], answer[n:]
	}
	var parsed struct {
		ID      string
		Outputs []struct {
			Name string
			Data []float32
		}
	}
	if err := json.Unmarshal(text, &parsed); err != nil {
		return nil, err
	}
	if parsed.ID != id || len(parsed.Outputs) != 1 || parsed.Outputs[0].Name != m.output {
		return nil, fmt.Errorf("answer %s to request %s", text, id)
	}
	if header != "" {
		return floats(tail), nil
	}
	return parsed.Outputs[0].Data, nil
}
