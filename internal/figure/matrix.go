// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"fmt"
	"strings"
)

// shades of a cell by its part of the best of its row.
var shades = [...]struct {
	from float64
	sign string
}{{0.995, "█"}, {0.95, "▓"}, {0.8, "▒"}, {0, "░"}}

// matrix renders figures named FILE.ROW.COLUMN.WHAT as one row each: a heat map in characters.
func (r *Report) matrix(b *strings.Builder) {
	type row struct {
		name  string
		cells map[string]float64
	}
	var rows []*row
	var columns []string
	known := map[string]*row{}
	for _, f := range r.Figures {
		parts := strings.Split(strings.TrimPrefix(f.Name, r.File+"."), ".")
		if len(parts) < 3 {
			continue
		}
		name, column := strings.Join(parts[:len(parts)-2], "."), parts[len(parts)-2]
		if known[name] == nil {
			known[name] = &row{name: name, cells: map[string]float64{}}
			rows = append(rows, known[name])
		}
		if len(rows) == 1 {
			columns = append(columns, column)
		}
		known[name].cells[column] = f.Value
	}
	fmt.Fprintf(b, "A row is a load, a column what is compared; %s. █ is within 0.5%% of the best of its row, ▓ within 5%%, ▒ within 20%%, ░ below.\n\n", r.Figures[0].Unit)
	fmt.Fprintf(b, "| | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---:|", len(columns)))
	for _, row := range rows {
		best := 0.0
		for _, v := range row.cells {
			best = max(best, v)
		}
		fmt.Fprintf(b, "| `%s` |", row.name)
		for _, column := range columns {
			v := row.cells[column]
			for _, s := range shades {
				if v >= s.from*best {
					fmt.Fprintf(b, " %s %s |", s.sign, Number(v))
					break
				}
			}
		}
		b.WriteByte('\n')
	}
	b.WriteString("\n| part of the best of all others | rows |\n|---|---:|\n")
	summary(b, columns, func(yield func(map[string]float64)) {
		for _, row := range rows {
			yield(row.cells)
		}
	})
}

// summary counts in how many rows the first column is how near to the best of the others.
func summary(b *strings.Builder, columns []string, rows func(func(map[string]float64))) {
	counts := make([]int, len(shades))
	all := 0
	rows(func(cells map[string]float64) {
		best := 0.0
		for _, column := range columns[1:] {
			best = max(best, cells[column])
		}
		for i, s := range shades {
			if cells[columns[0]] >= s.from*best {
				counts[i]++
				break
			}
		}
		all++
	})
	for i, s := range shades {
		fmt.Fprintf(b, "| %s %s at least %s | %d of %d |\n", s.sign, columns[0], Number(s.from), counts[i], all)
	}
}
