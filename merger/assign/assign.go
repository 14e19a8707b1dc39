// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package assign solves the assignment problem: which of the operators of two graphs to merge with each other, so that the sum of what
// they share is largest (USHER, section 3.4.2, which names the Hungarian algorithm).
//
// It is 60 lines of its own: gonum has no solver for it, and the Go packages that have one solve integer costs or square matrices, and
// have had no release in years.
package assign

import "math"

// Maximal matches rows of the matrix with columns, each at most once, so that the sum of the matched weights is maximal. Weights that
// are not above 0 are never matched. The result has for each row its column or -1. It is the Hungarian algorithm in the form of
// shortest augmenting paths: O(n*n*m).
func Maximal(weights [][]float64) []int {
	n := len(weights)
	m := 0
	for _, row := range weights {
		m = max(m, len(row))
	}
	match := make([]int, n)
	for i := range match {
		match[i] = -1
	}
	if n == 0 || m == 0 {
		return match
	}
	// A column of cost 0 for each row stands for "not matched", so that every row finds a column.
	columns := m + n
	cost := func(i, j int) float64 {
		if j < len(weights[i]) && weights[i][j] > 0 {
			return -weights[i][j]
		}
		return 0
	}
	rowPrice, columnPrice := make([]float64, n+1), make([]float64, columns+1)
	owner, way := make([]int, columns+1), make([]int, columns+1) // columns count from 1, 0 is the start of a path
	for i := 1; i <= n; i++ {
		owner[0] = i
		least := make([]float64, columns+1)
		for j := range least {
			least[j] = math.Inf(1)
		}
		used := make([]bool, columns+1)
		at := 0
		for {
			used[at] = true
			row, delta, next := owner[at], math.Inf(1), 0
			for j := 1; j <= columns; j++ {
				if used[j] {
					continue
				}
				if d := cost(row-1, j-1) - rowPrice[row] - columnPrice[j]; d < least[j] {
					least[j], way[j] = d, at
				}
				if least[j] < delta {
					delta, next = least[j], j
				}
			}
			for j := range used {
				if used[j] {
					rowPrice[owner[j]] += delta
					columnPrice[j] -= delta
				} else {
					least[j] -= delta
				}
			}
			if at = next; owner[at] == 0 {
				break
			}
		}
		for at != 0 {
			owner[at] = owner[way[at]]
			at = way[at]
		}
	}
	for j := 1; j <= m; j++ {
		if i := owner[j] - 1; i >= 0 && j-1 < len(weights[i]) && weights[i][j-1] > 0 {
			match[i] = j - 1
		}
	}
	return match
}
