// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
)

func TestBlocksAreWrittenFromFigures(t *testing.T) {
	r := &figure.Report{}
	r.AddRuns("live.1on4.conch.goodput", []float64{470, 480}, "req/s", "")
	r.Add("live.8on4.conch.goodput", 260, "req/s", "")
	r.Add("live.8on4.goodput_ratio", 2.384, "ratio", "")
	r.Add("live.8on4.triton.dedicated.goodput", 120, "req/s", "")
	const page = "before\n<!-- table live -->\nold\n<!-- end -->\nafter\n"
	got, err := rewriteBlocks(page, []*figure.Report{r})
	require.NoError(t, err)
	require.Equal(t, `before
<!-- table live -->
|  | one model on four GPUs (`+"`live.1on4`"+`) | eight models on four GPUs (`+"`live.8on4`"+`) |
|---|---:|---:|
| Triton, dedicated GPUs | – | 120 |
| Conch | 475 (470 to 480) | 260 |
| Conch over the best of Triton (`+"`goodput_ratio`"+`) | – | 2.38 |
<!-- end -->
after
`, got)
	again, err := rewriteBlocks(got, []*figure.Report{r})
	require.NoError(t, err)
	require.Equal(t, got, again)
	_, err = rewriteBlocks("<!-- table other -->\n<!-- end -->", nil)
	require.ErrorContains(t, err, `no table is called "other"`)
}

// TestTheTablesOfPagesAreThoseOfTheResults: `make results` writes them.
func TestTheTablesOfPagesAreThoseOfTheResults(t *testing.T) {
	reports, err := figure.Read("../results")
	require.NoError(t, err)
	for _, page := range []string{"../docs/comparison.md", "../docs/performance.md"} {
		text := read(t, page)
		require.Regexp(t, block, text)
		renewed, err := rewriteBlocks(text, reports)
		require.NoError(t, err)
		require.Equal(t, renewed, text, "%s: `make results` renews it", page)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}
