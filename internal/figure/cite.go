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

// marked is a number in a sentence or a cell with the name of its figure behind it, in a comment that readers of the rendered page do not see:
// 1.56<!-- proxy.triton.600KB.c64.shared_memory -->, 98%<!-- NAME -->.
var marked = regexp.MustCompile(`(below 0|-?(?:[0-9][0-9,]*)?(?:\.([0-9]+))?)( million)?(%)?( \([^()]* to [^()]*\))?<!-- ([A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)+) -->`)

// Cite renews a page: where a row of a table names a figure in a cell of its own, as in `sim.24x64.requests_per_second`, the cell
// after it begins with the figure's value; and anywhere a number that has the name of its figure in a comment right behind it,
// as in 1.56<!-- proxy.triton.600KB.c64.shared_memory -->, is that value. A number keeps its decimals and its form: with its spread
// if it had one, in millions, as a percentage of a ratio. A figure below zero in a cell is written as "below 0". Cite fails on
// names that no report has though their first part is that of a figure, and on cells and comments without a number.
func Cite(page string, reports []*Report) (string, error) {
	known, first := map[string]Figure{}, map[string]bool{}
	for _, r := range reports {
		for _, f := range r.Figures {
			known[f.Name] = f
			head, _, _ := strings.Cut(f.Name, ".")
			first[head] = true
		}
	}
	var b strings.Builder
	for line := range strings.Lines(page) {
		cells := strings.Split(line, "|")
		for i := 1; i+1 < len(cells); i++ {
			name, ok := namesFigure(cells[i])
			if !ok {
				continue
			}
			f, ok := known[name]
			if head, _, _ := strings.Cut(name, "."); !ok && !first[head] {
				continue // a key of a configuration, a file
			}
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
	var wrong error
	text := marked.ReplaceAllStringFunc(b.String(), func(old string) string {
		m := marked.FindStringSubmatch(old)
		f, ok := known[m[6]]
		switch {
		case !ok:
			wrong = fmt.Errorf("a comment names %s, which no results file has: measure it, or take the sentence out", m[6])
			return old
		case m[1] == "" || m[1] == "-":
			wrong = fmt.Errorf("the comment that names %s has no number before it", m[6])
			return old
		}
		scale := 1.
		if m[3] != "" {
			scale = 1e6
		}
		if m[4] != "" && f.Unit != "%" {
			scale = .01
		}
		return written(f, len(m[2]), scale, m[3]+m[4], m[5] != "") + "<!-- " + m[6] + " -->"
	})
	return text, wrong
}

// namesFigure is the name of a figure that a cell has in backquotes and nothing else.
func namesFigure(cell string) (string, bool) {
	name, begins := strings.CutPrefix(strings.TrimSpace(cell), "`")
	name, ends := strings.CutSuffix(name, "`")
	return name, begins && ends && strings.Contains(name, ".")
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
	return written(f, decimals, scale, unit, found[8] >= 0)
}

// SpreadRuns is how many runs a figure needs for its least and greatest to stand beside it: of five runs they are an interval that holds the
// median of all runs in 94 of 100 cases (1 - 2/2^5); of two or three they say next to nothing.
const SpreadRuns = 5

// written is a figure with as many decimals, in a unit of the given scale, and its spread if that is asked for and there are runs enough.
func written(f Figure, decimals int, scale float64, unit string, spread bool) string {
	text := grouped(f.Value/scale, decimals) + unit
	if spread && f.Runs >= SpreadRuns {
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
