// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// tolerance is what the order of additions may make of FP32: ONNX Runtime itself differs by 2e-7 between a batch and single rows.
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

func requireClose(t *testing.T, want, got []float32, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i := range want {
		require.InDelta(t, want[i], got[i], tolerance, "%s, element %d", what, i)
	}
}

// Callers of one to three rows each meet in batches, over both protocols; each gets what ONNX Runtime computes for its rows.
func TestGraphsAnswerLikeONNXRuntime(t *testing.T) {
	c := start(t, 2, nil, "cnn", "encoder")
	client := triton(t, c)
	before, err := c.Usage(t.Context())
	require.NoError(t, err)
	for _, m := range graphModels {
		t.Run(m.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(3, 4))
			var rows [][]byte
			for range 60 {
				row := make([]byte, m.rowBytes)
				m.fill(random, row)
				rows = append(rows, row)
			}
			want := m.direct(t, rows)

			var wg sync.WaitGroup
			errs := make(chan error, len(rows))
			answers := make([][]float32, len(rows))
			for first, n := 0, 1; first < len(rows); first, n = first+n, n%3+1 {
				mine := rows[first:min(first+n, len(rows))]
				wg.Go(func() {
					raw := bytes.Join(mine, nil)
					r, err := client.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{
						ModelName: m.name,
						Id:        strconv.Itoa(first),
						Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{
							{Name: m.input, Datatype: m.datatype, Shape: append([]int64{int64(len(mine))}, m.shape...)},
						},
						RawInputContents: [][]byte{raw},
					})
					switch {
					case err != nil:
						errs <- err
					case r.Id != strconv.Itoa(first) || len(r.RawOutputContents) != 1 || len(r.RawOutputContents[0]) != 4*m.outElements*len(mine):
						errs <- fmt.Errorf("answer with id %q and outputs %v to request %d of %d rows", r.Id, r.Outputs, first, len(mine))
					default:
						out := floats(r.RawOutputContents[0])
						for i := range mine {
							answers[first+i] = out[i*m.outElements : (i+1)*m.outElements]
						}
					}
				})
			}
			wg.Wait()
			close(errs)
			for err := range errs {
				require.NoError(t, err)
			}
			for i := range rows {
				requireClose(t, want[i], answers[i], fmt.Sprintf("gRPC, row %d", i))
			}
			requireClose(t, want[0], m.overHTTP(t, c, rows[0]), "HTTP with JSON tensors")
		})
	}
	after, err := c.Usage(t.Context())
	require.NoError(t, err)
	require.Greater(t, after.Since(before).MeanBatch(), 2.0, "callers shared executions")
}

// overHTTP sends one row as JSON.
func (m graphModel) overHTTP(t *testing.T, c *rig.Conch, row []byte) []float32 {
	t.Helper()
	var data any = floats(row)
	if m.datatype == "INT64" {
		var tokens []uint64
		for i := 0; i < len(row); i += 8 {
			tokens = append(tokens, binary.LittleEndian.Uint64(row[i:]))
		}
		data = tokens
	}
	body, err := json.Marshal(map[string]any{"inputs": []map[string]any{
		{"name": m.input, "datatype": m.datatype, "shape": append([]int64{1}, m.shape...), "data": data},
	}})
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.HTTP+"/v2/models/"+m.name+"/infer", bytes.NewReader(body))
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, strings.TrimSpace(string(answer)))
	var parsed struct {
		Outputs []struct {
			Name string
			Data []float32
		}
	}
	require.NoError(t, json.Unmarshal(answer, &parsed))
	require.Len(t, parsed.Outputs, 1)
	require.Equal(t, m.output, parsed.Outputs[0].Name)
	return parsed.Outputs[0].Data
}
