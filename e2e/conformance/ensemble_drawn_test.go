// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton"
)

// drawnEnsembles are how many ensembles are drawn, and drawnRequests how many requests of each.
const drawnEnsembles, drawnRequests = 24, 20

// kind is what all tensors of an ensemble have in common: their datatype, and whether its models have a batch dimension.
type kind struct {
	datatype string
	batched  bool
}

// drawKinds are three, of which the first is the most usual.
func drawKinds(random *rand.Rand) []kind {
	others := []kind{{"STRING", true}, {"INT64", true}, {"UINT8", true}, {"FP64", true}, {"BOOL", true}, {"FP32", false}, {"INT16", false}} // Triton 2.51 ends of strings without one
	all := []kind{{"FP32", true}}
	for _, i := range random.Perm(len(others))[:2] {
		all = append(all, others[i])
	}
	return all
}

// suffix of the names of a kind's models.
func (k kind) suffix() string {
	if k.batched {
		return "_" + strings.ToLower(k.datatype)
	}
	return "_" + strings.ToLower(k.datatype) + "_whole"
}

// batch is the line of a model's file.
func (k kind) batch() string {
	if k.batched {
		return "max_batch_size: 8\n"
	}
	return "max_batch_size: 0\n"
}

// wire is the datatype as requests have it.
func (k kind) wire() string {
	if k.datatype == "STRING" {
		return "BYTES"
	}
	return k.datatype
}

// part is a model that drawn ensembles call: its inputs, of which the optional ones end in "?", its outputs, and what each of its versions does.
type part struct {
	kind
	name            string
	inputs, outputs []string
	// square: its tensors have four elements, which it sees as two by two.
	square   bool
	versions []string
}

// parts are models of every sort that decides over what a step does. Each executes one request at a time, of which x(NAME) is an input and out(NAME, value) an
// output.
func parts(k kind) []part {
	all := []part{
		{name: "same", inputs: []string{"I"}, outputs: []string{"O"}, versions: []string{`out("O", x("I"))`, `out("O", x("I")[..., ::-1].copy())`}},
		{name: "either", inputs: []string{"I", "J?"}, outputs: []string{"O"}, versions: []string{`out("O", x("I") if x("J") is None else x("J"))`}},
		{name: "joins", inputs: []string{"A", "B"}, outputs: []string{"O"}, versions: []string{`out("O", np.concatenate([x("A"), x("B")], axis=-1))`}},
		{name: "square", inputs: []string{"I"}, outputs: []string{"O"}, square: true, versions: []string{`out("O", np.swapaxes(x("I"), -1, -2).copy())`}},
	}
	if k.datatype != "STRING" {
		all = append(all,
			part{name: "fails", inputs: []string{"I"}, outputs: []string{"O"}, versions: []string{`if x("I").size and x("I").max() > 6: raise pb.TritonModelException("too many")
out("O", x("I"))`}},
			part{name: "silent", inputs: []string{"I"}, outputs: []string{"O", "P"}, versions: []string{`out("O", x("I"))
if not x("I").size or x("I").max() < 3: out("P", x("I"))`}})
	}
	if k.datatype != "STRING" && k.datatype != "BOOL" {
		all = append(all, part{name: "sums", inputs: []string{"A", "B"}, outputs: []string{"SUM", "DIFFERENCE"}, versions: []string{`n = min(x("A").shape[-1], x("B").shape[-1])
out("SUM", x("A")[..., :n] + x("B")[..., :n])
out("DIFFERENCE", x("A")[..., :n] - x("B")[..., :n])`}})
	}
	for i := range all {
		all[i].kind, all[i].name = k, all[i].name+k.suffix()
	}
	return all
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

// drawn is an ensemble that a seed drew: its inputs and outputs, all of one kind.
type drawn struct {
	kind
	name            string
	inputs, outputs []string
}

// write writes a model.
func write(t *testing.T, repository, name, config string, versions ...string) {
	t.Helper()
	for i, code := range versions {
		version := filepath.Join(repository, name, strconv.Itoa(i+1))
		require.NoError(t, os.MkdirAll(version, 0o755)) //nolint:gosec // a server's
		if code != "" {
			require.NoError(t, os.WriteFile(filepath.Join(version, "model.py"), []byte(code), 0o644)) //nolint:gosec // likewise
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(repository, name, "config.pbtxt"), []byte(config), 0o644)) //nolint:gosec // likewise
}

// ports are inputs or outputs of a model's file, of the dimensions that are given.
func ports(way, datatype, dims string, names ...string) string {
	var all strings.Builder
	for _, name := range names {
		plain, optional := strings.CutSuffix(name, "?")
		fmt.Fprintf(&all, "%s [{ name: %q data_type: TYPE_%s %s", way, plain, datatype, dims)
		if optional {
			all.WriteString(" optional: true")
		}
		all.WriteString(" }]\n")
	}
	return all.String()
}

const anyDims, squareDims = "dims: [ -1 ]", "dims: [ 4 ] reshape: { shape: [ 2, 2 ] }"

func (p part) write(t *testing.T, repository string) {
	t.Helper()
	dims := anyDims
	if p.square {
		dims = squareDims
	}
	config := fmt.Sprintf("name: %q\nbackend: \"python\"\n", p.name) + p.batch() + ports("input", p.datatype, dims, p.inputs...) + ports("output", p.datatype, dims, p.outputs...) +
		"version_policy: { all: {} }\ninstance_group [{ kind: KIND_CPU }]\n"
	var code []string
	for _, v := range p.versions {
		code = append(code, fmt.Sprintf(partModel, strings.ReplaceAll(v, "\n", "\n            ")))
	}
	write(t, repository, p.name, config, code...)
}

// draw writes an ensemble of one to six steps. Its tensors are inputs or what earlier steps made; steps may be ensembles drawn before.
func draw(t *testing.T, random *rand.Rand, repository, name string, kinds []kind, before []drawn) drawn {
	t.Helper()
	e := drawn{name: name, kind: kinds[random.IntN(len(kinds))]}
	usable := parts(e.kind)
	for _, b := range before {
		if b.kind == e.kind && random.IntN(4) == 0 {
			usable = append(usable, part{kind: b.kind, name: b.name, inputs: b.inputs, outputs: b.outputs, versions: []string{""}})
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
		version := -1
		if random.IntN(2) == 0 {
			version = 1 + random.IntN(len(p.versions))
		}
		step := fmt.Sprintf("{ model_name: %q model_version: %d", p.name, version)
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
	config := fmt.Sprintf("name: %q\nplatform: \"ensemble\"\n", e.name) + e.batch() + ports("input", e.datatype, anyDims, e.inputs...) + ports("output", e.datatype, anyDims, e.outputs...) +
		"ensemble_scheduling { step [ " + strings.Join(steps, ",\n  ") + " ] }\n"
	write(t, repository, e.name, config, "")
	return e
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
	kinds := drawKinds(random)
	t.Logf("kinds: %v", kinds)
	var called []part
	for _, k := range kinds {
		called = append(called, parts(k)...)
	}
	for _, p := range called {
		p.write(t, repository)
	}
	var ensembles []drawn
	for i := range drawnEnsembles {
		ensembles = append(ensembles, draw(t, random, repository, fmt.Sprintf("drawn%02d", i), kinds, ensembles))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	bare := serve(t, path, repository)
	own, err := triton.Dial(bare.GRPC)
	require.NoError(t, err)
	defer func() { require.NoError(t, own.Close()) }()
	var served []drawn
	var names []string
	for _, p := range called {
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
			for how, inBinary := range map[string]bool{"HTTP": false, "HTTP with binary tensors": true} {
				want := overHTTP(ctx, t, bare.HTTP, e.wire(), r, inBinary)
				if strings.HasPrefix(want, noAnswer) {
					require.Zero(t, different)
					t.Skipf("Triton has ended: %s\nrequest: %s\n%s", want, prototext.Format(r), config)
				}
				differs(how, want, overHTTP(ctx, t, front.HTTP, e.wire(), r, inBinary))
			}
		}
	}
	for _, name := range names {
		if want, got := counted(t, own, name), counted(t, conch, name); want != got {
			t.Logf("statistics of %s differ:\nTriton: %s\nConch:  %s", name, want, got)
		}
	}
	require.Zero(t, different)
}
