// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// pipelinesTable has what the named pipelines hold with each rule of deadlines, what they do under overload, and how the first rule compares on the loads that
// a seed drew.
func pipelinesTable(f byName) string {
	table := func(title, what string) string {
		head := []string{title}
		for _, rule := range stepRules {
			head = append(head, "`"+rule+"`")
		}
		var rows [][]string
		for _, l := range namedPipelines() {
			cells := []string{l.name}
			for _, rule := range stepRules {
				cells = append(cells, f.cell("pipeline."+l.name+"."+rule+"."+what, 0))
			}
			rows = append(rows, cells)
		}
		return write(head, rows)
	}
	var drawn [][]string
	for _, what := range []struct{ name, title string }{{"over_", "`%s` over `%s`"}, {"overload_over_", "`%s` over `%s`, overload"}} {
		for _, rule := range stepRules[1:] {
			name := "pipeline.drawn." + what.name + rule + "."
			cells := []string{fmt.Sprintf(what.title, stepRules[0], rule)}
			for _, of := range []string{"median", "worst", "best"} {
				cells = append(cells, f.cell(name+of, 3))
			}
			drawn = append(drawn, append(cells, f.cell(name+"ahead", 0), f.cell(name+"behind", 0)))
		}
	}
	return table("req/s held", "goodput") + "\n" + table(fmt.Sprintf("good req/s at %g times what `%s` holds", pipelineOverload, stepRules[0]), "overload") + "\n" +
		write([]string{fmt.Sprintf("%d drawn loads", drawnPipelines), "median", "least", "most", "loads ahead by 3%", "loads behind by 3%"}, drawn)
}
