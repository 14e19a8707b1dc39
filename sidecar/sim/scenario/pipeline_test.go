// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

const pipeline = examples + "/pipeline.yaml"

// TestPipelineOfAScenario: its models have the rates that it gives them besides their own, and parts of its SLO where they have none.
func TestPipelineOfAScenario(t *testing.T) {
	s := load(t, pipeline)
	w, err := s.World(scenario.Options{})
	require.NoError(t, err)
	rates, rows, slos := map[string]float64{}, map[string]float64{}, map[string]int64{}
	for _, m := range w.Snapshot.GetModels() {
		rates[m.GetName()], rows[m.GetName()], slos[m.GetName()] = m.GetRate(), m.GetRowRate(), m.GetSloUs()
	}
	require.Equal(t, map[string]float64{"detector": 300, "vehicles": 300, "faces": 200 + 150}, rates, "of requests, none of which is without rows")
	require.Equal(t, map[string]float64{"detector": 300, "vehicles": 600, "faces": 200 + 150}, rows)
	require.InDelta(t, 200, w.Snapshot.DirectRate(w.Snapshot.GetModels()[2]), 1e-6)
	require.Zero(t, w.Snapshot.DirectRate(w.Snapshot.GetModels()[0]))
	// A batch of eight takes 26 ms, 13 ms and 7.2 ms; the longest path 39 ms.
	require.Equal(t, map[string]int64{"detector": 133_334, "vehicles": 66_667, "faces": 60_000}, slos)
	steps := w.Snapshot.GetPipelines()[0].GetSteps()
	require.Equal(t, []uint32{0}, steps[2].GetAfter())
	require.Equal(t, []float64{1, 2, .5}, []float64{steps[0].GetRows(), steps[1].GetRows(), steps[2].GetRows()})
	require.NoError(t, w.Close())

	r, err := s.Run(t.Context(), scenario.Options{})
	require.NoError(t, err)
	require.InEpsilon(t, 300, r.Pipelines[0].Rate, .05)
	require.InEpsilon(t, 200, r.Models[2].Rate, .05, "what a pipeline asks of a model is not the model's")
	require.Zero(t, r.Models[0].Arrivals)
	require.Greater(t, r.Models[0].MeanBatch, 1.)
	require.Contains(t, r.String(), "street ")

	r, err = s.Run(t.Context(), scenario.Options{Rate: 250})
	require.NoError(t, err)
	require.InEpsilon(t, 150, r.Pipelines[0].Rate, .05, "a total is divided in proportion")
}

// TestPipelinesThatAreRefused: with where they are in the file.
func TestPipelinesThatAreRefused(t *testing.T) {
	const head = "apiVersion: conch-sim/v1\nduration: 1s\ngpus: [{type: A100}]\nmodels: [{name: a, profile: {zoo: ResNet50}}, {name: b, profile: {zoo: ResNet50}}]\n"
	for text, want := range map[string]string{
		"pipelines: [{name: a, slo: 1s, steps: [{model: a}]}]":                                         `[5:20] pipelines[0]: "a" is no name of its own`,
		"pipelines: [{name: p, steps: [{model: a}]}]":                                                  "pipelines[0] p: it needs an slo",
		"pipelines: [{name: p, slo: 1s}]":                                                              "pipelines[0] p: it needs steps",
		"pipelines: [{name: p, slo: 1s, rate: -1, steps: [{model: a}]}]":                               "pipelines[0] p: rate -1",
		"stepDeadlines: soon\npipelines: [{name: p, slo: 1s, steps: [{model: a}]}]":                    `stepDeadlines is "soon", must be loss, present, left, waiting, share or end`,
		"pipelines: [{name: p, slo: 1s, steps: [{model: a, after: [b]}, {model: b}]}]":                 "step a comes after b, which is no step before it",
		"pipelines: [{name: p, slo: 1s, steps: [{model: a}, {model: a}]}]":                             "two steps are called a: give one a name",
		"pipelines: [{name: p, slo: 1s, steps: [{model: a, rows: -2}]}]":                               "step a: rows -2 is no number from 0",
		"pipelines: [{name: p, slo: 1s, arrivals: {shape: -1}, steps: [{model: a}]}]":                  "arrivals: Gamma shape -1",
		"rate: 5\nzipf: 1\npipelines: [{name: p, slo: 1s, steps: [{model: a}]}]":                       "pipelines: not with a trace, zipf or discipline segment",
		"pipelines: [{name: p, slo: 1s, rate: 1, steps: [{model: c}]}]":                                "pipeline p: there is no model c",
		"pipelines: [{name: p, slo: 1s, rate: 1, steps: [{name: x, model: a, rows: 1, before: [y]}]}]": "unknown field",
	} {
		s, err := scenario.Parse("s.yaml", []byte(head+text))
		if err == nil {
			_, err = s.World(scenario.Options{})
		}
		require.ErrorContains(t, err, want, text)
	}
}
