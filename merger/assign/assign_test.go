// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package assign_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/merger/assign"
)

func TestMaximal(t *testing.T) {
	for _, c := range []struct {
		name    string
		weights [][]float64
		want    []int
	}{
		{"nothing", nil, []int{}},
		{"one", [][]float64{{1}}, []int{0}},
		{"nothing in common", [][]float64{{0, 0}, {0, 0}}, []int{-1, -1}},
		{"greed is not best", [][]float64{{10, 9}, {9, 1}}, []int{1, 0}},
		{"more rows", [][]float64{{1}, {3}, {2}}, []int{-1, 0, -1}},
		{"more columns", [][]float64{{1, 3, 2}}, []int{1}},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, assign.Maximal(c.weights)) })
	}
}

// Against trying all assignments.
func TestNoOtherAssignmentIsHeavier(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, m := rapid.IntRange(0, 6).Draw(t, "rows"), rapid.IntRange(0, 6).Draw(t, "columns")
		weights := make([][]float64, n)
		for i := range weights {
			weights[i] = make([]float64, m)
			for j := range weights[i] {
				weights[i][j] = float64(rapid.IntRange(-2, 9).Draw(t, "weight"))
			}
		}
		got := assign.Maximal(weights)
		sum, taken := 0.0, map[int]bool{}
		for i, j := range got {
			if j >= 0 {
				require.False(t, taken[j], "column %d twice", j)
				require.Positive(t, weights[i][j])
				taken[j] = true
				sum += weights[i][j]
			}
		}
		var best func(i int, taken map[int]bool) float64
		best = func(i int, taken map[int]bool) float64 {
			if i == n {
				return 0
			}
			most := best(i+1, taken)
			for j := range m {
				if !taken[j] && weights[i][j] > 0 {
					taken[j] = true
					most = max(most, weights[i][j]+best(i+1, taken))
					delete(taken, j)
				}
			}
			return most
		}
		require.InDelta(t, best(0, map[int]bool{}), sum, 1e-9)
	})
}
