// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"fmt"

	"github.com/conch-serving/conch/internal/onnx"
)

// guarded is the member of each row, as a vector; an execution in which a row is of no member fails. Nothing else would see to that: heads one by
// one leave such a row at zeros, and a look-up counts a negative place from the end.
//
// ONNX has no operator that fails on purpose. One element is given the shape [values that are out of range, -1], which is possible where there
// are none alone. The shape of a Reshape is looked at on every device, whereas a Gather is not held to its bounds on a GPU. The runtime's error has the
// node's name, which says what is wrong, and the shape, which has the values.
func (g *grouping) guarded() string {
	int64s, last := attribute("to", int64(onnx.Int64)), int64(len(g.c.members)-1)
	member := g.node("Reshape", []string{MemberInput, g.ints(-1)}, "")
	value := g.node("Cast", []string{member}, "", int64s)
	below := g.node("Less", []string{value, g.ints(0)}, "")
	above := g.node("Greater", []string{value, g.ints(last)}, "")
	outside := g.node("Compress", []string{value, g.node("Or", []string{below, above}, "")}, "")
	shape := g.node("Concat", []string{outside, g.ints(-1)}, "", attribute("axis", 0))
	zero := g.constant("no member", onnx.Int32, []int64{1}, func() ([]byte, error) { return make([]byte, 4), nil })
	checked := g.node("Reshape", []string{zero, shape}, fmt.Sprintf("%s must be from 0 to %d, and the values of rows that are of no member stand before the last -1 of this shape", MemberInput, last))
	return g.node("Add", []string{member, checked}, "")
}
