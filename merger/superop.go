// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"context"
	"fmt"
	"slices"

	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/merger/assign"
	"github.com/conch-serving/conch/merger/rows"
	"github.com/conch-serving/conch/merger/submatrix"
)

const (
	// heavy is the size of weights from which on an operator is worth joining its inputs for.
	heavy = 64 << 10
	// step is what the sides of a common rectangle are rounded to, so that its product fills the tiles of a matrix unit.
	step = 64
)

// pair is two operators that correspond. Equal ones have equal weights; of others, linear says what their weights have in common.
type pair struct {
	a, b   *onnx.Node
	equal  bool
	linear *linear
}

// linear is an operator that is linear in its first input, with constant weights: MatMul, Gemm, Conv.
type linear struct {
	op string
	// weights and bias are the names of both members' tensors; bias is empty without one.
	weights, bias [2]string
	// rows, columns and width (bytes of an element) are those of the weights as a matrix; the output channels are its rows or columns.
	rows, columns, width int
	channelRows          bool
	// channels are the equal output channels. Where block is larger, that is used instead.
	channels []int
	block    submatrix.Block
}

func (l *linear) outputs() int {
	if l.channelRows {
		return l.rows
	}
	return l.columns
}

// byChannels says whether whole channels are shared, not a rectangle.
func (l *linear) byChannels() bool {
	return len(l.channels)*l.rows*l.columns >= l.block.Area()*l.outputs()
}

func (l *linear) similarity() float64 {
	if l.byChannels() {
		return float64(len(l.channels)) / float64(l.outputs())
	}
	return float64(l.block.Area()) / float64(l.rows*l.columns)
}

// describe says what is shared.
func (l *linear) describe() string {
	if l.byChannels() {
		return fmt.Sprintf("%d of %d output channels", len(l.channels), l.outputs())
	}
	return fmt.Sprintf("rows %d to %d, columns %d to %d of %dx%d", l.block.R0, l.block.R1, l.block.C0, l.block.C1, l.rows, l.columns)
}

// fusion is two members matched operator by operator.
type fusion struct {
	graphs [2]*graph
	pairs  map[*onnx.Node]*pair // by the node of either
}

// superops matches the two members and reports on both modes.
func (a *Analysis) superops(ctx context.Context) error {
	reports := []ModeReport{{Mode: SuperOp}, {Mode: SuperOpPadded}}
	f, why, err := a.match(ctx)
	if err != nil {
		return err
	}
	for i := range reports {
		r := &reports[i]
		if f == nil {
			r.Reason = why
			continue
		}
		r.Feasible, r.Reason = true, NotServed
		r.SeparateBytes = f.graphs[0].weightBytes() + f.graphs[1].weightBytes()
		built, err := f.build(r.Mode)
		if err != nil {
			r.Feasible, r.Reason = false, err.Error()
			continue
		}
		r.SharedBytes, r.SharedNodes, r.SuperOperators = built.sharedBytes, built.sharedNodes, built.supers
		for _, t := range built.model.Graph.Initializers {
			r.MergedBytes += t.Bytes()
		}
		if r.SharedNodes == 0 {
			r.Feasible, r.Reason = false, fmt.Sprintf("no two operators share %.0f%% of their weights", 100*a.options.Similarity)
		}
		if k := a.options.Rows; a.options.Cost != nil && r.Feasible {
			first, errA := a.options.Cost(f.graphs[0].model, k)
			second, errB := a.options.Cost(f.graphs[1].model, k)
			both, errC := a.options.Cost(built.model, k)
			if errA == nil && errB == nil && errC == nil {
				r.RowsPerMember, r.SeparateSeconds, r.MergedSeconds = k, (first + second).Seconds(), both.Seconds()
			} else {
				r.CostError = fmt.Sprint(errA, errB, errC)
			}
		}
	}
	if f != nil {
		a.fusion = f
	}
	a.Report.Modes = append(a.Report.Modes, reports...)
	return nil
}

// empty are operators that fail or end the process on an empty batch, which a half of a fused graph may see.
var empty = map[string]bool{"TopK": true, "Einsum": true, "OneHot": true, "LSTM": true, "GRU": true}

// match pairs operators of equal depth (the paper's equal starting time), kind and sizes, so that they share most. It returns why not
// where the members cannot be fused at all.
func (a *Analysis) match(ctx context.Context) (f *fusion, why string, err error) {
	if len(a.graphs) != 2 {
		return nil, "super-operators take two models at a time", nil
	}
	f = &fusion{graphs: [2]*graph{a.graphs[0], a.graphs[1]}, pairs: map[*onnx.Node]*pair{}}
	for _, g := range f.graphs {
		if g.model.Opsets[""] < 13 {
			return nil, fmt.Sprintf("%s: operator set %d cannot split by a computed size; 13 and later can", g.Name, g.model.Opsets[""]), nil
		}
		if len(g.model.Functions) > 0 {
			return nil, g.Name + " defines functions of its own", nil
		}
		for _, v := range g.model.Graph.Feeds() {
			for _, d := range v.Type.Dims[1:] {
				if d.Size < 0 {
					return nil, fmt.Sprintf("%s: input %q has a dimension of no fixed size besides the batch: rows of both members may not fit together", g.Name, v.Name), nil
				}
			}
		}
		for _, n := range g.order {
			if slices.ContainsFunc(n.Attributes, func(x *onnx.Attribute) bool { return x.Graph != nil || len(x.Graphs) > 0 }) {
				return nil, fmt.Sprintf("%s: %s (%s) has graphs of its own", g.Name, nameOf(n), n.Op), nil
			}
			if empty[n.Op] {
				return nil, fmt.Sprintf("%s: ONNX Runtime dies of %s on an empty batch", g.Name, n.Op), nil
			}
		}
	}
	byDepth := [2]map[int][]*onnx.Node{{}, {}}
	deepest := 0
	for side, g := range f.graphs {
		for _, n := range g.order {
			if ok, _ := g.shareable(n); ok && len(n.Outputs) > 0 {
				byDepth[side][g.depth[n]] = append(byDepth[side][g.depth[n]], n)
				deepest = max(deepest, g.depth[n])
			}
		}
	}
	for d := range deepest + 1 {
		if err := ctx.Err(); err != nil {
			return nil, "", err
		}
		if err := f.matchNodes(byDepth[0][d], byDepth[1][d], a.options.Similarity); err != nil {
			return nil, "", err
		}
	}
	return f, "", nil
}

func (f *fusion) matchNodes(as, bs []*onnx.Node, least float64) error {
	if len(as) == 0 || len(bs) == 0 {
		return nil
	}
	found := map[[2]int]*pair{}
	weights := make([][]float64, len(as))
	for i, a := range as {
		weights[i] = make([]float64, len(bs))
		for j, b := range bs {
			p, weight, err := f.compare(a, b, least)
			if err != nil {
				return err
			}
			if p == nil {
				continue
			}
			found[[2]int{i, j}] = p
			weights[i][j] = weight
		}
	}
	for i, j := range assign.Maximal(weights) {
		if j >= 0 {
			p := found[[2]int{i, j}]
			f.pairs[p.a], f.pairs[p.b] = p, p
		}
	}
	return nil
}

// compare says how much two operators share: nil if they cannot be merged.
func (f *fusion) compare(a, b *onnx.Node, least float64) (*pair, float64, error) {
	x, y := f.graphs[0], f.graphs[1]
	if a.Op != b.Op || len(a.Inputs) != len(b.Inputs) || len(a.Outputs) != len(b.Outputs) {
		return nil, 0, nil
	}
	ha, hb := newHasher("operator"), newHasher("operator")
	if err := x.signature(ha, a, true); err != nil {
		return nil, 0, err
	}
	if err := y.signature(hb, b, true); err != nil {
		return nil, 0, err
	}
	if ha.sum() != hb.sum() {
		return nil, 0, nil
	}
	equal, bonus := true, 0.0
	for i := range a.Inputs {
		fa, fb := x.fact(a.Inputs[i]), y.fact(b.Inputs[i])
		switch {
		case fa.String() != fb.String():
			return nil, 0, nil
		case fa.State == rows.Constant && !fa.Counts:
			equal = equal && x.values[a.Inputs[i]] == y.values[b.Inputs[i]]
		default:
			if p := f.pairs[x.producer[a.Inputs[i]]]; p != nil && p.b == y.producer[b.Inputs[i]] {
				bonus += .001
			}
		}
	}
	if equal {
		return &pair{a: a, b: b, equal: true}, 1 + bonus, nil
	}
	l, err := f.linear(a, b)
	if err != nil || l == nil || l.similarity() < least {
		return nil, 0, err
	}
	return &pair{a: a, b: b, linear: l}, l.similarity() + bonus, nil
}

// linear compares the weights of two linear operators; nil if they are not.
func (f *fusion) linear(a, b *onnx.Node) (*linear, error) {
	x, y := f.graphs[0], f.graphs[1]
	l := &linear{op: a.Op}
	switch {
	case a.Op == "MatMul":
	case a.Op == "Gemm":
		l.channelRows = a.Int("transB", 0) != 0
	case a.Op == "Conv" && a.Int("group", 1) == 1:
		l.channelRows = true
	default:
		return nil, nil
	}
	if x.fact(a.Inputs[0]).State != rows.Rows {
		return nil, nil
	}
	ta, tb := x.model.Graph.Initializer(a.Inputs[1]), y.model.Graph.Initializer(b.Inputs[1])
	if ta == nil || tb == nil || ta.Type != tb.Type || !slices.Equal(ta.Dims, tb.Dims) || len(ta.Dims) < 2 || a.Op == "MatMul" && len(ta.Dims) != 2 ||
		ta.Elements() == 0 || ta.Bytes() > onnx.DefaultLimits().Data {
		return nil, nil
	}
	l.weights = [2]string{ta.Name, tb.Name}
	l.rows, l.columns, l.width = int(ta.Dims[0]), int(ta.Elements()/ta.Dims[0]), int(ta.Type.Bits()/8)
	if l.width != 2 && l.width != 4 {
		return nil, nil
	}
	ra, err := x.model.Reader(ta)
	if err != nil {
		return nil, err
	}
	rb, err := y.model.Reader(tb)
	if err != nil {
		return nil, err
	}
	common, err := submatrix.Compare(ra, rb, l.rows, l.columns, l.width)
	if err != nil {
		return nil, err
	}
	if l.channels = common.Columns; l.channelRows {
		l.channels = common.Rows
	}
	if a.Op == "MatMul" {
		l.block = snapped(common.Largest, l.rows, l.columns)
	}
	return l, f.sameBias(l, a, b)
}

// snapped shrinks a rectangle to multiples of step, where it does not reach the edge.
func snapped(b submatrix.Block, rows, columns int) submatrix.Block {
	up := func(v int) int { return (v + step - 1) / step * step }
	down := func(v, edge int) int {
		if v == edge {
			return v
		}
		return v / step * step
	}
	b = submatrix.Block{R0: up(b.R0), R1: down(b.R1, rows), C0: up(b.C0), C1: down(b.C1, columns)}
	if b.R1 <= b.R0 || b.C1 <= b.C0 {
		return submatrix.Block{}
	}
	return b
}

// sameBias takes the channels out whose biases differ; a bias of another form than one number per channel shares nothing.
func (f *fusion) sameBias(l *linear, a, b *onnx.Node) error {
	if len(a.Inputs) < 3 || a.Inputs[2] == "" {
		return nil
	}
	var data [2][]byte
	for side, name := range []string{a.Inputs[2], b.Inputs[2]} {
		t := f.graphs[side].model.Graph.Initializer(name)
		if t == nil || len(t.Dims) != 1 || t.Dims[0] != int64(l.outputs()) || int(t.Type.Bits()/8) != l.width {
			l.channels = nil
			return nil
		}
		var err error
		if data[side], err = f.graphs[side].model.Data(t); err != nil {
			return err
		}
		l.bias[side] = name
	}
	l.channels = slices.DeleteFunc(l.channels, func(c int) bool {
		at := c * l.width
		return string(data[0][at:at+l.width]) != string(data[1][at:at+l.width])
	})
	return nil
}
