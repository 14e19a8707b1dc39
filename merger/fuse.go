// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/merger/rows"
)

// prefixes of names in a fused graph, by the member's side.
var prefixes = [2]string{"a/", "b/"}

// fused is a graph of two members in one.
type fused struct {
	model       *onnx.Model
	source      *derived
	sharedBytes int64
	sharedNodes int
	supers      []SuperOperator
}

// fusing builds one. A value of the members exists in it as two, one per member, or joined, the rows of the first before those of the
// second; where it is needed in the other form it is split or joined once.
type fusing struct {
	*fusion
	mode Mode
	out  *fused
	// apart are the names of values by the side and their name there; joined by the name on side a, for pairs that correspond.
	apart  [2]map[string]string
	joined map[string]joinedValue
	// joinedB is the name on side a by that on side b.
	joinedB map[string]string
	sizes   map[int64]string
	names   map[string]bool
}

// joinedValue is the name of a joined value, and what it is called on side b.
type joinedValue struct{ name, b string }

// build makes the fused graph. The error is a graph that cannot be built.
func (f *fusion) build(mode Mode) (*fused, error) {
	b := &fusing{
		fusion: f, mode: mode, apart: [2]map[string]string{{}, {}}, joined: map[string]joinedValue{}, joinedB: map[string]string{}, sizes: map[int64]string{}, names: map[string]bool{},
		out: &fused{source: &derived{owners: owners{}, made: map[*onnx.Tensor]func() ([]byte, error){}}},
	}
	first := f.graphs[0].model
	opsets := map[string]int64{}
	for _, g := range f.graphs {
		for domain, version := range g.model.Opsets {
			opsets[domain] = version
		}
	}
	b.out.model = &onnx.Model{IR: max(first.IR, f.graphs[1].model.IR), Producer: "conch", Opsets: opsets, Graph: &onnx.Graph{Name: "fused"}}
	for side, g := range f.graphs {
		for _, v := range g.model.Graph.Feeds() {
			b.apart[side][v.Name] = prefixes[side] + v.Name
			b.out.model.Graph.Inputs = append(b.out.model.Graph.Inputs, renamed(v, side))
		}
	}
	for side, g := range f.graphs {
		for _, v := range g.model.Graph.Outputs {
			b.names[prefixes[side]+v.Name] = true // the value itself gets another name, and an Identity gives it this one
		}
	}
	if err := b.nodes(); err != nil {
		return nil, err
	}
	for side, g := range f.graphs {
		for _, v := range g.model.Graph.Outputs {
			name, err := b.separate(side, v.Name)
			if err != nil {
				return nil, err
			}
			out := renamed(v, side)
			b.node("Identity", []string{name}, out.Name)
			b.out.model.Graph.Outputs = append(b.out.model.Graph.Outputs, out)
		}
	}
	return b.out, nil
}

// renamed is the declaration of a member's value in the fused graph, where both members' batches have sizes of their own.
func renamed(v *onnx.Value, side int) *onnx.Value {
	out := *v
	out.Name = prefixes[side] + v.Name
	out.Type.Dims = slices.Clone(v.Type.Dims)
	for i := range out.Type.Dims {
		if out.Type.Dims[i].Size < 0 {
			out.Type.Dims[i].Name = fmt.Sprintf("%s%d", prefixes[side][:1], i)
		}
	}
	return &out
}

// nodes goes through both members' nodes by depth: what a node reads lies above it.
func (b *fusing) nodes() error {
	deepest := 0
	for _, g := range b.graphs {
		for _, d := range g.depth {
			deepest = max(deepest, d)
		}
	}
	byDepth := make([][2][]*onnx.Node, deepest+1)
	for side, g := range b.graphs {
		for _, n := range g.order {
			byDepth[g.depth[n]][side] = append(byDepth[g.depth[n]][side], n)
		}
	}
	for _, level := range byDepth {
		for _, n := range level[0] {
			if p := b.pairs[n]; p != nil {
				if err := b.pair(p); err != nil {
					return err
				}
			}
		}
	}
	return nil // nodes that run per member are made when they are needed
}

// pair makes a matched pair of operators, joined or as a super-operator, if that is worth it.
func (b *fusing) pair(p *pair) error {
	if p.linear != nil {
		return b.super(p)
	}
	g := b.graphs[0]
	dependent, counting := 0, false
	for _, name := range p.a.Inputs {
		f := g.fact(name)
		if f.State == rows.Rows {
			dependent++
		}
		counting = counting || f.Counts
	}
	if dependent == 0 {
		return nil
	}
	if !counting && g.bytesOf([]*onnx.Node{p.a}) >= heavy {
		return b.together(p)
	}
	for i, name := range p.a.Inputs {
		if !b.canJoin(name, p.b.Inputs[i]) {
			return nil
		}
	}
	return b.together(p)
}

// canJoin says whether the two values are there joined, or are the same for both members, without joining anything.
func (b *fusing) canJoin(va, vb string) bool {
	if va == "" || vb == "" {
		return va == vb
	}
	if j, is := b.joined[va]; is {
		return j.b == vb
	}
	f := b.graphs[0].fact(va)
	if f.State != rows.Constant {
		return false
	}
	if !f.Counts {
		return b.graphs[0].values[va] == b.graphs[1].values[vb]
	}
	n := b.graphs[0].producer[va]
	p := b.pairs[n]
	if n == nil || p == nil || p.b != b.graphs[1].producer[vb] || p.linear != nil {
		return false
	}
	for i, name := range n.Inputs {
		if !b.canJoin(name, p.b.Inputs[i]) {
			return false
		}
	}
	return true
}

// together runs a pair once on the rows of both.
func (b *fusing) together(p *pair) error {
	var inputs []string
	for i, name := range p.a.Inputs {
		in, err := b.join(name, p.b.Inputs[i])
		if err != nil {
			return err
		}
		inputs = append(inputs, in)
	}
	n := &onnx.Node{Name: "ab/" + nameOf(p.a), Op: p.a.Op, Domain: p.a.Domain, Inputs: inputs, Attributes: p.a.Attributes}
	for i, name := range p.a.Outputs {
		if name == "" {
			n.Outputs = append(n.Outputs, "")
			continue
		}
		n.Outputs = append(n.Outputs, b.fresh("ab/"+name))
		b.joins(name, p.b.Outputs[i], n.Outputs[i])
	}
	b.append(0, n)
	b.out.sharedNodes++
	b.out.sharedBytes += b.graphs[0].bytesOf([]*onnx.Node{p.a})
	return nil
}

// append adds a node; tensors in its attributes belong to the member on that side.
func (b *fusing) append(side int, n *onnx.Node) {
	for _, a := range n.Attributes {
		for _, t := range append(slices.Clone(a.Tensors), a.Tensor) {
			if t != nil {
				b.out.source.owners[t] = b.graphs[side].model
			}
		}
	}
	b.out.model.Graph.Nodes = append(b.out.model.Graph.Nodes, n)
}

func (b *fusing) fresh(name string) string {
	for i := 0; b.names[name]; i++ {
		name += "'"
	}
	b.names[name] = true
	return name
}

// node adds a node of ours and returns its output.
func (b *fusing) node(op string, inputs []string, output string, attributes ...*onnx.Attribute) string {
	if output == "" {
		output = b.fresh("merge/" + op)
	}
	b.append(0, &onnx.Node{Name: output, Op: op, Inputs: inputs, Outputs: []string{output}, Attributes: attributes})
	return output
}

// tensor adds a constant of ours.
func (b *fusing) tensor(name string, kind onnx.DataType, dims []int64, elements func() ([]byte, error)) string {
	t := &onnx.Tensor{Name: b.fresh("merge/" + name), Type: kind, Dims: dims}
	b.out.source.made[t] = elements
	b.out.model.Graph.AddInitializer(t)
	return t.Name
}

func (b *fusing) ints(values ...int64) string {
	parts := []string{"merge/ints"}
	for _, v := range values {
		parts = append(parts, strconv.FormatInt(v, 10))
	}
	name := strings.Join(parts, ".")
	if len(values) <= 4 {
		if b.out.model.Graph.Initializer(name) != nil {
			return name
		}
	} else {
		name = b.fresh("merge/indices")
	}
	t := &onnx.Tensor{Name: name, Type: onnx.Int64, Dims: []int64{int64(len(values))}}
	b.out.source.made[t] = func() ([]byte, error) { return int64Bytes(values...), nil }
	b.out.model.Graph.AddInitializer(t)
	return name
}

// join is the joined form of two corresponding values.
func (b *fusing) join(va, vb string) (string, error) {
	if va == "" {
		return "", nil
	}
	if j, is := b.joined[va]; is && j.b == vb {
		return j.name, nil
	}
	f := b.graphs[0].fact(va)
	switch {
	case f.State == rows.Rows:
		a, err := b.separate(0, va)
		if err != nil {
			return "", err
		}
		c, err := b.separate(1, vb)
		if err != nil {
			return "", err
		}
		name := b.node("Concat", []string{a, c}, "", attribute("axis", 0))
		if _, is := b.joined[va]; !is {
			b.joins(va, vb, name)
		}
		return name, nil
	case f.Counts:
		p := b.pairs[b.graphs[0].producer[va]]
		if p == nil {
			return "", fmt.Errorf("%s: value %q depends on the number of rows and has no counterpart", b.graphs[0].Name, va)
		}
		if err := b.together(p); err != nil {
			return "", err
		}
		return b.joined[va].name, nil
	default:
		return b.separate(0, va)
	}
}

// joins records the joined form of two values.
func (b *fusing) joins(va, vb, name string) {
	b.joined[va] = joinedValue{name, vb}
	b.joinedB[vb] = va
}

// separate is a member's own form of a value.
func (b *fusing) separate(side int, value string) (string, error) {
	if value == "" {
		return "", nil
	}
	if name, is := b.apart[side][value]; is {
		return name, nil
	}
	g := b.graphs[side]
	if t := g.model.Graph.Initializer(value); t != nil {
		return b.initializer(side, t), nil
	}
	if b.half(side, value) {
		return b.apart[side][value], nil
	}
	n := g.producer[value]
	if n == nil {
		return "", fmt.Errorf("%s: nothing defines %q", g.Name, value)
	}
	copied := &onnx.Node{Name: prefixes[side] + nameOf(n), Op: n.Op, Domain: n.Domain, Overload: n.Overload, Attributes: n.Attributes}
	for _, in := range n.Inputs {
		name, err := b.separate(side, in)
		if err != nil {
			return "", err
		}
		copied.Inputs = append(copied.Inputs, name)
	}
	b.reshape(side, n, copied)
	for _, out := range n.Outputs {
		if out == "" {
			copied.Outputs = append(copied.Outputs, "")
			continue
		}
		name := b.fresh(prefixes[side] + out)
		copied.Outputs = append(copied.Outputs, name)
		b.apart[side][out] = name
	}
	b.append(side, copied)
	return b.apart[side][value], nil
}

// reshape replaces a new shape that holds both a copied (0) and an open (-1) dimension: on an empty half ONNX Runtime could not tell
// what the open one is.
func (b *fusing) reshape(side int, n, copied *onnx.Node) {
	f := b.graphs[side].fact(n.Outputs[0])
	if n.Op != "Reshape" || f.State != rows.Rows {
		return
	}
	shape := []int64{-1}
	for _, d := range f.Shape[1:] {
		size, fixed := d.Fixed()
		if !fixed || size == 0 {
			return
		}
		shape = append(shape, size)
	}
	copied.Inputs[1] = b.ints(shape...)
}

// half splits a joined value, if there is one of that name on the side; both halves are there then.
func (b *fusing) half(side int, value string) bool {
	va := value
	if side == 1 {
		va = b.joinedB[value]
	}
	j, is := b.joined[va]
	if !is || b.graphs[0].fact(va).State != rows.Rows {
		return false // not joined, or a vector of sizes: each member computes its own
	}
	b.split(j.name, b.graphs[0].fact(va).Shape[0], va, j.b)
	return true
}

// split makes the members' halves of a joined value whose axis 0 is that multiple of the batch.
func (b *fusing) split(joined string, axis0 rows.Dim, va, vb string) {
	names := []string{b.fresh(prefixes[0] + va), b.fresh(prefixes[1] + vb)}
	b.append(0, &onnx.Node{
		Name: joined + "/split", Op: "Split", Inputs: []string{joined, b.lengths(axis0.Factor)}, Outputs: names,
		Attributes: []*onnx.Attribute{attribute("axis", 0)},
	})
	b.apart[0][va], b.apart[1][vb] = names[0], names[1]
}

// lengths is the vector of both members' numbers of rows, times a factor.
func (b *fusing) lengths(factor int64) string {
	if name, is := b.sizes[factor]; is {
		return name
	}
	var parts []string
	for side, g := range b.graphs {
		shape := b.node("Shape", []string{prefixes[side] + g.model.Graph.Feeds()[0].Name}, "")
		parts = append(parts, b.node("Gather", []string{shape, b.ints(0)}, "", attribute("axis", 0)))
	}
	name := b.node("Concat", parts, "", attribute("axis", 0))
	if factor != 1 {
		name = b.node("Mul", []string{name, b.ints(factor)}, "")
	}
	b.sizes[factor] = name
	return name
}

// initializer adds a member's tensor; equal ones are there once.
func (b *fusing) initializer(side int, t *onnx.Tensor) string {
	name := "weight/" + fmt.Sprintf("%x", b.graphs[side].weights[t.Name])
	if b.out.model.Graph.Initializer(name) == nil {
		copied := *t
		copied.Name = name
		b.out.source.owners[&copied] = b.graphs[side].model
		b.out.model.Graph.AddInitializer(&copied)
	}
	b.apart[side][t.Name] = name
	return name
}

func attribute(name string, v int64) *onnx.Attribute {
	return &onnx.Attribute{Name: name, Kind: onnx.KindInt, Int: v}
}

// everything is an end of a slice that takes all there is.
const everything = math.MaxInt64
