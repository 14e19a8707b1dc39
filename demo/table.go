// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/conch-serving/conch/internal/rig"
)

// section is a part of the table with a title.
type section struct {
	title string
	lines []line
}

type line struct {
	name string
	rig.Standing
}

// table prints sections one below the other, in the same columns.
func table(w io.Writer, sections []section) {
	const heading, row = "  %-8s %9s %9s %8s %11s %8s %11s %10s\n", "  %-8s %9.0f %9.0f %7.2f%% %10.2f%% %8s %11.2f %9.0f%%   %s\n"
	for i, s := range sections {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s\n", s.title)
		fmt.Fprintf(w, heading, "", "offered/s", "goodput/s", "bad", "worst model", "p99/SLO", "mean batch", "GPUs busy")
		for _, l := range s.lines {
			fmt.Fprintf(w, row, l.name, l.Offered(), l.Goodput(), 100*l.Bad(), 100*l.WorstBad(), p99(l.Trial), l.MeanBatch, 100*l.BusyShare, l.Setup)
		}
	}
}

// p99 is the worst model's 99th percentile in multiples of its SLO. It has none if more than 1% of that model's requests were dropped.
func p99(t *rig.Trial) string {
	ofSLO, answered := t.WorstQuantile(0.99)
	if !answered {
		return "dropped"
	}
	return fmt.Sprintf("%.2f", ofSLO)
}
