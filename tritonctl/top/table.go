// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/conch-serving/conch/tritonctl/output"
)

// tone is what a cell means, for its colour. Every tone is said in words too.
type tone int

const (
	plain tone = iota
	soft
	good
	warn
	bad
)

// column of a table. The one of width 0 takes the room that the others leave.
type column struct {
	title string
	width int
	right bool
}

// cell is what is shown, and by what it is sorted: a string or a float64.
type cell struct {
	text string
	sort any
	tone tone
}

// row of a table.
type row struct {
	// key stays the same while other rows come and go: the selection follows it.
	key   string
	cells []cell
	// under is the key of a row that this one stays below, whatever the order.
	under string
}

// table is a list of rows of which one is selected.
type table struct {
	columns []column
	// by is the column that rows are in order of, falling if down.
	by   int
	down bool
	// selected is the key of a row; top the first row that is shown.
	selected string
	top      int

	rows []row
}

// set puts rows in order, those that match a filter.
func (t *table) set(rows []row, filter string) {
	filter = strings.ToLower(filter)
	matches := func(r row) bool {
		return filter == "" || slices.ContainsFunc(r.cells, func(c cell) bool { return strings.Contains(strings.ToLower(c.text), filter) })
	}
	keep := map[string]bool{}
	for _, r := range rows {
		if matches(r) {
			keep[r.key] = true
			if r.under != "" {
				keep[r.under] = true // what it belongs to is shown with it
			}
		}
	}
	below := map[string][]row{}
	t.rows = nil
	for _, r := range rows {
		switch {
		case !keep[r.key]:
		case r.under != "":
			below[r.under] = append(below[r.under], r)
		default:
			t.rows = append(t.rows, r)
		}
	}
	order := func(a, b row) int {
		n := compare(a.cells[t.by].sort, b.cells[t.by].sort)
		if t.down {
			n = -n
		}
		return cmp.Or(n, cmp.Compare(a.key, b.key))
	}
	slices.SortStableFunc(t.rows, order)
	for i := 0; i < len(t.rows); i++ {
		own := below[t.rows[i].key]
		slices.SortStableFunc(own, order)
		t.rows = slices.Insert(t.rows, i+1, own...)
		i += len(own)
	}
	if t.index() < 0 && len(t.rows) > 0 {
		t.selected = t.rows[min(t.top, len(t.rows)-1)].key
	}
}

func compare(a, b any) int {
	x, isNumber := a.(float64)
	y, isToo := b.(float64)
	if isNumber && isToo {
		return cmp.Compare(x, y)
	}
	s, _ := a.(string)
	r, _ := b.(string)
	return cmp.Compare(s, r)
}

func (t *table) index() int {
	return slices.IndexFunc(t.rows, func(r row) bool { return r.key == t.selected })
}

// move selects another row.
func (t *table) move(by int) {
	if len(t.rows) > 0 {
		t.selected = t.rows[max(0, min(len(t.rows)-1, max(0, t.index())+by))].key
	}
}

// next orders by the next column.
func (t *table) next(by int) {
	t.by = (t.by + by + len(t.columns)) % len(t.columns)
	t.down = t.columns[t.by].right
}

// view draws the table in a width and height.
func (t *table) view(s styles, width, height int) string {
	widths := t.widths(width)
	heads := make([]string, len(t.columns))
	for i, c := range t.columns {
		title := c.title
		if i == t.by && title != "" {
			title = map[bool]string{false: "↑", true: "↓"}[t.down] + title
		}
		heads[i] = fit(title, widths[i], c.right)
	}
	lines := []string{s.head.Render(fit(join(heads, widths), width, false))}
	height = max(1, height-1)
	if at := t.index(); at >= 0 {
		t.top = max(min(t.top, at), at-height+1)
	}
	t.top = max(0, min(t.top, len(t.rows)-height))
	for i := t.top; i < min(len(t.rows), t.top+height); i++ {
		cells := make([]string, len(t.columns))
		for k, c := range t.rows[i].cells {
			cells[k] = fit(c.text, widths[k], t.columns[k].right)
			if t.rows[i].key != t.selected {
				cells[k] = s.tones[c.tone].Render(cells[k])
			}
		}
		line := join(cells, widths)
		if t.rows[i].key == t.selected {
			line = s.selected.Render(fit(line, width, false))
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// widths gives what is left to the column of width 0, and none to the last columns where there is no room for them.
func (t *table) widths(width int) []int {
	const least = 10 // of the column of width 0
	all, used, wide := make([]int, len(t.columns)), least+1, 0
	for i, c := range t.columns {
		switch {
		case c.width == 0:
			wide = i
		case used+c.width <= width:
			all[i] = c.width
			used += c.width + 1
		}
	}
	all[wide] = max(0, min(width, width-used+1+least))
	return all
}

// join puts the cells that have a width beside each other.
func join(cells []string, widths []int) string {
	var kept []string
	for i, c := range cells {
		if widths[i] > 0 {
			kept = append(kept, c)
		}
	}
	return strings.Join(kept, " ")
}

// fit makes a text exactly so wide. Control characters are taken out: a name cannot steer the terminal.
func fit(text string, width int, right bool) string {
	text = ansi.Truncate(output.Clean(text), width, "…")
	gap := strings.Repeat(" ", max(0, width-lipgloss.Width(text)))
	if right {
		return gap + text
	}
	return text + gap
}

// blocks are the heights that are drawn, from the lowest.
var blocks = []rune("▁▂▃▄▅▆▇█")

// spark is the last values as blocks. Top is the value of a full block; 0 takes the largest of them.
func spark(values []float64, top float64) string {
	const width = 10
	values = values[max(0, len(values)-width):]
	if top <= 0 {
		for _, v := range values {
			top = max(top, v)
		}
	}
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", width-len(values)))
	for _, v := range values {
		level := 0
		if top > 0 {
			level = min(len(blocks)-1, int(v/top*float64(len(blocks))))
		}
		b.WriteRune(blocks[max(0, level)])
	}
	return b.String()
}
