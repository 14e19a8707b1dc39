// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"strings"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	// Path is the key, as in models.resnet50.slo; empty for the whole file.
	Path string
	// Line in the file; 0 where the value does not come from a file.
	Line int
	Text string
}

// InvalidError is everything that is wrong with a configuration.
type InvalidError struct {
	// File is the name of the file, empty where there is none.
	File     string
	Problems []Problem
}

// Error lists the problems, one a line.
func (e *InvalidError) Error() string {
	var b strings.Builder
	name := e.File
	if name == "" {
		name = "configuration"
	}
	fmt.Fprintf(&b, "%s: %d problem", name, len(e.Problems))
	if len(e.Problems) != 1 {
		b.WriteByte('s')
	}
	for _, p := range e.Problems {
		b.WriteString("\n  ")
		if p.Line > 0 {
			fmt.Fprintf(&b, "line %d: ", p.Line)
		}
		if p.Path != "" {
			b.WriteString(p.Path + ": ")
		}
		b.WriteString(p.Text)
	}
	return b.String()
}

// named puts the file's name into an *InvalidError.
func named(file string, err error) error {
	var invalid *InvalidError
	if errors.As(err, &invalid) {
		invalid.File = file
	}
	return err
}

// suggest ends an error about an unknown word with the one probably meant, or
// with all of them.
func suggest(word string, known []string) string {
	best, distance := "", 4
	for _, k := range known {
		if d := editDistance(strings.ToLower(word), strings.ToLower(k)); d < distance {
			best, distance = k, d
		}
	}
	// Short words are a few edits away from any other: half of one must stay.
	if best != "" && distance <= min(3, len(word)/2) {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return "; known are " + strings.Join(known, ", ")
}

// editDistance is Levenshtein's.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
