// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

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
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// drawnEnsembles are how many ensembles are drawn, and drawnRequests how many requests of each.
const drawnEnsembles, drawnRequests = 24, 20

// answerWithin is how long an answer may take. Triton 2.51 never answers some requests of ensembles.
const answerWithin = 5 * time.Second

// part is a model that drawn ensembles call: its inputs, of which the optional ones end in "?", its outputs, and what it does.
type part struct {
	name, datatype  string
	inputs, outputs []string
	execute         string
}

// parts are models of every kind that decides over what a step does. Each executes one request at a time, of which x(NAME) is an input and out(NAME, value) an
// output.
func parts() []part {
	return []part{
		{"same", "FP32", []string{"I"}, []string{"O"}, `out("O", x("I"))`},
		{"fails", "FP32", []string{"I"}, []string{"O"}, `if x("I").size and x("I").min() < 0: raise pb.TritonModelException("negative")
out("O", x("I"))`},
		{"sums", "FP32", []string{"A", "B"}, []string{"SUM", "DIFFERENCE"}, `n = min(x("A").shape[1], x("B").shape[1])
out("SUM", x("A")[:, :n] + x("B")[:, :n])
out("DIFFERENCE", x("A")[:, :n] - x("B")[:, :n])`},
		{"either", "FP32", []string{"I", "J?"}, []string{"O"}, `out("O", x("I") if x("J") is None else x("J"))`},
		{"silent", "FP32", []string{"I"}, []string{"O", "P"}, `out("O", x("I"))
if not x("I").size or x("I").max() < 3: out("P", x("I"))`},
		{"text", "STRING", []string{"I"}, []string{"O"}, `out("O", x("I"))`},
		{"joins", "STRING", []string{"A", "B"}, []string{"O"}, `out("O", np.concatenate([x("A"), x("B")], axis=1))`},
	}
}

const partModel = `import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [self.one(r) for r in requests]

    def one(self, request):
        made = []
        def x(name):
            tensor = pb.get_input_tensor_by_name(request, name)
            return None if tensor is None else tensor.as_numpy()
        def out(name, value):
            if name in request.requested_output_names():
                made.append(pb.Tensor(name, value))
        try:
            %s
        except pb.TritonModelException as e:
            return pb.InferenceResponse(error=pb.TritonError(str(e)))
        return pb.InferenceResponse(output_tensors=made)
`

// drawn is an ensemble that a seed drew: its inputs and outputs, all of one datatype.
type drawn struct {
	name, datatype  string
	inputs, outputs []string
}

// write writes a model.
func write(t *testing.T, repository, name, config, code string) {
	t.Helper()
	version := filepath.Join(repository, name, "1")
	require.NoError(t, os.MkdirAll(version, 0o755))                                                          //nolint:gosec // a server's
	require.NoError(t, os.WriteFile(filepath.Join(repository, name, "config.pbtxt"), []byte(config), 0o644)) //nolint:gosec // likewise
	if code != "" {
		require.NoError(t, os.WriteFile(filepath.Join(version, "model.py"), []byte(code), 0o644)) //nolint:gosec // likewise
	}
}

// ports are inputs or outputs of a model's file.
func ports(kind, datatype string, names ...string) string {
	var all strings.Builder
	for _, name := range names {
		plain, optional := strings.CutSuffix(name, "?")
		fmt.Fprintf(&all, "%s [{ name: %q data_type: TYPE_%s dims: [ -1 ]", kind, plain, datatype)
		if optional {
			all.WriteString(" optional: true")
		}
		all.WriteString(" }]\n")
	}
	return all.String()
}

func writeParts(t *testing.T, repository string) {
	t.Helper()
	for _, p := range parts() {
		config := fmt.Sprintf("name: %q\nbackend: \"python\"\nmax_batch_size: 8\n", p.name) + ports("input", p.datatype, p.inputs...) + ports("output", p.datatype, p.outputs...) + "instance_group [{ kind: KIND_CPU }]\n"
		write(t, repository, p.name, config, fmt.Sprintf(partModel, strings.ReplaceAll(p.execute, "\n", "\n            ")))
	}
}

// draw writes an ensemble of one to six steps. Its tensors are inputs or what earlier steps made; steps may be ensembles drawn before.
func draw(t *testing.T, random *rand.Rand, repository, name string, before []drawn) drawn {
	t.Helper()
	e := drawn{name: name, datatype: "FP32"}
	if random.IntN(4) == 0 {
		e.datatype = "STRING"
	}
	var usable []part
	for _, p := range parts() {
		if p.datatype == e.datatype {
			usable = append(usable, p)
		}
	}
	for _, b := range before {
		if b.datatype == e.datatype && random.IntN(4) == 0 {
			usable = append(usable, part{b.name, b.datatype, b.inputs, b.outputs, ""})
		}
	}
	var tensors, made []string
	taken := map[string]bool{}
	for i := range 1 + random.IntN(2) {
		e.inputs = append(e.inputs, fmt.Sprint("X", i))
	}
	tensors = slices.Clone(e.inputs)
	var steps []string
	for i := range 1 + random.IntN(6) {
		p := usable[random.IntN(len(usable))]
		step := fmt.Sprintf("{ model_name: %q model_version: -1", p.name)
		for _, in := range p.inputs {
			in, optional := strings.CutSuffix(in, "?")
			if optional && random.IntN(2) == 0 {
				continue
			}
			from := tensors[random.IntN(len(tensors))]
			if i == 0 && len(e.inputs) > 1 && in == "B" {
				from = e.inputs[1]
			} else if random.IntN(2) == 0 {
				from = tensors[len(tensors)-1]
			}
			taken[from] = true
			step += fmt.Sprintf(" input_map { key: %q value: %q }", in, from)
		}
		some := false
		for k, out := range p.outputs {
			if k+1 < len(p.outputs) || some {
				if random.IntN(4) == 0 {
					continue
				}
			}
			some = true
			tensor := fmt.Sprintf("t%d%s", i, out)
			step += fmt.Sprintf(" output_map { key: %q value: %q }", out, tensor)
			tensors, made = append(tensors, tensor), append(made, tensor)
		}
		steps = append(steps, step+" }")
	}
	e.inputs = slices.DeleteFunc(e.inputs, func(name string) bool { return !taken[name] })
	for _, tensor := range made {
		if !taken[tensor] || random.IntN(5) == 0 {
			e.outputs = append(e.outputs, tensor)
		}
	}
	config := fmt.Sprintf("name: %q\nplatform: \"ensemble\"\nmax_batch_size: 8\n", e.name) + ports("input", e.datatype, e.inputs...) + ports("output", e.datatype, e.outputs...) +
		"ensemble_scheduling { step [ " + strings.Join(steps, ",\n  ") + " ] }\n"
	write(t, repository, e.name, config, "")
	return e
}

// drawRequest is a request of an ensemble, most of the time one that it can answer.
func drawRequest(random *rand.Rand, e drawn) *pb.ModelInferRequest {
	chance := func(n int) bool { return random.IntN(n) == 0 }
	r := &pb.ModelInferRequest{ModelName: e.name}
	if chance(2) {
		r.Id = fmt.Sprint("id ", random.IntN(100))
	}
	rows, columns := 1+random.IntN(3), random.IntN(4)
	if chance(20) {
		rows = 9
	}
	datatype := e.datatype
	if datatype == "STRING" {
		datatype = "BYTES"
	}
	for _, name := range e.inputs {
		if chance(25) {
			continue
		}
		in := &pb.ModelInferRequest_InferInputTensor{Name: name, Datatype: datatype, Shape: []int64{int64(rows), int64(columns)}}
		if chance(25) {
			in.Shape = []int64{int64(rows * columns)}
		}
		if chance(30) {
			in.Datatype = "INT64"
		}
		if chance(30) {
			in.Shape[0]++
		}
		var data []byte
		for range rows * columns {
			if datatype == "BYTES" {
				text := strings.Repeat("é", random.IntN(3))
				data = append(binary.LittleEndian.AppendUint32(data, uint32(len(text))), text...) //nolint:gosec // small
			} else {
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(random.IntN(9)-1)))
			}
		}
		r.Inputs, r.RawInputContents = append(r.Inputs, in), append(r.RawInputContents, data)
	}
	if chance(2) {
		for _, name := range e.outputs {
			if chance(2) {
				r.Outputs = append(r.Outputs, &pb.ModelInferRequest_InferRequestedOutputTensor{Name: name})
			}
		}
		if chance(20) {
			r.Outputs = append(r.Outputs, &pb.ModelInferRequest_InferRequestedOutputTensor{Name: "none"})
		}
		if len(r.Outputs) > 0 && chance(10) {
			r.Outputs = append(r.Outputs, r.Outputs[0])
		}
	}
	if chance(5) {
		r.Parameters = map[string]*pb.InferParameter{
			"priority": {ParameterChoice: &pb.InferParameter_Uint64Param{Uint64Param: 1}}, "timeout": {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: 60_000_000}},
			"other": {ParameterChoice: &pb.InferParameter_StringParam{StringParam: "x"}},
		}
	}
	return r
}

// overGRPC is what a server answers, as text in which the outputs are in the order of their names.
func overGRPC(ctx context.Context, c *triton.Client, r *pb.ModelInferRequest) string {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	response, err := c.Stub.ModelInfer(ctx, r)
	if err != nil {
		return fmt.Sprint(status.Code(err), ": ", status.Convert(err).Message())
	}
	var lines []string
	for i, o := range response.Outputs {
		lines = append(lines, fmt.Sprintf("%s %s %v %x", o.Name, o.Datatype, o.Shape, response.RawOutputContents[i]))
	}
	slices.Sort(lines)
	response.Outputs, response.RawOutputContents = nil, nil
	text, _ := prototext.MarshalOptions{Multiline: false}.Marshal(response)
	return strings.ReplaceAll(string(text), "  ", " ") + "\n" + strings.Join(lines, "\n")
}

// overHTTP is what a server answers to the same request as JSON, or with binary tensors, likewise.
func overHTTP(ctx context.Context, t *testing.T, address string, r *pb.ModelInferRequest, inBinary bool) string {
	t.Helper()
	document := map[string]any{}
	if r.Id != "" {
		document["id"] = r.Id
	}
	var inputs, outputs []any
	var tail []byte
	for i, in := range r.Inputs {
		one := map[string]any{"name": in.Name, "datatype": in.Datatype, "shape": in.Shape}
		raw := r.RawInputContents[i]
		switch {
		case inBinary:
			one["parameters"] = map[string]any{"binary_data_size": len(raw)}
			tail = append(tail, raw...)
		case in.Datatype == "BYTES":
			data := []string{}
			for len(raw) >= 4 {
				n := binary.LittleEndian.Uint32(raw)
				data, raw = append(data, string(raw[4:4+n])), raw[4+n:]
			}
			one["data"] = data
		default:
			data := []float32{}
			for ; len(raw) >= 4; raw = raw[4:] {
				data = append(data, math.Float32frombits(binary.LittleEndian.Uint32(raw)))
			}
			one["data"] = data
		}
		inputs = append(inputs, one)
	}
	for _, o := range r.Outputs {
		outputs = append(outputs, map[string]any{"name": o.Name, "parameters": map[string]any{"binary_data": inBinary}})
	}
	document["inputs"] = inputs
	if inputs == nil {
		document["inputs"] = []any{}
	}
	if outputs != nil {
		document["outputs"] = outputs
	} else if inBinary {
		document["parameters"] = map[string]any{"binary_data_output": true}
	}
	body, err := json.Marshal(document)
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v2/models/"+r.ModelName+"/infer", bytes.NewReader(append(body, tail...)))
	require.NoError(t, err)
	if inBinary {
		request.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(body)))
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close() //nolint:errcheck // read
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	head := answer
	if n, err := strconv.Atoi(response.Header.Get("Inference-Header-Content-Length")); err == nil {
		head, answer = answer[:n], answer[n:]
	} else {
		answer = nil
	}
	var fields map[string]any
	if err := json.Unmarshal(head, &fields); err != nil {
		return fmt.Sprintf("%d %s %s", response.StatusCode, response.Header.Get("Content-Type"), head)
	}
	var lines []string
	all, _ := fields["outputs"].([]any)
	for _, o := range all {
		one := o.(map[string]any)
		if p, ok := one["parameters"].(map[string]any); ok {
			n := int(p["binary_data_size"].(float64))
			one["binary"], answer = fmt.Sprintf("%x", answer[:n]), answer[n:]
		}
		line, _ := json.Marshal(one)
		lines = append(lines, string(line))
	}
	slices.Sort(lines)
	delete(fields, "outputs")
	rest, _ := json.Marshal(fields)
	return fmt.Sprintf("%d %s %s\n%s", response.StatusCode, response.Header.Get("Content-Type"), rest, strings.Join(lines, "\n"))
}

// linesOf are the lines of a text that another has not.
func linesOf(text, other string) string {
	has := strings.Split(other, "\n")
	return strings.Join(slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return slices.Contains(has, line) }), "\n")
}

// counted is what a server's statistics say of a model, without times.
func counted(t *testing.T, c *triton.Client, model string) string {
	t.Helper()
	statistics, err := c.Statistics(t.Context(), model, "")
	require.NoError(t, err)
	s := statistics[0]
	return fmt.Sprintf("%d inferences, %d executions, %d good, %d failed", s.InferenceCount, s.ExecutionCount, s.InferenceStats.Success.Count, s.InferenceStats.Fail.Count)
}

// TestDrawnEnsemblesAnswerAsTriton: ensembles that a seed drew, and requests of each that it drew too, get the same answers from Conch, which executes their steps,
// as from a real server, over both protocols. Statistics that differ are logged only: Triton counts some failed requests of ensembles twice.
func TestDrawnEnsemblesAnswerAsTriton(t *testing.T) {
	path := tritonserver(t)
	text := os.Getenv("CONCH_DRAWN_SEED")
	if text == "" {
		t.Skip("Triton 2.51 itself hangs or ends on some ensembles: `make drawn SEED=1` runs it")
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // what is drawn
	repository := t.TempDir()
	writeParts(t, repository)
	var ensembles []drawn
	for i := range drawnEnsembles {
		ensembles = append(ensembles, draw(t, random, repository, fmt.Sprintf("drawn%02d", i), ensembles))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	bare := serve(t, path, repository)
	own, err := triton.Dial(bare.GRPC)
	require.NoError(t, err)
	defer func() { require.NoError(t, own.Close()) }()
	var served []drawn
	var names []string
	for _, p := range parts() {
		require.NoError(t, own.Load(ctx, p.name))
		names = append(names, p.name)
	}
	for _, e := range ensembles {
		if err := own.Load(ctx, e.name); err != nil {
			t.Logf("Triton does not load %s: %v", e.name, err)
			require.NoError(t, os.RemoveAll(filepath.Join(repository, e.name)))
			continue
		}
		served, names = append(served, e), append(names, e.name)
	}
	front := front(t, rig.ConchOptions{Server: path, Repository: repository, GPUs: 1, Await: names})
	conch, err := triton.Dial(front.GRPC)
	require.NoError(t, err)
	defer func() { require.NoError(t, conch.Close()) }()
	different := 0
	for _, e := range served {
		config, err := os.ReadFile(filepath.Join(repository, e.name, "config.pbtxt")) //nolint:gosec // the test's own
		require.NoError(t, err)
		for range drawnRequests {
			r := drawRequest(random, e)
			differs := func(how, want, got string) {
				// Of several steps that fail, whichever is the first decides.
				failed := "in ensemble '" + e.name + "'"
				if want == got || strings.Contains(want, failed) && strings.Contains(got, failed) {
					return
				}
				if different++; different < 20 {
					t.Errorf("%s differs:\nTriton: %s\nConch:  %s\nrequest: %s\n%s", how, linesOf(want, got), linesOf(got, want), prototext.Format(r), config)
				}
			}
			want, got := overGRPC(ctx, own, r), overGRPC(ctx, conch, r)
			if strings.HasPrefix(want, "DeadlineExceeded") {
				t.Logf("Triton does not answer; Conch: %s\nrequest: %s\n%s", got, prototext.Format(r), config)
				continue
			}
			differs("gRPC", want, got)
			differs("HTTP", overHTTP(ctx, t, bare.HTTP, r, false), overHTTP(ctx, t, front.HTTP, r, false))
			differs("HTTP with binary tensors", overHTTP(ctx, t, bare.HTTP, r, true), overHTTP(ctx, t, front.HTTP, r, true))
		}
	}
	for _, name := range names {
		if want, got := counted(t, own, name), counted(t, conch, name); want != got {
			t.Logf("statistics of %s differ:\nTriton: %s\nConch:  %s", name, want, got)
		}
	}
	require.Zero(t, different)
}
