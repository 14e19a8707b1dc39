// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"slices"

	"github.com/conch-serving/conch/internal/onnx"
)

// super makes a pair of linear operators whose weights are partly equal.
func (b *fusing) super(p *pair) error {
	l := p.linear
	joined, err := b.join(p.a.Inputs[0], p.b.Inputs[0])
	if err != nil {
		return err
	}
	var own [2]string
	for side, n := range []*onnx.Node{p.a, p.b} {
		if own[side], err = b.separate(side, n.Inputs[0]); err != nil {
			return err
		}
	}
	switch {
	case b.mode == SuperOpPadded:
		b.padded(p, joined, own)
	case l.byChannels():
		b.byChannels(p, joined, own)
	default:
		b.byBlock(p, joined, own)
	}
	b.out.sharedNodes++
	b.out.supers = append(b.out.supers, SuperOperator{Nodes: [2]string{nameOf(p.a), nameOf(p.b)}, Op: p.a.Op, Similarity: l.similarity(), Shared: l.describe()})
	return nil
}

// result declares the members' results of a pair.
func (b *fusing) result(p *pair, side int, op string, inputs []string, attributes ...*onnx.Attribute) {
	value := []*onnx.Node{p.a, p.b}[side].Outputs[0]
	name := b.fresh(prefixes[side] + value)
	b.node(op, inputs, name, attributes...)
	b.apart[side][value] = name
}

// channelAxis is the axis of the output channels in a result.
func (l *linear) channelAxis() int64 {
	if l.op == "Conv" {
		return 1
	}
	return -1
}

// part adds weights of so many rows and columns that are made of a member's.
func (b *fusing) part(l *linear, name string, side, rows, columns int, of func(matrix) matrix) string {
	t := b.graphs[side].model.Graph.Initializer(l.weights[side])
	dims := []int64{int64(rows), int64(columns)}
	if len(t.Dims) > 2 {
		dims = append([]int64{int64(rows)}, t.Dims[1:]...)
	}
	return b.tensor(name, t.Type, dims, func() ([]byte, error) {
		m, err := b.weights(l, side)
		if err != nil {
			return nil, err
		}
		return of(m).data, nil
	})
}

// channelPart adds the weights of these output channels.
func (b *fusing) channelPart(l *linear, name string, side int, channels []int) string {
	rows, columns := l.rows, len(channels)
	if l.channelRows {
		rows, columns = len(channels), l.columns
	}
	return b.part(l, name, side, rows, columns, func(m matrix) matrix { return l.channelsOf(m, channels) })
}

func (b *fusing) biasOf(l *linear, side int, channels []int) string {
	if l.bias[side] == "" {
		return ""
	}
	t := b.graphs[side].model.Graph.Initializer(l.bias[side])
	return b.tensor("bias", t.Type, []int64{int64(len(channels))}, func() ([]byte, error) {
		data, err := b.graphs[side].model.Data(t)
		if err != nil {
			return nil, err
		}
		return matrix{rows: 1, columns: l.outputs(), width: l.width, data: data}.pickColumns(channels).data, nil
	})
}

// product is the operator with other weights.
func (b *fusing) product(p *pair, x, w, bias string) string {
	inputs := []string{x, w}
	if bias != "" {
		inputs = append(inputs, bias)
	}
	return b.node(p.a.Op, inputs, "", p.a.Attributes...)
}

// halves splits a joined product of a pair.
func (b *fusing) halves(p *pair, joined string) [2]string {
	axis0 := b.graphs[0].fact(p.a.Outputs[0]).Shape[0]
	names := [2]string{b.fresh("merge/half"), b.fresh("merge/half")}
	b.append(0, &onnx.Node{
		Name: joined + "/split", Op: "Split", Inputs: []string{joined, b.lengths(axis0.Factor)}, Outputs: names[:], Attributes: []*onnx.Attribute{attribute("axis", 0)},
	})
	return names
}

// byChannels runs the equal output channels once on both, the others per member, and puts the channels back into their order.
func (b *fusing) byChannels(p *pair, joined string, own [2]string) {
	l := p.linear
	rest := others(l.channels, l.outputs())
	common := b.channelPart(l, "common", 0, l.channels)
	b.out.sharedBytes += b.out.model.Graph.Initializer(common).Bytes()
	halves := b.halves(p, b.product(p, joined, common, b.biasOf(l, 0, l.channels)))
	order := restored(l.channels, rest)
	for side := range own {
		w := b.channelPart(l, "own", side, rest)
		y := b.product(p, own[side], w, b.biasOf(l, side, rest))
		b.assemble(p, side, []string{halves[side], y}, order)
	}
}

// restored is where each output channel is behind a concatenation of the two lists; nil if it is at its place already.
func restored(first, second []int) []int64 {
	at := make([]int64, len(first)+len(second))
	inPlace := true
	for i, c := range slices.Concat(first, second) {
		at[c] = int64(i)
		inPlace = inPlace && c == i
	}
	if inPlace {
		return nil
	}
	return at
}

// assemble concatenates parts of a result along its channels and reorders them.
func (b *fusing) assemble(p *pair, side int, parts []string, order []int64) {
	axis := p.linear.channelAxis()
	if order == nil {
		b.result(p, side, "Concat", parts, attribute("axis", axis))
		return
	}
	whole := b.node("Concat", parts, "", attribute("axis", axis))
	b.result(p, side, "Gather", []string{whole, b.ints(order...)}, attribute("axis", axis))
}

// byBlock is for MatMul: the product with the common rectangle runs once on both; what is beside it in the same columns is added per
// member, the other columns are computed per member. Every weight is used once.
func (b *fusing) byBlock(p *pair, joined string, own [2]string) {
	l, k := p.linear, p.linear.block
	inRows, inColumns := span(k.R0, k.R1), span(k.C0, k.C1)
	outRows, outColumns := others(inRows, l.rows), others(inColumns, l.columns)
	common := b.part(l, "common", 0, len(inRows), len(inColumns), func(m matrix) matrix { return m.pickRows(inRows).pickColumns(inColumns) })
	b.out.sharedBytes += b.out.model.Graph.Initializer(common).Bytes()
	x := joined
	if len(outRows) > 0 {
		x = b.node("Slice", []string{joined, b.ints(int64(k.R0)), b.ints(int64(k.R1)), b.ints(-1)}, "")
	}
	halves := b.halves(p, b.node("MatMul", []string{x, common}, ""))
	order := restored(inColumns, outColumns)
	for side := range own {
		inside := halves[side]
		if len(outRows) > 0 {
			beside := b.part(l, "beside", side, len(outRows), len(inColumns), func(m matrix) matrix { return m.pickRows(outRows).pickColumns(inColumns) })
			inside = b.node("Add", []string{inside, b.node("MatMul", []string{b.without(own[side], k.R0, k.R1, l.rows), beside}, "")}, "")
		}
		parts := []string{inside}
		if len(outColumns) > 0 {
			rest := b.part(l, "own", side, l.rows, len(outColumns), func(m matrix) matrix { return m.pickColumns(outColumns) })
			parts = append(parts, b.node("MatMul", []string{own[side], rest}, ""))
		}
		b.assemble(p, side, parts, order)
	}
}

// without is x without the places from up to to of its last axis.
func (b *fusing) without(x string, from, to, size int) string {
	var parts []string
	if from > 0 {
		parts = append(parts, b.node("Slice", []string{x, b.ints(0), b.ints(int64(from)), b.ints(-1)}, ""))
	}
	if to < size {
		parts = append(parts, b.node("Slice", []string{x, b.ints(int64(to)), b.ints(everything), b.ints(-1)}, ""))
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return b.node("Concat", parts, "", attribute("axis", -1))
}

// padded is the paper's super-operator: the common part in a matrix of full size that is zero elsewhere, run once on both, and per member
// a dense product with its weights, zero where the common part is.
func (b *fusing) padded(p *pair, joined string, own [2]string) {
	l := p.linear
	inside := func(r, c int) bool { return r >= l.block.R0 && r < l.block.R1 && c >= l.block.C0 && c < l.block.C1 }
	if l.byChannels() {
		equal := make([]bool, l.outputs())
		for _, c := range l.channels {
			equal[c] = true
		}
		inside = func(r, c int) bool {
			if l.channelRows {
				return equal[r]
			}
			return equal[c]
		}
	}
	common := b.part(l, "padded", 0, l.rows, l.columns, func(m matrix) matrix { return m.where(inside) })
	b.out.sharedBytes += b.out.model.Graph.Initializer(common).Bytes()
	halves := b.halves(p, b.product(p, joined, common, ""))
	for side := range own {
		w := b.part(l, "residual", side, l.rows, l.columns, func(m matrix) matrix { return m.where(func(r, c int) bool { return !inside(r, c) }) })
		b.result(p, side, "Add", []string{halves[side], b.product(p, own[side], w, b.biasOf(l, side, span(0, l.outputs())))})
	}
}
