// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package ensemble_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"pgregory.net/rapid"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/ensemble"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
)

func parse(t *testing.T, text string) *pb.ModelConfig {
	t.Helper()
	config := new(pb.ModelConfig)
	require.NoError(t, prototext.Unmarshal([]byte(text), config))
	return config
}

// flat is a model with one input and one output of one dimension.
func flat(name string, more string) string {
	return `name: "` + name + `" max_batch_size: 8 input { name: "IN" data_type: TYPE_FP32 dims: -1 } output { name: "OUT" data_type: TYPE_FP32 dims: -1 } ` + more
}

// step is a step of a flat model from one tensor to another.
func step(model, from, to string) string {
	return `step { model_name: "` + model + `" model_version: -1 input_map { key: "IN" value: "` + from + `" } output_map { key: "OUT" value: "` + to + `" } } `
}

// of is the schedule of these steps.
func of(steps ...string) string { return "ensemble_scheduling { " + strings.Join(steps, "") + " }" }

const whole = `name: "whole" max_batch_size: 8 input { name: "X" data_type: TYPE_FP32 dims: -1 } output { name: "Y" data_type: TYPE_FP32 dims: -1 } `

func TestSplit(t *testing.T) {
	models := map[string]ensemble.Model{
		"a":         {Config: parse(t, flat("a", "")), Versions: []string{"1", "3"}},
		"b":         {Config: parse(t, flat("b", "")), Versions: []string{"1"}},
		"decoupled": {Config: parse(t, flat("decoupled", "")), Unbatched: "decoupled: a request may have any number of responses"},
		"inner":     {Config: parse(t, flat("inner", of(step("a", "IN", "between"), step("b", "between", "OUT")))), Unbatched: "ensemble"},
		"bad":       {Config: parse(t, flat("bad", of(step("a", "IN", "between"), step("decoupled", "between", "OUT"))))},
		"round":     {Config: parse(t, flat("round", of(step("round", "IN", "OUT"))))},
		"unbatched": {Config: parse(t, `name: "unbatched" input { name: "IN" dims: -1 } output { name: "OUT" dims: -1 }`)},
	}
	for _, c := range []struct{ name, config, reason string }{
		{"a chain", whole + of(step("a", "X", "m"), step("b", "m", "Y")), ""},
		{"a step of a step", whole + of(step("inner", "X", "m"), step("a", "m", "Y")), ""},
		{"a version", whole + `ensemble_scheduling { step { model_name: "a" model_version: 3 input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "Y" } } }`, ""},
		{"a version that is not served", whole + `ensemble_scheduling { step { model_name: "a" model_version: 2 input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "Y" } } }`,
			"step 1, model a: version 2 is not served"},
		{"a decoupled step", whole + of(step("a", "X", "m"), step("decoupled", "m", "Y")), "step 2, model decoupled: decoupled: a request may have any number of responses"},
		{"a decoupled step of a step", whole + of(step("bad", "X", "Y")), "step 1, model bad: step 2, model decoupled: decoupled: a request may have any number of responses"},
		{"an ensemble that calls itself", whole + of(step("whole", "X", "Y")), "step 1, model whole: it calls itself"},
		{"a step that calls itself", whole + of(step("round", "X", "Y")), "step 1, model round: step 1, model round: it calls itself"},
		{"a model that is not served", whole + of(step("gone", "X", "Y")), "step 1, model gone: it is not served"},
		{"a step without a batch dimension", whole + of(step("unbatched", "X", "Y")), "step 1, model unbatched: it has no batch dimension, and the ensemble has one"},
		{"a batch dimension that Triton would add", `name: "whole" input { name: "X" dims: -1 } output { name: "Y" dims: -1 } ` + of(step("a", "X", "Y")),
			"step 1, model a: it has a batch dimension, and the ensemble has none"},
		{"dims that count the batch dimension", `name: "whole" input { name: "X" dims: [ -1, -1 ] } output { name: "Y" dims: [ -1, -1 ] } ` + of(step("a", "X", "Y")), ""},
		{"a decoupled ensemble", whole + `model_transaction_policy { decoupled: true } ` + of(step("a", "X", "Y")), "the ensemble is decoupled: a request may have any number of responses"},
		{"an optional input", `name: "whole" max_batch_size: 8 input { name: "X" dims: -1 optional: true } output { name: "Y" dims: -1 } ` + of(step("a", "X", "Y")),
			`input "X" of the ensemble is optional, ragged or reshaped`},
		{"an output that no step makes", whole + of(step("a", "X", "m")), `no step makes tensor "Y"`},
		{"a tensor that two steps make", whole + of(step("a", "X", "Y"), step("b", "X", "Y")), `step 2, model b: tensor "Y" is made twice`},
		{"a circle", whole + of(step("a", "n", "m"), step("b", "m", "n"), step("a", "X", "Y")), "its steps wait for each other"},
		{"no step", whole + "ensemble_scheduling {}", "the ensemble has no step"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, reason := ensemble.Split(parse(t, c.config), func(name string) (ensemble.Model, bool) { m, ok := models[name]; return m, ok })
			require.Equal(t, c.reason, reason)
			require.Equal(t, c.reason == "", g != nil)
		})
	}
}

// graph splits an ensemble of batched models with inputs x and z: "x>a" is a step from tensor x to tensor a, "a,b>c" one from two.
func graph(t require.TestingT, outputs []string, steps ...string) *ensemble.Graph {
	config := &pb.ModelConfig{Name: "whole", MaxBatchSize: 8, Input: []*pb.ModelInput{{Name: "x"}, {Name: "z"}}, SchedulingChoice: &pb.ModelConfig_EnsembleScheduling{EnsembleScheduling: &pb.ModelEnsembling{}}}
	for _, o := range outputs {
		config.Output = append(config.Output, &pb.ModelOutput{Name: o})
	}
	for _, s := range steps {
		step := &pb.ModelEnsembling_Step{ModelName: "m", ModelVersion: -1, InputMap: map[string]string{}, OutputMap: map[string]string{}}
		into := step.InputMap
		name := ""
		for i := 0; i <= len(s); i++ {
			if i < len(s) && s[i] != ',' && s[i] != '>' {
				name += s[i : i+1]
				continue
			}
			into[fmt.Sprintf("t%d", len(into))] = name
			if name = ""; i < len(s) && s[i] == '>' {
				into = step.OutputMap
			}
		}
		config.GetEnsembleScheduling().Step = append(config.GetEnsembleScheduling().Step, step)
	}
	g, reason := ensemble.Split(config, func(string) (ensemble.Model, bool) {
		return ensemble.Model{Config: &pb.ModelConfig{Name: "m", MaxBatchSize: 8}}, true
	})
	require.Empty(t, reason)
	return g
}

// walk ends the steps of a run in the order in which they could start, and returns that.
func walk(r *ensemble.Run, first []int) (all []int) {
	for ready := first; len(ready) > 0; ready = ready[1:] {
		all = append(all, ready[0])
		ready = append(ready, r.Ended(ready[0])...)
	}
	return all
}

func TestWhichStepsRun(t *testing.T) {
	diamond := []string{"x>a", "a>b", "a>c", "b,c>d"}
	for _, c := range []struct {
		name    string
		outputs []string
		steps   []string
		asked   []string
		runs    []int // nil: Triton answers with an error
	}{
		{"one step", []string{"a"}, []string{"x>a"}, nil, []int{0}},
		{"a chain in another order", []string{"c"}, []string{"b>c", "x>a", "a>b"}, nil, []int{1, 2, 0}},
		{"a diamond", []string{"d"}, diamond, nil, []int{0, 1, 2, 3}},
		{"one of two outputs", []string{"a", "b"}, []string{"x>a", "x>b"}, []string{"b"}, []int{1}},
		{"both outputs by name", []string{"a", "b"}, []string{"x>a", "x>b"}, []string{"b", "a"}, []int{0, 1}},
		{"what only a step needs that nobody wants", []string{"b", "c"}, []string{"x>a", "a>b", "x>c"}, []string{"c"}, []int{2}},
		{"what a second step needs too", []string{"b", "c"}, []string{"x>a", "a>b", "a>c"}, []string{"c"}, []int{0, 2}},
		{"one of a step's two outputs", []string{"a", "b"}, []string{"x>a,b"}, []string{"a"}, []int{0}},
		{"an output that a further step takes", []string{"a", "b"}, []string{"x>a", "a>b"}, []string{"b"}, nil},
		{"an output that a step takes that nobody wants", []string{"a", "b"}, []string{"x>a", "a>b"}, []string{"a"}, nil},
		{"an input that no step needs any more", []string{"a", "b"}, []string{"x>a", "z>b"}, []string{"b"}, []int{1}},
		{"an input that only a step after the first would need", []string{"a", "b"}, []string{"x>a", "z>b"}, []string{"a"}, nil},
		{"the same with all outputs", []string{"a", "b"}, []string{"x>a", "a>b"}, nil, []int{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, first, ok := graph(t, c.outputs, c.steps...).Begin(c.asked)
			require.Equal(t, c.runs != nil, ok)
			if ok {
				require.Equal(t, c.runs, walk(r, first))
				require.True(t, r.Over())
			}
		})
	}
}

func TestTakers(t *testing.T) {
	g := graph(t, []string{"b", "c"}, "x>a", "a,a>b", "a>c")
	r, _, ok := g.Begin(nil)
	require.True(t, ok)
	require.Equal(t, []int{1, 3, 0}, []int{r.Takers("x"), r.Takers("a"), r.Takers("b")})
	r, _, ok = g.Begin([]string{"c"})
	require.True(t, ok)
	require.Equal(t, []int{1, 1, 0}, []int{r.Takers("x"), r.Takers("a"), r.Takers("b")})
	require.Equal(t, []bool{false, true}, []bool{r.Wants("b"), r.Wants("c")})
}

// TestDue: what follows a step keeps its time on the longest path, and a quarter of its part of the time to spare.
func TestDue(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	for _, c := range []struct {
		name     string
		outputs  []string
		steps    []string
		asked    []string
		expected []time.Duration
		slo      time.Duration
		due      []time.Duration // after the beginning
		critical time.Duration
	}{
		{"a chain", []string{"c"}, []string{"x>a", "a>b", "b>c"}, nil, []time.Duration{ms(2), ms(4), ms(4)}, ms(110), []time.Duration{ms(110 - 8 - 20), ms(110 - 4 - 10), ms(110)}, ms(10)},
		{"a chain without time to spare", []string{"c"}, []string{"x>a", "a>b", "b>c"}, nil, []time.Duration{ms(2), ms(4), ms(4)}, ms(10), []time.Duration{ms(2), ms(6), ms(10)}, ms(10)},
		{"a chain with less than it takes", []string{"c"}, []string{"x>a", "a>b", "b>c"}, nil, []time.Duration{ms(2), ms(4), ms(4)}, ms(9), []time.Duration{ms(1), ms(5), ms(9)}, ms(10)},
		{"the longer branch of a diamond", []string{"d"}, []string{"x>a", "a>b", "a>c", "b,c>d"}, nil, []time.Duration{ms(1), ms(2), ms(8), ms(3)}, ms(12), []time.Duration{ms(1), ms(9), ms(9), ms(12)}, ms(12)},
		{"the longest is left out", []string{"b", "c"}, []string{"x>a", "a>b", "a>c"}, []string{"b"}, []time.Duration{ms(1), ms(2), ms(8)}, ms(9), []time.Duration{ms(7), ms(9), ms(9)}, ms(9)},
		{"parallel ends", []string{"a", "b"}, []string{"x>a", "x>b"}, nil, []time.Duration{ms(1), ms(2)}, ms(50), []time.Duration{ms(50), ms(50)}, ms(2)},
		{"nothing is known", []string{"b"}, []string{"x>a", "a>b"}, nil, []time.Duration{0, 0}, ms(50), []time.Duration{ms(50), ms(50)}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := graph(t, c.outputs, c.steps...)
			r, _, ok := g.Begin(c.asked)
			require.True(t, ok)
			began := time.Unix(100, 0)
			for i := range c.steps {
				require.Equal(t, c.due[i], r.Due(i, c.expected, forecast.Losses{}, began, began.Add(c.slo)).Sub(began), "step %d", i)
			}
			require.Equal(t, c.critical, g.Critical(c.expected))
		})
	}
}

// TestEveryStepRunsOnceAfterItsInputs draws DAGs, and ends steps that run in any order.
func TestEveryStepRunsOnceAfterItsInputs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "steps")
		var steps, outputs []string
		inputs := make([][]int, n)
		taken := make([]bool, n)
		for i := range n {
			from := "x"
			if i > 0 {
				inputs[i] = rapid.SliceOfNDistinct(rapid.IntRange(0, i-1), 0, 3, rapid.ID[int]).Draw(t, "inputs")
			}
			for _, k := range inputs[i] {
				taken[k] = true
				from += fmt.Sprintf(",s%d", k)
			}
			steps = append(steps, fmt.Sprintf("%s>s%d", from, i))
		}
		for i := range n {
			if !taken[i] {
				outputs = append(outputs, fmt.Sprintf("s%d", i))
			}
		}
		var asked []string
		if rapid.Bool().Draw(t, "a subset") {
			asked = outputs[:rapid.IntRange(1, len(outputs)).Draw(t, "asked")]
		}
		r, ready, ok := graph(t, outputs, steps...).Begin(asked)
		if !ok {
			t.Fatal("outputs that no step takes can be asked for in any combination")
		}
		expected := make([]time.Duration, n)
		for i := range expected {
			expected[i] = time.Duration(rapid.IntRange(0, 50).Draw(t, "expected"))
		}
		ended := make([]bool, n)
		began := time.Unix(100, 0)
		due := began.Add(time.Duration(rapid.IntRange(0, 1000).Draw(t, "SLO")))
		dues := make([]time.Time, n)
		var order []int
		for len(ready) > 0 {
			k := rapid.IntRange(0, len(ready)-1).Draw(t, "next")
			i := ready[k]
			ready = slices.Delete(ready, k, k+1)
			for _, in := range inputs[i] {
				if !ended[in] {
					t.Fatalf("step %d runs before step %d", i, in)
				}
			}
			if ended[i] {
				t.Fatalf("step %d runs twice", i)
			}
			ended[i], dues[i] = true, r.Due(i, expected, forecast.Losses{}, began, due)
			order = append(order, i)
			ready = append(ready, r.Ended(i)...)
		}
		if !r.Over() {
			t.Fatal("a step is left")
		}
		for _, i := range order {
			last := true
			for k := range n {
				if ended[k] && slices.Contains(inputs[k], i) {
					last = false
					// A step's deadline leaves the next one its time at least.
					if dues[i].Add(expected[k]).After(dues[k]) {
						t.Fatalf("step %d may take until %v, but step %d takes %v and is due at %v", i, dues[i].Sub(began), k, expected[k], dues[k].Sub(began))
					}
				}
			}
			if last && dues[i] != due {
				t.Fatalf("nothing follows step %d, but it is due %v before the end", i, due.Sub(dues[i]))
			}
		}
		for i := range n {
			if asked == nil && !ended[i] {
				t.Fatalf("step %d did not run", i)
			}
			for _, o := range asked {
				if o == fmt.Sprintf("s%d", i) && !ended[i] {
					t.Fatalf("step %d did not run, and its output was asked for", i)
				}
			}
		}
	})
}

// A model that many steps call through other ensembles is looked at once.
func TestSplitOfEnsemblesInEnsembles(t *testing.T) {
	models := map[string]ensemble.Model{"level0": {Config: parse(t, flat("level0", ""))}}
	for level := 1; level <= 40; level++ {
		below, name := fmt.Sprintf("level%d", level-1), fmt.Sprintf("level%d", level)
		models[name] = ensemble.Model{Config: parse(t, flat(name, of(step(below, "IN", "between"), step(below, "between", "OUT"))))}
	}
	g, reason := ensemble.Split(models["level40"].Config, func(name string) (ensemble.Model, bool) { m, ok := models[name]; return m, ok })
	require.Empty(t, reason)
	require.Len(t, g.Steps, 2)
}
