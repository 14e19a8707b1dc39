// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/e2e/conformance"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/dispatch/ensemble"
)

// TestWhichEnsemblesConchExecutes: cases of ensembles hold Conch's own steps to Triton where Conch executes them, and Triton's to themselves where it does not.
// This is the list of both.
func TestWhichEnsemblesConchExecutes(t *testing.T) {
	steps := map[string]int{
		"pipeline": 2, "pipeline_branches": 3, "pipeline_diamond": 4, "pipeline_error": 2, "pipeline_five": 5, "pipeline_half": 2, "pipeline_inner": 2, "pipeline_inputs": 2,
		"pipeline_nested": 2, "pipeline_one": 1, "pipeline_optional": 2, "pipeline_queued": 2, "pipeline_required": 2, "pipeline_reshaped": 2, "pipeline_rows": 2,
		"pipeline_six": 6, "pipeline_tail": 2, "pipeline_tap": 2, "pipeline_types": 2, "pipeline_versions": 2,
	}
	passed := map[string]string{
		"pipeline_decoupled": "the ensemble is decoupled: a request may have any number of responses",
		"pipeline_given":     `input "Z" of the ensemble is optional, ragged or reshaped`,
		"pipeline_unbatched": "step 1, model unbatched: max_batch_size is 0: its tensors have no batch dimension",
	}
	directory := t.TempDir()
	require.NoError(t, conformance.WriteModels(directory))
	store, err := repo.Open(t.TempDir(), repo.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	revision, err := store.Import(t.Context(), directory, repo.Origin{})
	require.NoError(t, err)
	models := func(name string) (ensemble.Model, bool) {
		m := revision.Model(name)
		if m == nil {
			return ensemble.Model{}, false
		}
		of := ensemble.Model{Config: m.Config}
		for _, v := range repo.ServedVersions(m.Config, m.Versions) {
			of.Versions = append(of.Versions, strconv.FormatInt(v, 10))
		}
		_, of.Unbatched = repo.Batchable(m.Config)
		return of, true
	}
	haveSteps, havePassed := map[string]int{}, map[string]string{}
	for _, m := range revision.Models {
		require.Empty(t, m.Problems, m.Name)
		if m.Config.GetEnsembleScheduling() == nil {
			continue
		}
		if graph, reason := ensemble.Split(m.Config, models); graph == nil {
			havePassed[m.Name] = reason
		} else {
			haveSteps[m.Name] = len(graph.Steps)
		}
	}
	require.Equal(t, steps, haveSteps)
	require.Equal(t, passed, havePassed)
}
