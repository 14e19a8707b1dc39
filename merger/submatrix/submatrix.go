// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package submatrix finds what two weight matrices of the same size have in common at the same place, bit for bit: whole equal channels,
// and the largest equal rectangle.
//
// Two matrices may be close element by element and have almost no common rectangle: with 99.9% of the elements equal at scattered places
// it is 1.6% of the matrix. So what counts is area, not similarity. Tolerance would not help either: it is not transitive, so three
// models could not agree on what they share.
package submatrix

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Block is a rectangle: rows [R0,R1) and columns [C0,C1).
type Block struct{ R0, R1, C0, C1 int }

// Area is the number of elements.
func (b Block) Area() int { return (b.R1 - b.R0) * (b.C1 - b.C0) }

// Common is what two matrices have in common.
type Common struct {
	// Rows and Columns that are equal throughout.
	Rows, Columns []int
	// Largest is the largest rectangle of equal elements.
	Largest Block
}

// readAhead is how much of each matrix is read at a time.
const readAhead = 256 << 10

// Compare reads two matrices of rows by columns elements of width bytes, row by row, in lockstep, in memory of a few rows. Widths are 2
// and 4.
func Compare(a, b io.Reader, rows, columns, width int) (Common, error) {
	if width != 2 && width != 4 {
		return Common{}, fmt.Errorf("elements of %d bytes are not compared", width)
	}
	if rows <= 0 || columns <= 0 {
		return Common{}, nil
	}
	a, b = bufio.NewReaderSize(a, readAhead), bufio.NewReaderSize(b, readAhead)
	x, y := make([]byte, columns*width), make([]byte, columns*width)
	heights := make([]int32, columns) // equal elements above, this row included
	whole := make([]bool, columns)
	for j := range whole {
		whole[j] = true
	}
	stack := make([]span, 0, columns+1)
	var c Common
	for i := range rows {
		if err := both(a, b, x, y); err != nil {
			return Common{}, err
		}
		if string(x) == string(y) {
			c.Rows = append(c.Rows, i)
			for j := range heights {
				heights[j]++
			}
		} else if !advance(x, y, width, heights, whole) {
			continue // no element of this row is equal: no rectangle ends here
		}
		stack = c.widen(i, heights, stack[:0])
	}
	for j, w := range whole {
		if w {
			c.Columns = append(c.Columns, j)
		}
	}
	return c, nil
}

func both(a, b io.Reader, x, y []byte) error {
	_, errA := io.ReadFull(a, x)
	_, errB := io.ReadFull(b, y)
	return errors.Join(errA, errB)
}

// advance counts the equal elements of one more row; false if there are none.
func advance(x, y []byte, width int, heights []int32, whole []bool) (some bool) {
	for j := range heights {
		var equal bool
		if width == 4 {
			equal = binary.LittleEndian.Uint32(x[4*j:]) == binary.LittleEndian.Uint32(y[4*j:])
		} else {
			equal = binary.LittleEndian.Uint16(x[2*j:]) == binary.LittleEndian.Uint16(y[2*j:])
		}
		if equal {
			heights[j]++
			some = true
		} else {
			heights[j] = 0
			whole[j] = false
		}
	}
	return some
}

// span is a run of columns, from start on, that are equal for so many rows.
type span struct {
	start  int
	height int32
}

// widen looks for the largest rectangle that ends in row i: the largest under a histogram, with a stack of rising heights.
func (c *Common) widen(i int, heights []int32, stack []span) []span {
	area := c.Largest.Area()
	for j := 0; j <= len(heights); j++ {
		h := int32(0)
		if j < len(heights) {
			h = heights[j]
		}
		start := j
		for len(stack) > 0 && stack[len(stack)-1].height >= h {
			top := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			start = top.start
			if found := int(top.height) * (j - top.start); found > area {
				area = found
				c.Largest = Block{R0: i + 1 - int(top.height), R1: i + 1, C0: top.start, C1: j}
			}
		}
		if h > 0 {
			stack = append(stack, span{start, h})
		}
	}
	return stack
}
