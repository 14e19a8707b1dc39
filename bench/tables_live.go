// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// overlapTable has what the best of Triton's settings and Conch hold, by the part of an execution's fixed cost that runs beside others.
func overlapTable(f byName) string {
	var rows [][]string
	for percent := 0; percent <= 100; percent += 10 { // those that were not measured are left out
		name := fmt.Sprintf("live.overlap.o%d.", percent)
		rows = append(rows, []string{fmt.Sprintf("%d%%", percent), f.cell(name+"triton.goodput", 0), f.cell(name+"conch.goodput", 0), f.cell(name+"goodput_ratio", 2), f.cell(name+"two.goodput", 0), f.cell(name+"two_ratio", 2)})
	}
	return write([]string{"of the fixed cost beside other executions", "Triton, the best of its settings here, req/s", "Conch, req/s", "over Triton", "Conch, two executions at once, req/s", "over Triton"}, rows)
}

// mixesTable has, for each mix, what `tritonctl advise` said before it was measured, and what was measured then.
func mixesTable(f byName) string {
	var rows [][]string
	for number := range mixSets[len(mixSets)-1].to {
		said, name := fmt.Sprintf("advise.mix%d.", number), fmt.Sprintf("mix.mix%d.", number)
		if _, measured := f[name+"triton.goodput"]; !measured {
			continue
		}
		row := []string{fmt.Sprintf("mix%d", number), f.cell(name+"triton.goodput", 0), f.cell(name+"each.goodput", 0)}
		for _, of := range mixSides {
			answer := "no answer"
			if asked := f[said+"answered"]; asked.Value == 1 {
				answer = "no ratio"
			}
			if _, given := f[said+of.name+".predicted"]; given {
				answer = fmt.Sprintf("%s (%s to %s)", f.cell(said+of.name+".predicted", 2), f.cell(said+of.name+".predicted_low", 2), f.cell(said+of.name+".predicted_high", 2))
			}
			row = append(row, f.cell(name+of.name+".goodput", 0), f.cell(name+of.name+".goodput_ratio", 2), answer)
		}
		rows = append(rows, row)
	}
	return write([]string{"load", "one Triton for all GPUs, req/s", "a Triton for each, req/s", "Conch attached to the one, req/s", "over the one", "advised", "Conch's own servers, req/s", "over the one", "advised"}, rows)
}

// hopTable has what a replica that hands on adds to a call.
func hopTable(f byName) string {
	var rows [][]string
	for _, call := range calls {
		lone, many := "hop."+call[1]+".c1.", "hop."+call[1]+".c64."
		rows = append(rows, []string{call[0], f.cell(lone+"added_p50_us", 0), f.cell(many+"replica_cpu_us", 0), f.cell(many+"owner_cpu_us", 0), f.cell(many+"throughput_ratio", 2)})
	}
	return write([]string{"", "one caller, added to the median, us", "64 callers: the replica's processor time, us", "the owner's, us", "calls per second over those of the owner alone"}, rows)
}

// ownersTable has what several owners hold over what one holds.
func ownersTable(f byName) string {
	head := []string{"owners", "median", "least", "most"}
	for _, gpus := range ownerSizes {
		head = append(head, fmt.Sprintf("%d GPUs", gpus))
	}
	var rows [][]string
	for _, parts := range ownerParts {
		name := fmt.Sprintf("owners.of%d.", parts)
		row := []string{fmt.Sprint(parts), f.cell(name+"median", 2), f.cell(name+"worst", 2), f.cell(name+"best", 2)}
		for _, gpus := range ownerSizes {
			row = append(row, f.cell(fmt.Sprintf("%sgpus%d", name, gpus), 2))
		}
		rows = append(rows, row)
	}
	return write(head, rows)
}
