// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// pipelinesTable has what the named pipelines hold with each rule of deadlines, what they do under overload, how the first rule compares on the loads that a seed
// drew, and how far Triton and Conch are from what no scheduler exceeds.
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
	var ceilings, over [][]string
	for _, l := range namedPipelines() {
		name := "pipeline." + l.name + "."
		ceilings = append(ceilings, []string{l.name, f.cell(name+"triton.goodput", 0), f.cell(name+stepRules[0]+".goodput", 0), f.cell(name+"ceiling", 0)})
	}
	for _, what := range [][2]string{
		{"over_triton", "Conch over Triton"}, {"ceiling_over_triton", "what no scheduler exceeds, over Triton"}, {"of_ceiling", "Conch, of what no scheduler exceeds"},
	} {
		name := "pipeline.drawn." + what[0] + "."
		double := "-"
		if what[0] != "of_ceiling" {
			double = f.cell(name+"double", 0)
		}
		over = append(over, []string{what[1], f.cell(name+"median", 2), f.cell(name+"least", 2), f.cell(name+"most", 2), double})
	}
	return table("req/s held", "goodput") + "\n" + table(fmt.Sprintf("good req/s at %g times what `%s` holds", pipelineOverload, stepRules[0]), "overload") + "\n" +
		write([]string{fmt.Sprintf("%d drawn loads", drawnPipelines), "median", "least", "most", "loads ahead by 3%", "loads behind by 3%"}, drawn) + "\n" +
		write([]string{"req/s held", "Triton, best of six settings", "Conch", "no scheduler exceeds"}, ceilings) + "\n" +
		write([]string{fmt.Sprintf("%d drawn loads, no direct requests", drawnPipelines/2), "median", "least", "most", "on how many 2 or more"}, over)
}
