// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package submatrix_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/merger/submatrix"
)

func matrix(values [][]int, width int) *bytes.Reader {
	var b []byte
	for _, row := range values {
		for _, v := range row {
			if width == 4 {
				b = binary.LittleEndian.AppendUint32(b, uint32(v)) //nolint:gosec // small
			} else {
				b = binary.LittleEndian.AppendUint16(b, uint16(v)) //nolint:gosec // small
			}
		}
	}
	return bytes.NewReader(b)
}

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b [][]int
		want submatrix.Common
	}{
		{"equal", [][]int{{1, 2}, {3, 4}}, [][]int{{1, 2}, {3, 4}}, submatrix.Common{Rows: []int{0, 1}, Columns: []int{0, 1}, Largest: submatrix.Block{R1: 2, C1: 2}}},
		{"nothing", [][]int{{1, 2}}, [][]int{{3, 4}}, submatrix.Common{}},
		{"a column", [][]int{{1, 2}, {3, 4}}, [][]int{{9, 2}, {9, 4}}, submatrix.Common{Columns: []int{1}, Largest: submatrix.Block{R1: 2, C0: 1, C1: 2}}},
		{
			"a corner", [][]int{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}, [][]int{{0, 0, 0}, {0, 5, 6}, {0, 8, 9}},
			submatrix.Common{Largest: submatrix.Block{R0: 1, R1: 3, C0: 1, C1: 3}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, width := range []int{2, 4} {
				got, err := submatrix.Compare(matrix(c.a, width), matrix(c.b, width), len(c.a), len(c.a[0]), width)
				require.NoError(t, err)
				require.Equal(t, c.want, got)
			}
		})
	}
}

// Against trying all rectangles.
func TestNoRectangleIsLarger(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows, columns := rapid.IntRange(1, 6).Draw(t, "rows"), rapid.IntRange(1, 6).Draw(t, "columns")
		draw := func() [][]int {
			m := make([][]int, rows)
			for i := range m {
				for range columns {
					m[i] = append(m[i], rapid.IntRange(0, 1).Draw(t, "element"))
				}
			}
			return m
		}
		a, b := draw(), draw()
		got, err := submatrix.Compare(matrix(a, 4), matrix(b, 4), rows, columns, 4)
		require.NoError(t, err)
		equal := func(x submatrix.Block) bool {
			for i := x.R0; i < x.R1; i++ {
				for j := x.C0; j < x.C1; j++ {
					if a[i][j] != b[i][j] {
						return false
					}
				}
			}
			return true
		}
		require.True(t, equal(got.Largest))
		for r0 := range rows {
			for r1 := r0 + 1; r1 <= rows; r1++ {
				for c0 := range columns {
					for c1 := c0 + 1; c1 <= columns; c1++ {
						if x := (submatrix.Block{R0: r0, R1: r1, C0: c0, C1: c1}); equal(x) {
							require.LessOrEqual(t, x.Area(), got.Largest.Area(), "%v", x)
						}
					}
				}
			}
		}
		for i := range rows {
			require.Equal(t, equal(submatrix.Block{R0: i, R1: i + 1, C1: columns}), contains(got.Rows, i))
		}
		for j := range columns {
			require.Equal(t, equal(submatrix.Block{R1: rows, C0: j, C1: j + 1}), contains(got.Columns, j))
		}
	})
}

func contains(list []int, v int) bool {
	for _, x := range list {
		if x == v {
			return true
		}
	}
	return false
}

func TestAShortMatrixIsAnError(t *testing.T) {
	_, err := submatrix.Compare(matrix([][]int{{1, 2}}, 4), matrix([][]int{{1, 2}, {3, 4}}, 4), 2, 2, 4)
	require.ErrorIs(t, err, io.EOF)
}

func BenchmarkCompare(b *testing.B) {
	const rows, columns = 3072, 768
	x := make([]byte, 4*rows*columns)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range x {
		x[i] = byte(random.Uint32())
	}
	y := bytes.Clone(x)
	for i := range rows { // 60% of the columns are equal
		for j := columns * 6 / 10; j < columns; j++ {
			y[4*(i*columns+j)]++
		}
	}
	b.SetBytes(int64(len(x)))
	for b.Loop() {
		if _, err := submatrix.Compare(bytes.NewReader(x), bytes.NewReader(y), rows, columns, 4); err != nil {
			b.Fatal(err)
		}
	}
}
