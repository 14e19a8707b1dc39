// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
)

// The plot is well-formed, is the same of the same figures, has every policy and scenario that was measured, and strikes out what is not held.
func TestThePlotHasAllThatWasMeasured(t *testing.T) {
	r := &figure.Report{File: "placements"}
	for i, p := range placements() {
		r.Add("placements.azure."+p.name+".held", 100+float64(i), "req/s", "")
		r.Add("placements.azure."+p.name+".cost", 10+float64(i), "$/h", "")
		r.Add("placements.azure."+p.name+".cost_bad", map[bool]float64{true: 3}[i == 0], "%", "")
		r.Add("placements.azure."+p.name+".loads", float64(i), "loads", "")
	}
	reports := []*figure.Report{r}
	dir := t.TempDir()
	require.NoError(t, drawPlacements(dir, reports))
	text, err := os.ReadFile(filepath.Join(dir, plotName))
	require.NoError(t, err)
	require.Equal(t, string(text), byNameOf(reports).plot())
	d := xml.NewDecoder(strings.NewReader(string(text)))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	for _, p := range placements() {
		require.Equal(t, 3, strings.Count(string(text), ">"+strings.TrimPrefix(p.name, "gpulet_")+"<"), "%s has a column in every panel", p.name)
	}
	require.Equal(t, 3, strings.Count(string(text), ">azure<"))
	require.NotContains(t, string(text), "scen1")
	require.Equal(t, 1, strings.Count(string(text), "line-through"))

	empty := t.TempDir()
	require.NoError(t, drawPlacements(empty, nil))
	require.NoFileExists(t, filepath.Join(empty, plotName))
}

// The plot beside the results is that of the results.
func TestThePlotIsOfTheResults(t *testing.T) {
	reports, err := figure.Read("../results")
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join("../results", plotName))
	require.NoError(t, err, "`make results` draws it")
	require.Equal(t, byNameOf(reports).plot(), string(text), "`make results` draws it anew")
}
