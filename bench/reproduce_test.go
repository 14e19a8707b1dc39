// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/zoo"
)

// promised are what reproduce has rows of, by part: the tables and figures of papers that need no GPU, and what Symphony's published scheduler was run
// with.
func promised() map[string][]string {
	return map[string][]string{
		"table2":            {"table2.resnet50.deferred.goodput", "table2.resnet50.clockwork_ahead.goodput", "table2.inceptionresnetv2.eager.goodput"},
		"reference":         {"reference.resnet50.clairvoyant.goodput", "reference.inceptionresnetv2.horizon.goodput"},
		"budget":            {"budget.inceptionresnetv2.eager.goodput", "budget.resnet50.deferred.offered20000.goodput"},
		"fig6b":             {"fig6b.resnet50.best_timeout.of_deferred", "fig6b.a100.best_timeout.of_deferred"},
		"fig9":              {"fig9.a100.mixed.adaptive.goodput", "fig9.a100.mixed.eager_prefix.overall.goodput", "fig9.a100.strong.deferred.of_best_system", "fig9.gtx1080ti.strong.deferred.of_best_system"},
		"few":               {"few.8on4.deferred.goodput", "few.16on32.adaptive.goodput"},
		"overload and idle": {"overload.resnet50.adaptive.load125.bad", "idle.resnet50.deferred.load25.share", "idle.resnet50.adaptive.load50.gpus_used"},
	}
}

// TestReproduceHasAllParts: every part has the rows that are promised of it, and no figure is there twice.
func TestReproduceHasAllParts(t *testing.T) {
	cases, err := zoo.Cases()
	require.NoError(t, err)
	b, _ := tiny("")
	seen, parts := map[string]string{}, map[string]bool{}
	for _, part := range b.sections(cases) {
		rows, err := part.rows()
		require.NoError(t, err)
		names := map[string]bool{}
		for _, row := range rows {
			if row.hidden {
				continue
			}
			require.NotContains(t, seen, row.figure)
			seen[row.figure], names[row.figure] = part.name, true
			ways := 0
			for _, asks := range []bool{row.cell != nil, len(row.runs) > 0, row.run != nil, row.rest != nil} {
				if asks {
					ways++
				}
			}
			require.Equal(t, 1, ways, "%s is measured in one way", row.figure)
		}
		for _, name := range promised()[part.name] {
			require.Contains(t, names, name)
		}
		parts[part.name] = true
	}
	require.Len(t, parts, len(promised()), "a part of which nothing is promised")
}

// TestReproduceMeasuresEveryRow runs the parts that are quick, on a twentieth of the time: all their rows become figures, beside what is published.
func TestReproduceMeasuresEveryRow(t *testing.T) {
	cases, err := zoo.Cases()
	require.NoError(t, err)
	for part, shows := range map[string]string{"table2": "1358", "budget": "5750", "overload and idle": "load125"} {
		b, out := tiny(part)
		r := &figure.Report{File: "reproduce", Command: "make reproduce"}
		require.NoError(t, b.reproduce(t.Context(), r))
		require.NoError(t, r.Validate())
		require.Contains(t, out.String(), shows)
		measured := figuresOf(r)
		for _, section := range b.sections(cases) {
			if section.name != part {
				continue
			}
			rows, err := section.rows()
			require.NoError(t, err)
			require.NotEmpty(t, rows)
			for _, row := range rows {
				require.True(t, row.hidden || measured.have(row.figure), row.figure)
			}
		}
	}
	b, _ := tiny("fig99")
	require.ErrorContains(t, b.reproduce(t.Context(), &figure.Report{}), "fig99")
}

// TestAroundThePeak: the relation of the bad and the idle share to load, as Symphony's section 3.5 has it, is what ours are set beside.
func TestAroundThePeak(t *testing.T) {
	b, _ := tiny("overload")
	r := &figure.Report{}
	require.NoError(t, b.reproduce(t.Context(), r))
	note := map[string]string{}
	for _, f := range r.Figures {
		note[f.Name] = f.Note
	}
	f := figuresOf(r)
	for _, d := range []string{"deferred", "adaptive"} {
		n := "resnet50." + d
		require.Contains(t, note["overload."+n+".load125.bad"], "paper 0.2;")
		require.Contains(t, note["idle."+n+".load25.share"], "paper 0.75;")
		require.Greater(t, f["idle."+n+".load25.share"], f["idle."+n+".load75.share"])
		require.Less(t, f["idle."+n+".load25.gpus_used"], 8.)
	}
}
