// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// examples are the files that docs/simulate.md runs.
const (
	examples    = "../../../../docs/examples"
	eightOnFour = examples + "/eight-on-four.yaml"
)

var update = flag.Bool("update", false, "rewrite golden files")

func load(t testing.TB, file string) *scenario.Scenario {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	require.NoError(t, err)
	s, err := scenario.Parse(file, text)
	require.NoError(t, err)
	return s
}

func run(t testing.TB, s *scenario.Scenario, o scenario.Options) *sim.Result {
	t.Helper()
	o.Dir = "testdata"
	r, err := s.Run(t.Context(), o)
	require.NoError(t, err)
	return r
}

// TestGoodput: eight models on four GPUs, where deferring collapses and starting at once does not.
func TestGoodput(t *testing.T) {
	s := load(t, eightOnFour)
	s.Models[0].Profile = &scenario.Profile{Alpha: scenario.Duration(1053 * time.Microsecond), Beta: scenario.Duration(5072 * time.Microsecond)}
	goodput := map[string]float64{}
	for discipline, drop := range map[string]string{"eager": "window", "deferred": "window"} {
		s.Dispatch = scenario.Dispatch{Discipline: discipline, DropPolicy: drop}
		found, err := s.Goodput(t.Context(), scenario.Options{}, sim.Search{Guess: 1000})
		require.NoError(t, err)
		goodput[discipline] = found.Rate
	}
	require.InEpsilon(t, 1434, goodput["eager"], .05)
	require.InEpsilon(t, 475, goodput["deferred"], .15)
}

// TestDispatchOfOneModel: what a model says of its own dispatch goes before what the scenario says.
func TestDispatchOfOneModel(t *testing.T) {
	s := load(t, eightOnFour)
	s.Dispatch = scenario.Dispatch{Discipline: "eager"}
	other := s.Models[0]
	other.Name, other.Count, other.Dispatch = "patient", 2, &scenario.Dispatch{Discipline: "timeout", DropPolicy: "window", Parameters: map[string]string{"max_queue_delay": "3ms"}}
	s.Models = append(s.Models, other)
	w, err := s.World(scenario.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	disciplines := map[string]string{}
	for _, d := range w.Plan.GetDispatch() {
		require.NotContains(t, disciplines, d.GetModel())
		disciplines[d.GetModel()] = d.GetDiscipline() + d.GetParameters()["max_queue_delay"]
	}
	require.Len(t, disciplines, max(1, s.Models[0].Count)+2)
	require.Equal(t, "timeout3ms", disciplines["patient-0"])
	require.Equal(t, "timeout3ms", disciplines["patient-1"])
	require.Equal(t, "eager", disciplines[w.Snapshot.GetModels()[0].GetName()])
}

// TestExamples runs every example: it has load, and most of it is served. A scenario that was written as JSON gives the same result.
func TestExamples(t *testing.T) {
	own, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	shown, err := filepath.Glob(filepath.Join("testdata", examples, "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, shown)
	manual, err := os.ReadFile("../../../docs/simulate.md")
	require.NoError(t, err)
	for _, path := range shown {
		require.Contains(t, string(manual), "docs/examples/"+filepath.Base(path), "nobody finds an example that no page names")
	}
	for _, path := range append(own, shown...) {
		file, err := filepath.Rel("testdata", path)
		require.NoError(t, err)
		t.Run(filepath.Base(file), func(t *testing.T) {
			s, dir := load(t, file), filepath.Dir(path)
			require.Empty(t, s.Notes())
			if s.Rate > 10_000 { // BenchmarkSim runs these
				s.Rate, s.Duration, s.Warmup = s.Rate/1000, scenario.Duration(200*time.Millisecond), 0
			}
			p, err := s.Policy.InProcess(t.Context())
			require.NoError(t, err)
			o := scenario.Options{Policy: p, Dir: dir}
			r, err := s.Run(t.Context(), o)
			require.NoError(t, err)
			require.Positive(t, r.Total.Arrivals)
			require.Less(t, r.Total.BadRate, .2)
			require.Zero(t, r.PlansFailed, r.PlanFailure)

			text, err := s.Marshal()
			require.NoError(t, err)
			again, err := scenario.Parse("json", text)
			require.NoError(t, err, string(text))
			same, err := again.Run(t.Context(), o)
			require.NoError(t, err)
			require.Equal(t, encode(t, r), encode(t, same))
		})
	}
}

func encode(t testing.TB, r *sim.Result) string {
	t.Helper()
	text, err := json.MarshalIndent(r, "", "  ")
	require.NoError(t, err)
	return string(text) + "\n"
}

// TestGoldenResult is a small run, whole: what the JSON of a result looks like.
//
//	partition gpu0.0 (a, at half the GPU twice as slow): 2 rows do not wait for each other under eager: 0-12 ms, 12-24 ms
//	partition gpu0.1 (b): 4 rows 1-19 ms, 1 row 30-42 ms
func TestGoldenResult(t *testing.T) {
	got := encode(t, run(t, load(t, "list.yaml"), scenario.Options{}))
	golden := filepath.Join("testdata", "list.golden.json")
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// TestAzureLoad: the busiest functions, in order, a tenth of their invocations, in five seconds.
func TestAzureLoad(t *testing.T) {
	r := run(t, load(t, "azure.yaml"), scenario.Options{})
	require.InDelta(t, 5, r.Seconds, 0)
	require.EqualValues(t, 1860, r.Models[0].Arrivals)
	require.EqualValues(t, 30, r.Models[1].Arrivals)
}

// TestRateAndSeed override the file.
func TestRateAndSeed(t *testing.T) {
	s := load(t, eightOnFour)
	usual := run(t, s, scenario.Options{})
	require.InEpsilon(t, 5000, usual.Total.Rate, .05)
	require.Equal(t, encode(t, usual), encode(t, run(t, s, scenario.Options{Seed: 1, Rate: 5000})))
	half := run(t, s, scenario.Options{Rate: 700})
	require.InEpsilon(t, 700, half.Total.Rate, .05)
	require.NotEqual(t, usual.Total, run(t, s, scenario.Options{Seed: 2}).Total)
}

// TestAddingAModelLeavesTheOthersAlone: their arrivals stay, to the last one.
func TestAddingAModelLeavesTheOthersAlone(t *testing.T) {
	s := load(t, eightOnFour)
	s.Rate = 0
	s.Models[0].Rate = 100
	before := run(t, s, scenario.Options{})
	s.Models = append([]scenario.Model{{Name: "another", Profile: s.Models[0].Profile, Rate: 50}}, s.Models...)
	after := run(t, s, scenario.Options{})
	for i, m := range before.Models {
		require.Equal(t, m.Name, after.Models[i+1].Name)
		require.Equal(t, m.Arrivals, after.Models[i+1].Arrivals)
	}
}

func TestSubclusters(t *testing.T) {
	s := load(t, eightOnFour)
	s.Plan = &scenario.Plan{Subclusters: 2}
	w, err := s.World(scenario.Options{})
	require.NoError(t, err)
	require.Len(t, w.Plan.GetPartitions(), 4)
	for i, p := range w.Plan.GetPartitions() {
		require.Len(t, p.GetInstances(), 4)
		for k, in := range p.GetInstances() {
			require.Equal(t, w.Snapshot.GetModels()[i%2+2*k].GetName(), in.GetModel())
		}
	}
}

func TestRefusals(t *testing.T) {
	const head = "apiVersion: conch-sim/v1\nduration: 1s\ngpus: [{type: A100}]\n"
	const models = "models: [{name: m, profile: {zoo: ResNet50}, rate: 1}]\n"
	for text, want := range map[string]string{
		"gpus:\n  ! #\n0 #":                "malformed YAML", // the YAML library panics
		"":                                 "the file is empty",
		"apiVersion: v2":                   `apiVersion is "v2"`,
		head + models + "polciy: x":        "[5:1] unknown field \"polciy\"",
		head + models + "seed: 1\nseed: 2": "[6:1]",
		head + models + "warmup: 5":        `"5" is no duration; write it like 25ms`,
		head + models + "rate: many":       "[5:7]",
		head + models + "---\na: 1":        "a second document",
		head:                               "models: there are none",
		head + models + "zipf: 1":          "zipf divides a rate",
		head + models + "rate: .nan":       "rate NaN",
		head + models + "plan: {}":         "give partitions, or a number of subclusters",
		head + models + "plan: {subclusters: 2}\npolicy: {name: static}":   "policy and plan",
		head + "models: [{name: m}]":                                       "models[0] m: give one profile",
		head + "models: [{name: m, profile: {zoo: X}, late: never}]":       `late is "never"`,
		head + "snapshot: {revision: 1}":                                   "come from the snapshot",
		"apiVersion: conch-sim/v1\nduration: 1s\n" + models:                "gpus: there are none",
		"apiVersion: conch-sim/v1\ngpus: [{type: A100}]\n" + models:        "duration: give one, or a trace",
		head + models + "expectInterference: mean":                         "must be worst or none",
		head + "models: [{name: m, count: 1000000000, profile: {zoo: X}}]": "count 1000000000",
		// Line and column of the value, or of what lacks it.
		head + "models: [{name: m, profile: {zoo: ResNet50}}, {name: m, profile: {zoo: ResNet50}}]": "[4:54] models[1]: two models are called m: models[0] is one too",
		head + models + "warmup: 5s":             "[5:9] warmup 5s is not below duration 1s",
		head + models + "timeline: {from: 5}":    `[5:18] "5" is no duration`,
		head + models + "timeline: {from: [5]}":  "a duration is needed here",
		head + models + "rate: -5":               "[5:7] rate -5 is no number of requests per second",
		head + models + "zipf: -1\nrate: 1":      "[5:7] zipf -1 is no exponent",
		head + models + "jitter: .nan":           "[5:9] jitter NaN",
		head + models + "bins: -1":               "[5:7] bins -1",
		head + models + "plan: {subclusters: 2}": "[5:21] plan: 2 subclusters, and 1 GPUs",
		head + models + "plan: {partitions: [{gpu: gpu0, share: 70, models: [m]}, {gpu: gpu0, share: 40, models: [m]}]}":              "the shares of GPU gpu0 sum up to 110%",
		head + models + "plan: {partitions: [{gpu: gpu0}]}":                                                                           "partitions[0] has no models",
		head + models + "dispatch: {discipline: lazy}":                                                                                `discipline "lazy": unknown name; there are adaptive`,
		head + models + "dispatch: {discipline: segment}":                                                                             `discipline "segment" needs the operators of model m`,
		head + models + "dispatch: {discipline: timeout, parameters: {delay: 1ms}}":                                                   `[5:11] discipline "timeout" has no parameter "delay"`,
		head + models + "dispatch: {dropPolicy: never}":                                                                               `drop policy "never": unknown name`,
		head + models + "failures: [{at: 2s, gpu: gpu0}]":                                                                             "[5:17] failures[0] is at 2s, and duration is 1s",
		head + models + "failures: [{at: 10ms}]":                                                                                      "failures[0] needs a gpu or a partition",
		head + models + "breakdowns: {between: 0s, repair: 1s}":                                                                       "breakdowns need a time between them",
		head + models + "timeline: {from: 500ms, to: 100ms, max: 9}":                                                                  "timeline: from 500ms to 100ms has nothing",
		head + models + "timeline: {max: -1}":                                                                                         "[5:17] timeline: max -1",
		head + models + "interference: [{gpuType: B, l2Self: 1, l2Other: 1, bandwidthSelf: 1, bandwidthOther: 1, constant: 1}]":       `[5:26] interference[0]: there is no GPU of type "B"`,
		head + models + "interference: [{gpuType: A100, l2Self: .nan, l2Other: 1, bandwidthSelf: 1, bandwidthOther: 1, constant: 1}]": "NaN is no coefficient",
		"apiVersion: conch-sim/v1\nduration: 1s\ngpus: [{type: A100, count: 0}]\n" + models:                                           "[3:28] gpus[0].count is 0; leave the entry out",
		"apiVersion: conch-sim/v1\nduration: 1s\ngpus: [{type: A100, shares: [60, 60]}]\n" + models:                                   "gpus[0]: shares [60 60]",
		"apiVersion: conch-sim/v1\nduration: 1s\ngpus: [{type: A100, shares: [0]}]\n" + models:                                        "gpus[0]: shares [0]",
		head + "models: [{name: m, count: 0, profile: {zoo: ResNet50}}]":                                                              "models[0].count is 0",
		head + "models: [{name: m, rate: -1, profile: {zoo: ResNet50}}]":                                                              "models[0] m: rate -1",
		head + "models: [{name: m, profile: {zoo: ResNet50, creq: 3}}]":                                                               "[4:51] models[0] m: creq 3 is no fraction of a GPU",
		head + "models: [{name: m, maxBatch: 4, arrivals: {rows: 5}, profile: {zoo: ResNet50}}]":                                      "[4:50] models[0] m: arrivals: requests of 5 rows, which is not from 1 to maxBatch (4)",
		head + "models: [{name: m, arrivals: {rows: -1}, profile: {zoo: ResNet50}}]":                                                  "requests of -1 rows",
		head + "models: [{name: m, arrivals: {shape: .inf}, profile: {zoo: ResNet50}}]":                                               "Gamma shape +Inf",
		head + "models: [{name: m, arrivals: {steps: [{factor: -1}]}, profile: {zoo: ResNet50}}]":                                     "step 1 multiplies the rate by -1",
	} {
		_, err := scenario.Parse("x.yaml", []byte(text))
		require.ErrorIs(t, err, scenario.ErrScenario, text)
		require.ErrorContains(t, err, want, text)
	}
	for text, want := range map[string]string{
		head + "models: [{name: m, profile: {zoo: LeNet}}]":                                                       `no model "LeNet" for GPU type A100`,
		head + "models: [{name: m, profile: {alpha: 1ms, zoo: ResNet50}}]":                                        "give a model of the zoo, alpha and beta, or points",
		head + models + "policy: {name: static}":                                                                  "policy static is not open",
		head + models + "plan: {partitions: [{gpu: gpu7, models: [m]}]}":                                          `there is no GPU "gpu7"`,
		head + models + "plan: {partitions: [{gpu: gpu0, models: [x]}]}":                                          `there is no model "x"`,
		head + models + "trace: {file: nowhere.csv, format: azure}":                                               "nowhere.csv",
		head + models + "trace: {file: azure.csv, format: xml}":                                                   `format "xml" is not azure`,
		head + models + "trace: {file: azure.csv, format: conch}":                                                 "not a conch trace",
		head + "models: [{name: m, count: 9, profile: {zoo: ResNet50}}]\ntrace: {file: azure.csv, format: azure}": "3 functions for 9 models",
		head + "models: [{name: m, profile: {zoo: ResNet50}}]":                                                    "nothing arrives: give rate, or the rate of a model, or a trace",
		head + models + "failures: [{at: 10ms, partition: gpu0.9}]":                                               `failures[0]: there is no partition "gpu0.9"; the first is called gpu0.0`,
		"apiVersion: conch-sim/v1\nduration: 1s\ngpus: [{type: A100, memoryBytes: 10}]\nmodels: [{name: m, memoryBytes: 11, rate: 1, profile: {zoo: ResNet50}}]": "the models on gpu0 need 11 bytes, and it has memoryBytes 10",
		"apiVersion: conch-sim/v1\ngpus: [{type: A100}]\n" + models + "trace: {file: arrivals.csv, format: arrivals}":                                            `line 2: model "a" is not one of the scenario's`,
	} {
		s, err := scenario.Parse("x.yaml", []byte(text))
		require.NoError(t, err, text)
		_, err = s.World(scenario.Options{Dir: "testdata"})
		require.ErrorIs(t, err, scenario.ErrScenario, text)
		require.ErrorContains(t, err, want, text)
	}
	_, err := (&scenario.Policy{Name: "oracle"}).InProcess(t.Context())
	require.ErrorContains(t, err, `no policy "oracle" in this program`)
	_, err = (&scenario.Policy{Name: "static", Parameters: map[string]string{"x": "y"}}).InProcess(t.Context())
	require.ErrorContains(t, err, `no parameter "x"`)
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(f, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add([]byte("duration: 1s\ngpus:\n  ! #\n0 #")) // the YAML library panics
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := scenario.Parse("x.yaml", text)
		if err != nil {
			require.ErrorIs(t, err, scenario.ErrScenario)
			return
		}
		gpus, models := 0, 0
		for _, g := range s.GPUs {
			gpus += max(1, g.Count)
		}
		for _, m := range s.Models {
			models += max(1, m.Count)
		}
		if gpus > 1000 || models > 1000 || s.Trace != nil {
			return // large or of other files, not wrong
		}
		if _, err := s.World(scenario.Options{Dir: t.TempDir()}); err != nil {
			require.ErrorIs(t, err, scenario.ErrScenario)
		}
	})
}
