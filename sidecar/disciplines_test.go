// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/static"
	"github.com/conch-serving/conch/sidecar/command"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/plan"
)

// TestDisciplinesHaveTheSameNamesEverywhere: packages that may not import the queue have lists of their own, and documents name them all.
func TestDisciplinesHaveTheSameNamesEverywhere(t *testing.T) {
	require.Equal(t, queue.Names(), plan.Disciplines())
	d, err := static.New().Describe(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Names(), d.GetDisciplines())
	for _, file := range []string{"../docs/configuration.md", "dispatch/queue/README.md", "../plugins/static/README.md", "../ARCHITECTURE.md"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, kind := range queue.Kinds() {
			require.True(t, strings.Contains(string(text), "`"+kind.Name+"`"), "%s does not name %s", file, kind.Name)
			if file == "dispatch/queue/README.md" {
				for _, p := range kind.Parameters {
					value := "none"
					if p.Default != "" {
						value = "`" + p.Default + "`"
					}
					require.True(t, strings.Contains(string(text), "`"+p.Name+"`, default "+value), "%s: parameter %s of %s with its default, %s", file, p.Name, kind.Name, value)
				}
			}
		}
	}
}

// A discipline that is only simulated is refused in conch.yaml with that reason, and not as an unknown name.
func TestSimulatedDisciplinesAreRefusedWithTheReason(t *testing.T) {
	for name, why := range map[string]string{"segment": "a model's graph as a whole", "flex": "cannot abort", "earliest-latest": "nothing disturbs"} {
		err := command.CheckDiscipline(name, nil, "")
		require.ErrorContains(t, err, `discipline "`+name+`" runs in simulations only (tritonctl simulate)`)
		require.ErrorContains(t, err, why)
		require.ErrorContains(t, err, "there are adaptive")
	}
	require.ErrorContains(t, command.CheckDiscipline("lazy", nil, ""), "unknown name")
}
