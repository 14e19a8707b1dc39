// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// number is what the cell beside a figure's name begins with, with its spread if it has one:
// 5,514 (5,487 to 5,542) req/s, 4.9 million, 0.93, below 0.
var number = regexp.MustCompile(`^(below 0|-?[0-9][0-9,]*(?:\.([0-9]+))?)( million)?( \([^)]* to [^)]*\))?`)

// Cite renews a page: where a row of a table names a figure in a cell of its own, as in `sim.24x64.requests_per_second`, the cell
// after it begins with the figure's value, and its spread where it has one, with as many decimals as were there. A figure
// below zero is written as "below 0". It fails on names that no report has, and on cells that do not begin with a number.
func Cite(page string, reports []*Report) (string, error) {
	known := map[string]Figure{}
	for _, r := range reports {
		for _, f := range r.Figures {
			known[f.Name] = f
		}
	}
	var b strings.Builder
	for line := range strings.Lines(page) {
		cells := strings.Split(line, "|")
		for i := 1; i+1 < len(cells); i++ {
			name, begins := strings.CutPrefix(strings.TrimSpace(cells[i]), "`")
			name, ends := strings.CutSuffix(name, "`")
			if !begins || !ends || !strings.Contains(name, ".") {
				continue
			}
			f, ok := known[name]
			if !ok {
				return "", fmt.Errorf("a table names %s, which no results file has: measure it, or take the row out", name)
			}
			cell := strings.TrimSpace(cells[i+1])
			found := number.FindStringSubmatchIndex(cell)
			if found == nil {
				return "", fmt.Errorf("the cell after %s is %q, and does not begin with a number", name, cell)
			}
			cells[i+1] = " " + cellOf(f, cell, found) + cell[found[1]:] + " "
		}
		b.WriteString(strings.Join(cells, "|"))
	}
	return b.String(), nil
}

// cellOf writes a figure as the cell has it now, as found by number.
func cellOf(f Figure, cell string, found []int) string {
	if f.Value < 0 {
		return "below 0"
	}
	decimals, scale, unit := 0, 1., ""
	if found[4] >= 0 {
		decimals = found[5] - found[4]
	}
	if strings.HasPrefix(cell, "below") {
		decimals = 2
	}
	if found[6] >= 0 {
		scale, unit = 1e6, " million"
	}
	text := grouped(f.Value/scale, decimals) + unit
	if found[8] >= 0 && f.Runs > 1 {
		text += " (" + grouped(f.Low/scale, decimals) + " to " + grouped(f.High/scale, decimals) + ")"
	}
	return text
}

// grouped is a number with commas between its thousands.
func grouped(v float64, decimals int) string {
	text := strconv.FormatFloat(math.Abs(v), 'f', decimals, 64)
	whole, part, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if part != "" {
		whole += "." + part
	}
	if v < 0 {
		return "-" + whole
	}
	return whole
}
