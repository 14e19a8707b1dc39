// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	goflag "flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/pymodels"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

var (
	mixSeed     = goflag.Uint64("mix.seed", 1, "seed of TestMix; its log and name say which it was")
	mixRequests = goflag.Int("mix.requests", 20_000, "requests of TestMix, at a time")
)

// mixRepository has models whose answers Go can compute, and two that only a server can.
func mixRepository(t *testing.T) string {
	t.Helper()
	dir := conformanceModels(t, "identity", "add_sub", "string")
	for _, name := range []string{"cnn", "encoder"} {
		copyFile(t, filepath.Join("models", name, "config.pbtxt"), filepath.Join(dir, name, "config.pbtxt"))
		copyFile(t, graph(t, name), filepath.Join(dir, name, "1", "model.onnx"))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, "1", "model.py"), pymodels.ONNX, 0o644))
	}
	return dir
}

// directly is a client of a partition's own tritonserver, around conch.
func directly(t *testing.T, c *rig.Conch) tritonpb.GRPCInferenceServiceClient {
	t.Helper()
	all := partitions(t, admin(t, c))
	require.NotEmpty(t, all)
	conn, err := grpc.NewClient(all[0].GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return tritonpb.NewGRPCInferenceServiceClient(conn)
}

// mixed is one request of the mix and what the model alone answers to it.
type mixed struct {
	request   *tritonpb.ModelInferRequest
	want      map[string][]byte // outputs by name, as bytes
	shape     []int64           // of every output
	tolerance float64           // of FP32 outputs; zero compares bytes
	bad       string            // key of mix.refusals: the server refuses it
	protocol  int
	patience  time.Duration // after which the caller goes; zero is never
	cancel    bool          // it goes by cancelling, else by its deadline
}

const (
	byGRPC = iota
	byTypedGRPC
	byJSON
	byBinary
	protocols
)

// mix makes requests and knows the answers.
type mix struct {
	seed     uint64
	rows     map[string][][]byte // input rows of the graphs
	answers  map[string][][]byte // and the server's own answers to each row alone
	refusals map[string]error    // the server's own words for each bad request
}

// draw makes request number i: the same for the same seed, whatever ran before.
func (m *mix) draw(i int) *mixed {
	g := rand.New(rand.NewPCG(m.seed, uint64(i)))
	q := &mixed{request: &tritonpb.ModelInferRequest{}, protocol: g.IntN(protocols)}
	if g.IntN(4) > 0 {
		q.request.Id = fmt.Sprintf("r%d", i)
	}
	rows := 1 + g.IntN(3)
	switch kind := g.IntN(100); {
	case kind < 45:
		m.identity(g, q, rows)
	case kind < 65:
		m.addSub(g, q, rows)
	case kind < 85:
		m.text(g, q, rows)
	case kind < 87:
		m.graph(g, q, graphModels[0], 1)
	case kind < 90:
		m.graph(g, q, graphModels[1], 1+g.IntN(2))
	default:
		m.spoil(g, q)
	}
	parameters := map[string]*tritonpb.InferParameter{}
	switch g.IntN(12) {
	case 0:
		parameters["temperature"] = &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_StringParam{StringParam: strconv.Itoa(g.IntN(2))}}
	case 1:
		parameters["timeout"] = &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 1 + g.Int64N(50_000)}}
	}
	if q.bad == "" {
		q.request.Parameters = parameters
		if g.IntN(12) == 0 {
			q.patience, q.cancel = time.Duration(g.IntN(20_000))*time.Microsecond, g.IntN(2) == 0
		}
	}
	return q
}

func (m *mix) identity(g *rand.Rand, q *mixed, rows int) {
	width := 1 + g.IntN(2)
	raw := make([]byte, 4*rows*width)
	for i := range rows * width {
		// Numbers that JSON and FP32 both hold exactly.
		binary.LittleEndian.PutUint32(raw[4*i:], uint32(0x3f000000+g.IntN(1<<23)))
	}
	q.fill("identity", []int64{int64(rows), int64(width)}, map[string][]byte{"OUTPUT0": raw}, tensorOf{"INPUT0", "FP32", raw})
}

func (m *mix) addSub(g *rand.Rand, q *mixed, rows int) {
	n := 16 * rows
	a, b, sum, difference := make([]byte, 4*n), make([]byte, 4*n), make([]byte, 4*n), make([]byte, 4*n)
	le := binary.LittleEndian
	for i := 0; i < 4*n; i += 4 {
		x, y := g.Uint32(), g.Uint32()
		le.PutUint32(a[i:], x)
		le.PutUint32(b[i:], y)
		le.PutUint32(sum[i:], x+y)
		le.PutUint32(difference[i:], x-y)
	}
	inputs := []tensorOf{{"INPUT0", "INT32", a}, {"INPUT1", "INT32", b}}
	if g.IntN(2) == 0 {
		inputs[0], inputs[1] = inputs[1], inputs[0]
	}
	want := map[string][]byte{"OUTPUT0": sum, "OUTPUT1": difference}
	for _, drop := range [][]string{nil, nil, {"OUTPUT0"}, {"OUTPUT1"}}[g.IntN(4)] {
		delete(want, drop)
	}
	q.fill("add_sub", []int64{int64(rows), 16}, want, inputs...)
	if len(want) == 1 || g.IntN(2) == 0 {
		for name := range want {
			q.request.Outputs = append(q.request.Outputs, &tritonpb.ModelInferRequest_InferRequestedOutputTensor{Name: name})
		}
	}
}

func (m *mix) text(g *rand.Rand, q *mixed, rows int) {
	width := 1 + g.IntN(2)
	var raw, upper []byte
	for range rows * width {
		word := make([]byte, g.IntN(12))
		for i := range word {
			word[i] = "abcXYZ 019,\"\\"[g.IntN(13)]
		}
		raw = append(binary.LittleEndian.AppendUint32(raw, uint32(len(word))), word...)
		upper = append(binary.LittleEndian.AppendUint32(upper, uint32(len(word))), bytes.ToUpper(word)...)
	}
	q.fill("string", []int64{int64(rows), int64(width)}, map[string][]byte{"OUTPUT0": upper}, tensorOf{"INPUT0", "BYTES", raw})
}

func (m *mix) graph(g *rand.Rand, q *mixed, of graphModel, rows int) {
	var in, out []byte
	for range rows {
		k := g.IntN(len(m.rows[of.name]))
		in, out = append(in, m.rows[of.name][k]...), append(out, m.answers[of.name][k]...)
	}
	q.fill(of.name, append([]int64{int64(rows)}, of.shape...), map[string][]byte{of.output: out}, tensorOf{of.input, of.datatype, in})
	q.shape = nil // the graph's own
	q.tolerance = tolerance
	if q.protocol == byJSON {
		q.protocol = byBinary // a picture as text says nothing new
	}
}

type tensorOf struct {
	name, datatype string
	raw            []byte
}

func (q *mixed) fill(model string, shape []int64, want map[string][]byte, inputs ...tensorOf) {
	q.request.ModelName, q.want, q.shape = model, want, shape
	for _, in := range inputs {
		q.request.Inputs = append(q.request.Inputs, rawInput(in.name, in.datatype, shape...))
		q.request.RawInputContents = append(q.request.RawInputContents, in.raw)
	}
}

// spoiled are requests that the server refuses, each for a reason of its own.
func spoiled() map[string]func(*tritonpb.ModelInferRequest) {
	return map[string]func(*tritonpb.ModelInferRequest){
		"datatype": func(r *tritonpb.ModelInferRequest) { r.Inputs[0].Datatype = "FP32" },
		"name":     func(r *tritonpb.ModelInferRequest) { r.Inputs[0].Name = "NOBODY" },
		"rows": func(r *tritonpb.ModelInferRequest) {
			r.Inputs[0].Shape = []int64{9, 16}
			r.Inputs[1].Shape = []int64{9, 16}
		},
		"uneven rows": func(r *tritonpb.ModelInferRequest) {
			r.Inputs[0].Shape = []int64{2, 16}
			r.RawInputContents[0] = make([]byte, 128)
		},
		"shape": func(r *tritonpb.ModelInferRequest) { r.Inputs[0].Shape = []int64{1, 15} },
		"short": func(r *tritonpb.ModelInferRequest) { r.RawInputContents[0] = r.RawInputContents[0][4:] },
		"long":  func(r *tritonpb.ModelInferRequest) { r.RawInputContents[1] = make([]byte, 100) },
		"output": func(r *tritonpb.ModelInferRequest) {
			r.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "NOBODY"}}
		},
		"version":       func(r *tritonpb.ModelInferRequest) { r.ModelVersion = "7" },
		"version, text": func(r *tritonpb.ModelInferRequest) { r.ModelVersion = "seven" },
		"missing input": func(r *tritonpb.ModelInferRequest) {
			r.Inputs, r.RawInputContents = r.Inputs[:1], r.RawInputContents[:1]
		},
		"missing data":   func(r *tritonpb.ModelInferRequest) { r.RawInputContents = r.RawInputContents[:1] },
		"no rows":        func(r *tritonpb.ModelInferRequest) { r.Inputs[0].Shape[0] = 0; r.RawInputContents[0] = nil },
		"negative shape": func(r *tritonpb.ModelInferRequest) { r.Inputs[0].Shape = []int64{-1, 16} },
		"input twice":    func(r *tritonpb.ModelInferRequest) { r.Inputs[1].Name = "INPUT0" },
	}
}

func spoil(kind string) *tritonpb.ModelInferRequest {
	r := &tritonpb.ModelInferRequest{ModelName: "add_sub", Id: "bad",
		Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{rawInput("INPUT0", "INT32", 1, 16), rawInput("INPUT1", "INT32", 1, 16)},
		RawInputContents: [][]byte{make([]byte, 64), make([]byte, 64)}}
	spoiled()[kind](r)
	return r
}

func (m *mix) spoil(g *rand.Rand, q *mixed) {
	kinds := slices.Sorted(maps.Keys(m.refusals)) // a map has no order, and a seed wants one
	q.bad = kinds[g.IntN(len(kinds))]
	q.request = spoil(q.bad)
	q.protocol = byGRPC
}

// judge is nil if the answer is what the model alone would have given, or the caller had gone.
func (m *mix) judge(q *mixed, out map[string][]byte, err error) error {
	if q.bad != "" {
		want := m.refusals[q.bad]
		if status.Code(err) != status.Code(want) || status.Convert(err).Message() != status.Convert(want).Message() {
			return fmt.Errorf("%s: %w in place of %w", q.bad, err, want)
		}
		return nil
	}
	if err != nil {
		gone := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
			status.Code(err) == codes.Canceled || status.Code(err) == codes.DeadlineExceeded
		if q.patience > 0 && gone {
			return nil
		}
		return err
	}
	if len(out) != len(q.want) {
		return fmt.Errorf("%d outputs, want %d", len(out), len(q.want))
	}
	for name, want := range q.want {
		if q.tolerance > 0 {
			if d := distance(floats(want), floats(out[name])); d > q.tolerance {
				return fmt.Errorf("output %s is off by %g", name, d)
			}
		} else if !bytes.Equal(want, out[name]) {
			return fmt.Errorf("output %s is %x, want %x", name, out[name], want)
		}
	}
	return nil
}

// prepare asks a server, around conch, what only it can know.
func (m *mix) prepare(t *testing.T, direct tritonpb.GRPCInferenceServiceClient) {
	t.Helper()
	m.rows, m.answers, m.refusals = map[string][][]byte{}, map[string][][]byte{}, map[string]error{}
	g := rand.New(rand.NewPCG(m.seed, 0))
	for _, of := range graphModels {
		for range 24 {
			row := make([]byte, of.rowBytes)
			of.fill(g, row)
			r, err := direct.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{
				ModelName: of.name, RawInputContents: [][]byte{row},
				Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{rawInput(of.input, of.datatype, append([]int64{1}, of.shape...)...)},
			})
			require.NoError(t, err)
			m.rows[of.name], m.answers[of.name] = append(m.rows[of.name], row), append(m.answers[of.name], r.RawOutputContents[0])
		}
	}
	for kind := range spoiled() {
		_, err := direct.ModelInfer(t.Context(), spoil(kind))
		require.Error(t, err, kind)
		m.refusals[kind] = err
	}
}

// Twenty thousand requests of all kinds, good and bad, patient and not, over both protocols, share executions on three servers: half of them
// under Conch's own discipline, where it is the machine's doing how often they meet, half under one that waits for company. Every caller gets
// what the model alone would have answered: computed here where Go can, asked of a server directly where it cannot.
func TestMix(t *testing.T) {
	t.Parallel()
	t.Run(fmt.Sprintf("seed=%d", *mixSeed), func(t *testing.T) {
		c := serve(t, rig.ConchOptions{Repository: mixRepository(t), GPUs: 3})
		m := &mix{seed: *mixSeed}
		m.prepare(t, directly(t, c))
		client := triton(t, c)
		half := *mixRequests / 2
		m.send(t, c, client, 0, half)

		patiently(t, c)
		companions := []string{"identity", "add_sub", "string"}
		shared := map[string]uint64{}
		for _, name := range companions {
			shared[name] = sharedExecutions(t, client, name)
		}
		m.send(t, c, client, half, half)
		for _, name := range companions {
			// A request has three rows at the most: four are those of two callers.
			require.GreaterOrEqual(t, sharedExecutions(t, client, name)-shared[name], uint64(half/100), "executions of %s that callers share, without which the test says nothing", name)
		}
		metrics := scrape(t, c)
		require.Positive(t, metrics.sum("conch_requests_total", "result=cancelled"))
		require.Zero(t, metrics.sum("conch_requests_total", "result=dropped"))
		requireAlive(t, c)
	})
}

// patiently makes conch wait with every batch until it is full or its oldest request has waited for a while.
func patiently(t *testing.T, c *rig.Conch) {
	t.Helper()
	reconfigure(t, c, func(settings map[string]any) {
		settings["defaults"] = map[string]any{"discipline": "timeout", "parameters": map[string]any{"max_queue_delay": "30ms"}}
	})
	require.Eventually(t, func() bool {
		m, err := admin(t, c).Model(t.Context(), "identity")
		return err == nil && m.Discipline == "timeout"
	}, 30*time.Second, 20*time.Millisecond)
}

// send makes n requests of the mix, from one on, 160 at a time, and requires that each is answered rightly.
func (m *mix) send(t *testing.T, c *rig.Conch, client tritonpb.GRPCInferenceServiceClient, from, n int) {
	t.Helper()
	const callers = 160
	before, err := c.Usage(t.Context())
	require.NoError(t, err)
	began := time.Now()
	var next, wrong, gone atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || wrong.Load() > 20 {
					return
				}
				q := m.draw(from + i)
				out, err := q.send(t.Context(), client, c.HTTP)
				if err != nil && q.bad == "" {
					gone.Add(1)
				}
				if err := m.judge(q, out, err); err != nil {
					wrong.Add(1)
					t.Errorf("seed %d, request %d (%s, protocol %d): %v", m.seed, from+i, q.request.ModelName, q.protocol, err)
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	after, err := c.Usage(t.Context())
	require.NoError(t, err)
	used := after.Since(before)
	t.Logf("seed %d: %d requests in %v, %d callers went away; mean batch %.1f rows: %v", m.seed, n, took.Round(time.Millisecond), gone.Load(), used.MeanBatch(), used)
	require.Zero(t, wrong.Load())
}

// requireAlive is: conch and its servers have not been harmed.
func requireAlive(t *testing.T, c *rig.Conch) {
	t.Helper()
	for _, p := range partitions(t, admin(t, c)) {
		require.True(t, p.Up, p.Reason)
	}
}
