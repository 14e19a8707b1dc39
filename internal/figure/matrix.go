// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"fmt"
	"strings"
)

// parts of the best of a row that have marks of their own.
var parts = [...]float64{0.995, 0.95, 0.8, 0}

// matrix says of figures named FILE.ROW.COLUMN.WHAT in how many rows the first column is how near to the best of the others.
func (r *Report) matrix(b *strings.Builder) {
	type row struct {
		name  string
		cells map[string]float64
	}
	var rows []*row
	var columns []string
	known := map[string]*row{}
	for _, f := range r.Figures {
		words := strings.Split(strings.TrimPrefix(f.Name, r.File+"."), ".")
		if len(words) < 3 {
			continue
		}
		name, column := strings.Join(words[:len(words)-2], "."), words[len(words)-2]
		if known[name] == nil {
			known[name] = &row{name: name, cells: map[string]float64{}}
			rows = append(rows, known[name])
		}
		if len(rows) == 1 {
			columns = append(columns, column)
		}
		known[name].cells[column] = f.Value
	}
	fmt.Fprintf(b, "%d loads, %d disciplines (%s):\n\n| part of the best of all others | loads |\n|---|---:|\n", len(rows), len(columns), strings.Join(columns, ", "))
	summary(b, columns, func(yield func(map[string]float64)) {
		for _, row := range rows {
			yield(row.cells)
		}
	})
}

// summary counts in how many rows the first column is how near to the best of the others.
func summary(b *strings.Builder, columns []string, rows func(func(map[string]float64))) {
	counts := make([]int, len(parts))
	all := 0
	rows(func(cells map[string]float64) {
		best := 0.0
		for _, column := range columns[1:] {
			best = max(best, cells[column])
		}
		for i, part := range parts {
			if cells[columns[0]] >= part*best {
				counts[i]++
				break
			}
		}
		all++
	})
	for i, part := range parts {
		fmt.Fprintf(b, "| %s at least %s | %d of %d |\n", columns[0], Number(part), counts[i], all)
	}
}
