// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/conch-serving/conch/internal/onnx"
)

// stackable is how much of the backbone's weights a member's own may be for heads to run together: what is looked up per row is moved
// per row, so that a batch of so many rows moves about as much as the backbone's weights are.
const stackable = 1. / 8

// stack is heads that have the same operators and differ in weights: they run as one, on the rows of all members, with the weights that
// differ laid one member's behind the other's and looked up per row, as Punica does with adapters (Chen et al., MLSys 2024, section 4).
// A batch of many members then costs as many operators as one of a single member.
type stack struct {
	// weights are, by the first member's names of the weights that heads read, the names in all members; differ are those weights that
	// are not the same everywhere.
	weights map[string][]string
	differ  map[string]bool
}

// stack is how the heads run as one, nil where they cannot, or should not.
func (c *cut) stack() *stack {
	s := &stack{weights: map[string][]string{}, differ: map[string]bool{}}
	first := c.members[0]
	names := make([]map[string]string, len(c.members)) // of the first member's values in the others
	for i := range c.members {
		h := c.heads[i]
		names[i] = map[string]string{}
		if len(h.nodes) != len(c.heads[0].nodes) || len(h.crossing) != len(c.heads[0].crossing) || len(h.direct) != len(c.heads[0].direct) {
			return nil
		}
		for k, x := range slices.Concat(c.heads[0].crossing, c.heads[0].direct) {
			y := slices.Concat(h.crossing, h.direct)[k]
			if x.Backbone != y.Backbone {
				return nil
			}
			names[i][x.Member] = y.Member
		}
		for _, feed := range c.heads[0].feeds {
			names[i][feed] = feed
		}
	}
	for k, n := range c.heads[0].nodes {
		for i := range c.members {
			if !c.alike(s, n, i, c.heads[i].nodes[k], names[i]) {
				return nil
			}
		}
	}
	for k, v := range first.model.Graph.Outputs {
		for i, g := range c.members {
			outs := g.model.Graph.Outputs
			if len(outs) != len(first.model.Graph.Outputs) || names[i][v.Name] != outs[k].Name || v.Name != outs[k].Name ||
				!slices.Equal(ios(outs)[k].Dims, ios(first.model.Graph.Outputs)[k].Dims) {
				return nil
			}
		}
	}
	own := int64(0)
	for name := range s.differ {
		own += first.model.Graph.Initializer(name).Bytes()
	}
	if float64(own) > stackable*float64(first.bytesOf(c.backbone)) {
		return nil
	}
	for _, n := range c.heads[0].nodes {
		if !s.supports(first, n) {
			return nil
		}
	}
	return s
}

// alike says whether node n of the first head and o of another are the same but for weights, and notes which of those differ.
func (c *cut) alike(s *stack, n *onnx.Node, member int, o *onnx.Node, names map[string]string) bool {
	first, g := c.members[0], c.members[member]
	if ok, _ := g.shareable(o); !ok || len(n.Inputs) != len(o.Inputs) || len(n.Outputs) != len(o.Outputs) {
		return false
	}
	a, b := newHasher("node"), newHasher("node")
	if first.signature(a, n, true) != nil || g.signature(b, o, true) != nil || a.sum() != b.sum() {
		return false
	}
	for i, in := range n.Inputs {
		t, u := first.model.Graph.Initializer(in), g.model.Graph.Initializer(o.Inputs[i])
		switch {
		case (t == nil) != (u == nil):
			return false
		case t == nil:
			if in != "" && names[in] != o.Inputs[i] || in == "" && o.Inputs[i] != "" {
				return false
			}
		case t.Type != u.Type || !slices.Equal(t.Dims, u.Dims):
			return false
		default:
			if s.weights[in] == nil {
				s.weights[in] = make([]string, len(c.members))
			}
			if was := s.weights[in][member]; was != "" && was != u.Name {
				return false // one weight there, two here
			}
			s.weights[in][member] = u.Name
			if first.weights[in] != g.weights[u.Name] {
				s.differ[in] = true
			}
		}
	}
	for i, out := range n.Outputs {
		names[out] = o.Outputs[i]
	}
	return true
}

// supports says whether the node can run with those of its weights that differ looked up per row.
func (s *stack) supports(g *graph, n *onnx.Node) bool {
	var at []int
	for i, in := range n.Inputs {
		if s.differ[in] {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return true
	}
	if n.Domain != "" {
		return false
	}
	x := g.fact(n.Inputs[0])
	dims := func(i int) []int64 { return g.model.Graph.Initializer(n.Inputs[i]).Dims }
	switch n.Op {
	case "MatMul":
		return slices.Equal(at, []int{1}) && x.Crosses() && len(dims(1)) == 2
	case "Gemm":
		for i, in := range n.Inputs[1:] {
			if in == "" || g.model.Graph.Initializer(in) == nil || i == 1 && len(dims(2)) != 1 {
				return false
			}
		}
		return at[0] > 0 && x.Crosses() && len(x.Shape) == 2 && n.Int("transA", 0) == 0 && n.Float("alpha", 1) == 1 && n.Float("beta", 1) == 1
	case "Add", "Sub", "Mul", "Div":
		i := at[0]
		f := g.fact(n.Inputs[1-i])
		return len(at) == 1 && f.Crosses() && perRow(dims(i), len(f.Shape)) != nil
	case "LayerNormalization":
		axis := n.Int("axis", -1)
		if axis < 0 {
			axis += int64(len(x.Shape))
		}
		for _, i := range at {
			if i == 0 || len(dims(i)) != 1 {
				return false
			}
		}
		return len(n.Outputs) == 1 && x.Crosses() && axis == int64(len(x.Shape))-1
	}
	return false
}

// perRow are the dimensions of an operand that is broadcast against a value of that rank, behind a first one for the rows; nil where
// its own first dimension is in their place.
func perRow(dims []int64, rank int) []int64 {
	if len(dims) == rank && dims[0] == 1 {
		dims = dims[1:]
	}
	if len(dims) >= rank {
		return nil
	}
	return slices.Concat(slices.Repeat([]int64{1}, rank-1-len(dims)), dims)
}

// stacked adds the heads as one.
func (g *grouping) stacked() {
	h := g.c.heads[0]
	known := map[string]string{}
	for _, x := range slices.Concat(h.crossing, h.direct) {
		known[x.Member] = g.backboneName(x.Backbone)
	}
	for _, feed := range h.feeds {
		known[feed] = feed
	}
	name := func(value string) string {
		if v, is := known[value]; is {
			return v
		}
		return "head/" + value
	}
	for _, n := range h.nodes {
		if !slices.ContainsFunc(n.Inputs, func(in string) bool { return g.stack.differ[in] }) {
			g.copy(&g.model.Graph.Nodes, 0, n, name)
			continue
		}
		g.perRow(n, name)
	}
	for _, s := range g.slots {
		g.node("Identity", []string{name(s.own[0])}, s.name)
	}
}

// lookUp is a weight as it is for each row, with the dimensions given behind the rows.
func (g *grouping) lookUp(weight string, dims []int64) string {
	members := g.stack.weights[weight]
	t := g.c.members[0].model.Graph.Initializer(weight)
	all := g.constant("stack/"+weight, t.Type, append([]int64{int64(len(members))}, dims...), func() ([]byte, error) {
		var parts [][]byte
		for i, name := range members {
			m := g.c.members[i].model
			data, err := m.Data(m.Graph.Initializer(name))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", g.c.members[i].Name, err)
			}
			parts = append(parts, data)
		}
		return bytes.Join(parts, nil), nil
	})
	return g.node("Gather", []string{all, g.member}, "", attribute("axis", 0))
}

// operand is an input of a node of the first head.
func (g *grouping) operand(value string, name func(string) string) string {
	if t := g.c.members[0].model.Graph.Initializer(value); t != nil {
		return g.weight(0, t)
	}
	return name(value)
}

// perRow adds a node of which some weights are looked up per row.
func (g *grouping) perRow(n *onnx.Node, name func(string) string) {
	first := g.c.members[0]
	dims := func(i int) []int64 { return first.model.Graph.Initializer(n.Inputs[i]).Dims }
	differs := func(i int) bool { return i < len(n.Inputs) && g.stack.differ[n.Inputs[i]] }
	x, out := name(n.Inputs[0]), name(n.Outputs[0])
	rank := len(first.fact(n.Inputs[0]).Shape)
	switch n.Op {
	case "MatMul":
		g.product(x, g.lookUp(n.Inputs[1], slices.Concat(slices.Repeat([]int64{1}, max(rank-3, 0)), dims(1))), rank, out)
	case "Gemm":
		y := out
		bias := len(n.Inputs) > 2
		if bias {
			y = g.fresh("merge/Gemm")
		}
		d := dims(1)
		switch {
		case !differs(1):
			g.node("Gemm", []string{x, g.weight(0, first.model.Graph.Initializer(n.Inputs[1]))}, y, n.Attributes...)
		case n.Int("transB", 0) == 0:
			g.product(x, g.lookUp(n.Inputs[1], d), 2, y)
		default: // W x instead of x W, so that nothing is transposed
			column := g.node("Reshape", []string{x, g.ints(0, d[1], 1)}, "")
			column = g.node("MatMul", []string{g.lookUp(n.Inputs[1], d), column}, "")
			g.node("Reshape", []string{column, g.ints(0, d[0])}, y)
		}
		if bias {
			b := g.operand(n.Inputs[2], name)
			if differs(2) {
				b = g.lookUp(n.Inputs[2], dims(2))
			}
			g.node("Add", []string{y, b}, out)
		}
	case "LayerNormalization":
		attributes := n.Attributes
		t := first.model.Graph.Initializer(n.Inputs[1])
		scale, y := g.weight(0, t), out
		if differs(1) {
			scale = g.ones(t)
		}
		if differs(1) || differs(2) {
			y = g.fresh("merge/LayerNormalization")
		}
		inputs := []string{x, scale}
		late := len(n.Inputs) > 2 && (differs(1) || differs(2)) // the bias comes behind the scale
		if len(n.Inputs) > 2 && !late {
			inputs = append(inputs, g.operand(n.Inputs[2], name))
		}
		g.node(n.Op, inputs, y, attributes...)
		if differs(1) {
			to := out
			if late {
				to = g.fresh("merge/Mul")
			}
			y = g.node("Mul", []string{y, g.lookUp(n.Inputs[1], perRow(dims(1), rank))}, to)
		}
		if late {
			b := g.operand(n.Inputs[2], name)
			if differs(2) {
				b = g.lookUp(n.Inputs[2], perRow(dims(2), rank))
			}
			g.node("Add", []string{y, b}, out)
		}
	default: // Add, Sub, Mul, Div
		var inputs []string
		for i, in := range n.Inputs {
			if differs(i) {
				inputs = append(inputs, g.lookUp(in, perRow(dims(i), len(first.fact(n.Inputs[1-i]).Shape))))
				continue
			}
			inputs = append(inputs, g.operand(in, name))
		}
		g.node(n.Op, inputs, out, n.Attributes...)
	}
}

// product multiplies each row of x, a value of that rank, by its own matrix.
func (g *grouping) product(x, w string, rank int, out string) {
	if rank > 2 {
		g.node("MatMul", []string{x, w}, out)
		return
	}
	row := g.node("Reshape", []string{x, g.ints(0, 1, -1)}, "")
	row = g.node("MatMul", []string{row, w}, "")
	g.node("Reshape", []string{row, g.ints(0, -1)}, out)
}

// ones is a tensor of ones in the place of another.
func (g *grouping) ones(t *onnx.Tensor) string {
	return g.constant(fmt.Sprintf("ones.%s.%d", t.Type, t.Elements()), t.Type, t.Dims, func() ([]byte, error) {
		one := map[onnx.DataType][]byte{onnx.Float: {0, 0, 0x80, 0x3f}, onnx.Double: {0, 0, 0, 0, 0, 0, 0xf0, 0x3f}, onnx.Float16: {0, 0x3c}, onnx.BFloat16: {0x80, 0x3f}}[t.Type]
		return bytes.Repeat(one, int(t.Elements())), nil
	})
}
