// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"time"

	"github.com/conch-serving/conch/tritonctl/output"
)

// Draw prints a state as tables: models, GPUs with their partitions, what waits, and the last events.
func Draw(t *output.Table, s *State) {
	all := lists()
	for tab := range tabs {
		table := &all[tab]
		table.set(tab.rows(s, history{}), "")
		if len(table.rows) == 0 {
			continue
		}
		if tab > 0 {
			t.Line("")
		}
		t.Line(tab.String())
		line := func(cell func(column int) any) {
			var cells []any
			for i, c := range table.columns {
				if c.title != "" { // one moment has no history to draw
					cells = append(cells, cell(i))
				}
			}
			t.Row(cells...)
		}
		line(func(i int) any { return table.columns[i].title })
		for _, r := range table.rows {
			line(func(i int) any { return output.Clean(r.cells[i].text) })
		}
	}
	t.Line("")
	t.Line("at " + s.Time.Local().Format(time.DateTime))
}
