// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An ensemble and its steps are models of one repository: each has a name of its own, and each step its line.
func TestNamesOfEnsembleScenes(t *testing.T) {
	for _, s := range []ensembleScene{chainScene(), urgentScene(), detectorScene(), diamondScene()} {
		names := map[string]bool{s.name: true}
		for _, step := range s.steps {
			require.False(t, names[step.Model], "%s: two models are called %s", s.name, step.Model)
			names[step.Model] = true
			require.Contains(t, s.lines, step.Model, s.name)
		}
		require.Len(t, s.lines, len(s.steps), s.name)
	}
}
