// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure_test

import (
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
)

// cited is a number in a table's cell, with its spread if it has one: 5,514 (5,487 to 5,542) req/s, 4.9 million, 0.93.
var cited = regexp.MustCompile(`^(-?[0-9][0-9,]*(?:\.[0-9]+)?)( million)?(?: \((-?[0-9][0-9,.]*) to (-?[0-9][0-9,.]*)\))?`)

// TestPagesCiteWhatWasMeasured: a table row that names a figure has its value, and its spread if any, as the results have them, rounded.
func TestPagesCiteWhatWasMeasured(t *testing.T) {
	reports, err := figure.Read("../../results")
	require.NoError(t, err)
	known := map[string]figure.Figure{}
	for _, r := range reports {
		for _, f := range r.Figures {
			known[f.Name] = f
		}
	}
	for page, least := range map[string]int{"../../README.md": 15, "../../docs/performance.md": 8} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		rows := 0
		for line := range strings.Lines(string(text)) {
			cells := strings.Split(line, "|")
			for i := 1; i+1 < len(cells); i++ {
				name, ok := strings.CutPrefix(strings.TrimSpace(cells[i]), "`")
				name, end := strings.CutSuffix(name, "`")
				if !ok || !end || !strings.Contains(name, ".") {
					continue
				}
				f, ok := known[name]
				require.True(t, ok, "%s: no results file has %s", page, name)
				said := strings.TrimSpace(cells[i+1])
				rows++
				if said == "below 0" {
					require.Negative(t, f.Value, "%s: %s", page, name)
					continue
				}
				part := cited.FindStringSubmatch(said)
				require.NotNil(t, part, "%s: %s: %q is no number", page, name, said)
				scale := 1.
				if part[2] != "" {
					scale = 1e6
				}
				require.True(t, rounds(part[1], f.Value/scale), "%s: %s is %g, not %s", page, name, f.Value, part[1])
				if part[3] != "" {
					require.True(t, rounds(part[3], f.Low/scale) && rounds(part[4], f.High/scale), "%s: %s is from %g to %g, not %s", page, name, f.Low, f.High, said)
				}
			}
		}
		require.GreaterOrEqual(t, rows, least, "%s: its tables were not found", page)
	}
}

// rounds reports whether a text is a value, rounded to as many decimals as the text has.
func rounds(text string, value float64) bool {
	text = strings.ReplaceAll(text, ",", "")
	v, err := strconv.ParseFloat(text, 64)
	_, decimals, _ := strings.Cut(text, ".")
	return err == nil && math.Abs(v-value) <= .5000001*math.Pow10(-len(decimals))
}
