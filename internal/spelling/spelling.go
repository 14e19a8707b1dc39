// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package spelling

import "strings"

// Nearest is the known word that a misspelt one was probably meant to be; empty where none is near.
func Nearest(word string, known []string) string {
	best, distance := "", 4
	for _, k := range known {
		if d := editDistance(strings.ToLower(word), strings.ToLower(k)); d < distance {
			best, distance = k, d
		}
	}
	// Short words are a few edits away from any other: half of one must stay.
	if best != "" && distance <= min(3, len(word)/2) {
		return best
	}
	return ""
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
