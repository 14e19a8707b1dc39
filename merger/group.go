// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"fmt"
	"slices"

	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/merger/rows"
)

// MemberInput is the input of a merge group that says of each row which member it belongs to: an int32 per row, the member's place in
// Manifest.Members.
const MemberInput = "conch_member"

// grouping builds the graph of a merge group: the backbone once on the rows of all members, then each member's head on its own rows. It
// has the members' inputs, MemberInput besides, and as outputs what the members have, so that it is a model like any other to Triton.
//
// Heads that differ in small weights alone run as one head whose weights are looked up per row (stack.go). Other heads run one by one,
// each on its rows taken out of the batch, and not at all where it has none.
type grouping struct {
	c      *cut
	model  *onnx.Model
	source *derived
	names  map[string]bool
	slots  []*slot
	stack  *stack // nil: heads run one by one

	member, count string // the member of each row, and [rows]
}

// slot is an output of the group: of one member, or of several that declare it alike.
type slot struct {
	name    string
	declare *onnx.Value
	shared  bool           // several members' rows may be in it
	own     map[int]string // the member's own name of it, by the member's index
}

// servable is why the cut cannot be served as one model, nil if it can.
func (c *cut) servable() error {
	first := c.members[0]
	if first.model.Opsets[""] < 11 {
		return fmt.Errorf("operator set %d: merging needs 11 or later (onnx.version_converter)", first.model.Opsets[""])
	}
	for _, g := range c.members {
		if !sameInputs(first, g) {
			return fmt.Errorf("%s and %s have other inputs: a request of one could not be a row of the other's batch", first.Name, g.Name)
		}
		for _, v := range g.model.Graph.Feeds() {
			if v.Name == MemberInput {
				return fmt.Errorf("%s: an input is called %s, as the one that says whose a row is", g.Name, MemberInput)
			}
		}
		for _, v := range g.model.Graph.Outputs {
			if err := g.crosses(v); err != nil {
				return err
			}
		}
	}
	for i, h := range c.heads {
		for _, n := range h.nodes {
			for _, a := range n.Attributes {
				if a.Graph != nil || len(a.Graphs) > 0 {
					return fmt.Errorf("%s: %s (%s): a head with control flow", c.members[i].Name, nameOf(n), n.Op)
				}
			}
		}
	}
	return nil
}

// crosses is why an output cannot be one of the group, nil if it can.
func (g *graph) crosses(v *onnx.Value) error {
	f := g.fact(v.Name)
	cause := g.cause(v.Name)
	switch {
	case v.Type.Elem == onnx.String || v.Type.Elem == onnx.BFloat16:
		return fmt.Errorf("%s: output %q is of type %s, whose rows cannot be put together", g.Name, v.Name, v.Type.Elem)
	case f.State == rows.Nothing && cause != nil:
		return fmt.Errorf("%s: nothing proves that rows stay apart on the way to output %q: %s (%s): %s", g.Name, v.Name, cause.Node, cause.Op, cause.Reason)
	case f.State == rows.Constant:
		return fmt.Errorf("%s: output %q does not depend on the inputs' rows", g.Name, v.Name)
	case f.State == rows.Rows && len(f.Shape) == 1:
		return fmt.Errorf("%s: output %q has no dimension besides the batch, which Triton's batching wants", g.Name, v.Name)
	case f.State == rows.Rows && !f.Crosses():
		return fmt.Errorf("%s: output %q has %s places on axis 0, and not one for each row", g.Name, v.Name, f.Shape[0])
	case !f.Crosses():
		return fmt.Errorf("%s: nothing proves that rows stay apart on the way to output %q", g.Name, v.Name)
	}
	for k, d := range v.Type.Dims {
		if k >= len(f.Shape) || !v.Type.HasShape {
			continue
		}
		if size, fixed := f.Shape[k].Fixed(); fixed && d.Size >= 0 && d.Size != size {
			return fmt.Errorf("%s: output %q is declared with %d places on axis %d, and %d are computed", g.Name, v.Name, d.Size, k, size)
		}
	}
	return nil
}

func sameInputs(a, b *graph) bool {
	return slices.EqualFunc(ios(a.model.Graph.Feeds()), ios(b.model.Graph.Feeds()), func(x, y IO) bool {
		return x.Name == y.Name && x.Type == y.Type && slices.Equal(x.Dims, y.Dims)
	})
}

// groupModel builds the graph, and says how it got each member's outputs.
func (c *cut) groupModel() *grouping {
	first := c.members[0]
	g := &grouping{c: c, names: map[string]bool{}, source: &derived{owners: owners{}, made: map[*onnx.Tensor]func() ([]byte, error){}}}
	opsets := map[string]int64{}
	ir := int64(0)
	for _, m := range c.members {
		for domain, version := range m.model.Opsets {
			opsets[domain] = version
		}
		ir = max(ir, m.model.IR)
	}
	g.model = &onnx.Model{IR: ir, Producer: "conch", Opsets: opsets, Graph: &onnx.Graph{Name: "group"}}
	for _, v := range first.model.Graph.Feeds() {
		in := *v
		g.model.Graph.Inputs = append(g.model.Graph.Inputs, &in)
		g.names[v.Name] = true
	}
	g.names[MemberInput] = true
	g.model.Graph.Inputs = append(g.model.Graph.Inputs, &onnx.Value{Name: MemberInput, Type: onnx.Type{
		Kind: onnx.TensorKind, Elem: onnx.Int32, HasShape: true, Dims: []onnx.Dim{{Size: -1, Name: rows.Batch}, {Size: 1}},
	}})
	g.stack = c.stack()
	g.makeSlots()
	for _, n := range c.backbone {
		g.copy(&g.model.Graph.Nodes, 0, n, g.backboneName)
	}
	g.member = g.guarded()
	if g.stack != nil {
		g.stacked()
		return g
	}
	g.count = g.node("Shape", []string{g.member}, "")
	g.apart()
	return g
}

// makeSlots decides which outputs the group has: one that all members declare alike, sizes fixed, has its own name.
func (g *grouping) makeSlots() {
	for i, m := range g.c.members {
		for _, v := range m.model.Graph.Outputs {
			at := slices.IndexFunc(g.slots, func(s *slot) bool { return s.shared && s.takes(i, v) })
			if at < 0 {
				out := *v
				s := &slot{declare: &out, own: map[int]string{}}
				s.shared = g.stack != nil || !slices.ContainsFunc(v.Type.Dims[1:], func(d onnx.Dim) bool { return d.Size < 0 })
				g.slots = append(g.slots, s)
				at = len(g.slots) - 1
			}
			g.slots[at].own[i] = v.Name
		}
	}
	for _, s := range g.slots {
		s.name = s.declare.Name
		if len(s.own) < len(g.c.members) || g.names[s.name] {
			for i := range g.c.members {
				if own, has := s.own[i]; has {
					s.name = g.c.members[i].Name + "." + own
					break
				}
			}
		}
		for g.names[s.name] {
			s.name += "'"
		}
		g.names[s.name] = true
		s.declare.Name = s.name
		s.declare.Type.Dims = slices.Clone(s.declare.Type.Dims)
		for k := range s.declare.Type.Dims[1:] {
			if d := &s.declare.Type.Dims[k+1]; d.Size < 0 {
				d.Name = fmt.Sprintf("%s.%d", s.name, k+1)
			}
		}
		g.model.Graph.Outputs = append(g.model.Graph.Outputs, s.declare)
	}
}

// takes says whether the member's output may be in the slot beside those that are.
func (s *slot) takes(member int, v *onnx.Value) bool {
	_, taken := s.own[member]
	a, b := ios([]*onnx.Value{s.declare})[0], ios([]*onnx.Value{v})[0]
	return !taken && a.Name == b.Name && a.Type == b.Type && slices.Equal(a.Dims, b.Dims)
}

// outputs are a member's outputs, by its own names, as the group has them.
func (g *grouping) outputs(member int) map[string]string {
	out := map[string]string{}
	for _, s := range g.slots {
		if own, has := s.own[member]; has {
			out[own] = s.name
		}
	}
	return out
}

// backboneName is a value of the first member in the backbone.
func (g *grouping) backboneName(value string) string {
	if g.c.members[0].producer[value] == nil {
		return value // an input
	}
	return "backbone/" + value
}

// copy adds a member's node with other names of the values that it reads and defines.
func (g *grouping) copy(to *[]*onnx.Node, member int, n *onnx.Node, name func(string) string) {
	m := g.c.members[member]
	copied := &onnx.Node{Name: name(nameOf(n)), Op: n.Op, Domain: n.Domain, Overload: n.Overload, Attributes: n.Attributes}
	for _, in := range n.Inputs {
		switch t := m.model.Graph.Initializer(in); {
		case in == "":
		case t != nil:
			in = g.weight(member, t)
		default:
			in = name(in)
		}
		copied.Inputs = append(copied.Inputs, in)
	}
	for _, out := range n.Outputs {
		if out != "" {
			out = name(out)
		}
		copied.Outputs = append(copied.Outputs, out)
	}
	for _, a := range n.Attributes {
		for _, t := range append(slices.Clone(a.Tensors), a.Tensor) {
			if t != nil {
				g.source.owners[t] = m.model
			}
		}
	}
	*to = append(*to, copied)
}

// weight adds a member's tensor; equal ones are there once.
func (g *grouping) weight(member int, t *onnx.Tensor) string {
	name := fmt.Sprintf("weight/%x", g.c.members[member].weights[t.Name])
	if g.model.Graph.Initializer(name) == nil {
		copied := *t
		copied.Name = name
		g.source.owners[&copied] = g.c.members[member].model
		g.model.Graph.AddInitializer(&copied)
	}
	return name
}

func (g *grouping) fresh(name string) string {
	for g.names[name] {
		name += "'"
	}
	g.names[name] = true
	return name
}

// node adds a node of ours to the graph and returns its output.
func (g *grouping) node(op string, inputs []string, output string, attributes ...*onnx.Attribute) string {
	return g.nodeIn(&g.model.Graph.Nodes, op, inputs, output, attributes...)
}

func (g *grouping) nodeIn(to *[]*onnx.Node, op string, inputs []string, output string, attributes ...*onnx.Attribute) string {
	if output == "" {
		output = g.fresh("merge/" + op)
	}
	*to = append(*to, &onnx.Node{Name: output, Op: op, Inputs: inputs, Outputs: []string{output}, Attributes: attributes})
	return output
}

// constant adds a tensor of ours.
func (g *grouping) constant(name string, kind onnx.DataType, dims []int64, elements func() ([]byte, error)) string {
	name = "merge/" + name
	if g.model.Graph.Initializer(name) != nil {
		return name
	}
	t := &onnx.Tensor{Name: name, Type: kind, Dims: dims}
	g.source.made[t] = elements
	g.model.Graph.AddInitializer(t)
	return name
}

func (g *grouping) ints(values ...int64) string {
	return g.constant("ints"+fmt.Sprint(values), onnx.Int64, []int64{int64(len(values))}, func() ([]byte, error) { return int64Bytes(values...), nil })
}

// zeros adds a tensor of zeros whose shape is a value of the graph.
func (g *grouping) zeros(to *[]*onnx.Node, kind onnx.DataType, shape string) string {
	value := &onnx.Tensor{Name: "zero", Type: kind, Dims: []int64{1}}
	g.source.made[value] = func() ([]byte, error) { return make([]byte, kind.Size(1)), nil }
	return g.nodeIn(to, "ConstantOfShape", []string{shape}, "", &onnx.Attribute{Name: "value", Kind: onnx.KindTensor, Tensor: value})
}

// apart runs the heads one by one, each in the branch of an If: a head without a row in the batch costs nothing, and no operator sees an
// empty batch, which kills ONNX Runtime in some.
func (g *grouping) apart() {
	filled := map[*slot]string{} // the slot with the rows of the members so far
	for _, s := range g.slots {
		if s.shared {
			shape := g.node("Concat", []string{g.count, g.ints(rowDims(s.declare, 1)...)}, "", attribute("axis", 0))
			filled[s] = g.zeros(&g.model.Graph.Nodes, s.declare.Type.Elem, shape)
		}
	}
	for i := range g.c.members {
		which := g.constant(fmt.Sprintf("member%d", i), onnx.Int32, []int64{1}, func() ([]byte, error) { return int64Bytes(int64(i))[:4], nil })
		found := g.node("NonZero", []string{g.node("Equal", []string{g.member, which}, "")}, "") // [1, own rows]
		at := g.node("Reshape", []string{found, g.ints(-1)}, "")
		own := g.node("Shape", []string{at}, "")
		some := g.node("Greater", []string{own, g.ints(0)}, "")
		place := g.node("Reshape", []string{found, g.ints(-1, 1)}, "")
		with, without := &onnx.Graph{Name: fmt.Sprintf("head%d", i)}, &onnx.Graph{Name: fmt.Sprintf("no head%d", i)}
		name := g.head(with, i, at)
		branch := &onnx.Node{Name: g.fresh(fmt.Sprintf("merge/If%d", i)), Op: "If", Inputs: []string{some}}
		for _, s := range g.slots {
			own, has := s.own[i]
			if !has {
				continue
			}
			y := name(own)
			var base, other string
			if s.shared {
				base, other = filled[s], g.nodeIn(&without.Nodes, "Identity", []string{filled[s]}, "")
			} else {
				dims := g.nodeIn(&with.Nodes, "Shape", []string{y}, "")
				dims = g.nodeIn(&with.Nodes, "Slice", []string{dims, g.ints(1), g.ints(everything), g.ints(0)}, "")
				shape := g.nodeIn(&with.Nodes, "Concat", []string{g.count, dims}, "", attribute("axis", 0))
				base = g.zeros(&with.Nodes, s.declare.Type.Elem, shape)
				shape = g.nodeIn(&without.Nodes, "Concat", []string{g.count, g.ints(rowDims(s.declare, 1)...)}, "", attribute("axis", 0))
				other = g.zeros(&without.Nodes, s.declare.Type.Elem, shape)
			}
			y = g.nodeIn(&with.Nodes, "ScatterND", []string{base, place, y}, "")
			out := g.fresh("merge/" + s.name)
			declare := func(name string) *onnx.Value {
				return &onnx.Value{Name: name, Type: onnx.Type{Kind: onnx.TensorKind, Elem: s.declare.Type.Elem}}
			}
			with.Outputs, without.Outputs = append(with.Outputs, declare(y)), append(without.Outputs, declare(other))
			branch.Outputs = append(branch.Outputs, out)
			filled[s] = out
		}
		branch.Attributes = []*onnx.Attribute{{Name: "then_branch", Kind: onnx.KindGraph, Graph: with}, {Name: "else_branch", Kind: onnx.KindGraph, Graph: without}}
		g.model.Graph.Nodes = append(g.model.Graph.Nodes, branch)
	}
	for _, s := range g.slots {
		g.node("Identity", []string{filled[s]}, s.name)
	}
}

// rowDims are the sizes of one row of a value, with another one for those that are open.
func rowDims(v *onnx.Value, open int64) []int64 {
	var out []int64
	for _, d := range v.Type.Dims[1:] {
		if d.Size < 0 {
			d.Size = open
		}
		out = append(out, d.Size)
	}
	return out
}

// head adds a member's head on the rows of those indices to a branch; the result is how its values are called there.
func (g *grouping) head(branch *onnx.Graph, member int, at string) func(string) string {
	h := g.c.heads[member]
	taken := map[string]string{}
	take := func(value, from string) {
		taken[value] = g.nodeIn(&branch.Nodes, "Gather", []string{from, at}, "", attribute("axis", 0))
	}
	for _, x := range slices.Concat(h.crossing, h.direct) {
		take(x.Member, g.backboneName(x.Backbone))
	}
	for _, feed := range h.feeds {
		take(feed, feed)
	}
	name := func(value string) string {
		if t, is := taken[value]; is {
			return t
		}
		return fmt.Sprintf("head%d/%s", member, value)
	}
	for _, n := range h.nodes {
		g.copy(&branch.Nodes, member, n, name)
	}
	return name
}
