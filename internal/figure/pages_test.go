// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
)

// TestPagesCiteWhatWasMeasured: the tables of these pages have the figures of the results; `make results` writes them.
func TestPagesCiteWhatWasMeasured(t *testing.T) {
	reports, err := figure.Read("../../results")
	require.NoError(t, err)
	for page, named := range map[string]string{"../../README.md": "`live.8on4.goodput_ratio`", "../../docs/schedulability.md": "`schedulability.exact`", "../../docs/comparison.md": "`table2.resnet50.adaptive.goodput`", "../../docs/when-not.md": "`sizing.grpc.cores_per_1000`", "../../docs/estimate.md": "`estimator.zoo.median_error`", "../../docs/performance.md": "`proxy.grpc.1KB.c1.added_to_forwarder`"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		require.Contains(t, string(text), named+" | ", "%s: its table was not found", page)
		renewed, err := figure.Cite(string(text), reports)
		require.NoError(t, err, page)
		require.Equal(t, strings.Split(renewed, "\n"), strings.Split(string(text), "\n"), "%s: `make results` renews it", page)
	}
}

// TestCite: values and spreads take the form of those that they replace.
func TestCite(t *testing.T) {
	reports := []*figure.Report{{Figures: []figure.Figure{
		{Name: "a.goodput", Value: 5514.4, Low: 987.2, High: 12345.6, Runs: 3},
		{Name: "a.rate", Value: 7_449_000, Low: 4_810_000, High: 7_600_000, Runs: 5},
		{Name: "a.added", Value: -.2},
		{Name: "a.ratio", Value: .126},
	}}}
	for _, c := range []struct{ name, was, want string }{
		{"spread and unit", "| goodput | `a.goodput` | 1 (1 to 1) req/s |\n", "| goodput | `a.goodput` | 5,514 (987 to 12,346) req/s |\n"},
		{"millions", "| `a.rate` | 1.0 million (1.0 to 2.0) | x |", "| `a.rate` | 7.4 million (4.8 to 7.6) | x |"},
		{"negative", "| `a.added` | 0.44 | 1.5 |", "| `a.added` | below 0 | 1.5 |"},
		{"no longer negative", "| `a.ratio` | below 0 | 1.5 |", "| `a.ratio` | 0.13 | 1.5 |"},
		{"one run has no spread", "| `a.ratio` | 0.2 (0.1 to 0.3) |", "| `a.ratio` | 0.1 |"},
		{"no figure's name", "| `queue` | 1 |\n`a.ratio` 5\n", "| `queue` | 1 |\n`a.ratio` 5\n"},
	} {
		got, err := figure.Cite(c.was, reports)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, got, c.name)
	}
	_, err := figure.Cite("| `a.other` | 1 |", reports)
	require.ErrorContains(t, err, "a.other, which no results file has")
	_, err = figure.Cite("| `a.ratio` | fast |", reports)
	require.ErrorContains(t, err, `the cell after a.ratio is "fast"`)
}
