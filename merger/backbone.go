// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"fmt"
	"slices"

	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/merger/rows"
)

// cut is how members fall apart into a backbone and heads.
type cut struct {
	members []*graph
	// backbone are nodes of the first member.
	backbone []*onnx.Node
	// frontier are the values that cross from the backbone, by the names of the first member.
	frontier []string
	heads    []head
}

// head is what is left of a member.
type head struct {
	nodes []*onnx.Node
	// crossing are the member's names of frontier values that its head reads, in the order of the frontier.
	crossing []crossing
	// feeds are the member's own inputs that its head reads besides.
	feeds []string
	// direct are outputs of the member that the backbone computes.
	direct []crossing
}

// crossing is a value that the backbone gives to a member.
type crossing struct {
	Backbone string // its name there
	Member   string // its name in the member
}

// shared are the values that every member computes alike.
func shared(members []*graph) map[Digest]bool {
	count := map[Digest]int{}
	for _, g := range members {
		seen := map[Digest]bool{}
		for _, d := range g.values {
			if !seen[d] {
				seen[d] = true
				count[d]++
			}
		}
	}
	all := map[Digest]bool{}
	for d, n := range count {
		if n == len(members) {
			all[d] = true
		}
	}
	return all
}

// separate finds the cut: as much as all members compute alike goes into the backbone. Values cross where axis 0 is the batch; others
// that a head needs (shapes, constants, tokens side by side) it computes again from those that cross.
func separate(members []*graph) (*cut, error) {
	all := shared(members)
	first := members[0]
	c := &cut{members: members}
	named := map[Digest]string{} // the first member's name of a value
	for _, n := range first.order {
		for _, name := range n.Outputs {
			if _, again := named[first.values[name]]; !again && name != "" {
				named[first.values[name]] = name
			}
		}
	}
	crossed := map[Digest]bool{}
	for _, g := range members {
		h, err := g.head(all, named)
		if err != nil {
			return nil, err
		}
		for _, x := range slices.Concat(h.crossing, h.direct) {
			crossed[g.values[x.Member]] = true
		}
		c.heads = append(c.heads, h)
	}
	for _, n := range first.order {
		for _, name := range n.Outputs {
			if d := first.values[name]; crossed[d] && named[d] == name {
				c.frontier = append(c.frontier, name)
			}
		}
	}
	if len(c.frontier) == 0 {
		return c, nil
	}
	used := map[*onnx.Node]bool{}
	var visit func(value string)
	visit = func(value string) {
		n := first.producer[value]
		if n == nil || used[n] {
			return
		}
		used[n] = true
		for _, name := range n.Inputs {
			visit(name)
		}
	}
	for _, name := range c.frontier {
		visit(name)
	}
	c.backbone = first.inOrder(used)
	for i := range c.heads {
		order := func(a, b crossing) int {
			return slices.Index(c.frontier, a.Backbone) - slices.Index(c.frontier, b.Backbone)
		}
		slices.SortStableFunc(c.heads[i].crossing, order)
	}
	return c, nil
}

func (g *graph) head(all map[Digest]bool, named map[Digest]string) (head, error) {
	var h head
	used := map[*onnx.Node]bool{}
	seen := map[string]bool{}
	var visit func(value string)
	visit = func(value string) {
		if value == "" || seen[value] {
			return
		}
		seen[value] = true
		n := g.producer[value]
		if n == nil {
			if g.model.Graph.Initializer(value) == nil {
				h.feeds = append(h.feeds, value)
			}
			return
		}
		if d := g.values[value]; all[d] && named[d] != "" && g.fact(value).Crosses() {
			h.crossing = append(h.crossing, crossing{Backbone: named[d], Member: value})
			return
		}
		if used[n] {
			return
		}
		used[n] = true
		for _, name := range n.Uses() {
			visit(name)
		}
	}
	for _, v := range g.model.Graph.Outputs {
		if d := g.values[v.Name]; all[d] && named[d] != "" && g.fact(v.Name).Crosses() {
			h.direct = append(h.direct, crossing{Backbone: named[d], Member: v.Name})
			continue
		}
		if g.producer[v.Name] == nil {
			return head{}, fmt.Errorf("%s: output %q is an input or a constant", g.Name, v.Name)
		}
		visit(v.Name)
	}
	h.nodes = g.inOrder(used)
	return h, nil
}

// part builds a model of some of a member's nodes.
func (g *graph) part(name string, nodes []*onnx.Node, inputs, outputs []*onnx.Value) *onnx.Model {
	out := &onnx.Graph{Name: name, Nodes: nodes, Inputs: inputs, Outputs: outputs}
	seen := map[string]bool{}
	for _, n := range nodes {
		for _, use := range n.Uses() {
			if t := g.model.Graph.Initializer(use); t != nil && !seen[use] {
				seen[use] = true
				out.AddInitializer(t)
			}
		}
	}
	m := g.model.WithGraph(out)
	m.Producer, m.ProducerVersion, m.Version = "conch", "", 0
	return m
}

// crossingValue is the declaration of a value that crosses between parts.
func crossingValue(name string, f rows.Fact) *onnx.Value {
	v := &onnx.Value{Name: name, Type: onnx.Type{Kind: onnx.TensorKind, Elem: f.Type, HasShape: true}}
	for i, d := range f.Shape {
		size, fixed := d.Fixed()
		switch {
		case i == 0:
			v.Type.Dims = append(v.Type.Dims, onnx.Dim{Size: -1, Name: rows.Batch})
		case fixed:
			v.Type.Dims = append(v.Type.Dims, onnx.Dim{Size: size})
		default:
			v.Type.Dims = append(v.Type.Dims, onnx.Dim{Size: -1, Name: d.String()})
		}
	}
	for i := range v.Type.Dims {
		if v.Type.Dims[i].Name == "?" {
			v.Type.Dims[i].Name = fmt.Sprintf("%s.%d", name, i)
		}
	}
	return v
}

// backboneModel is the model of the shared nodes, with the frontier as outputs.
func (c *cut) backboneModel() *onnx.Model {
	g := c.members[0]
	uses := map[string]bool{}
	for _, n := range c.backbone {
		for _, name := range n.Uses() {
			uses[name] = true
		}
	}
	var inputs, outputs []*onnx.Value
	for _, v := range g.model.Graph.Feeds() {
		if uses[v.Name] {
			inputs = append(inputs, v)
		}
	}
	for _, name := range c.frontier {
		outputs = append(outputs, crossingValue(name, g.fact(name)))
	}
	return g.part("backbone", c.backbone, inputs, outputs)
}

// headModel is the model of member i's head, nil where the backbone computes all its outputs.
func (c *cut) headModel(i int) *onnx.Model {
	g, h := c.members[i], c.heads[i]
	if len(h.nodes) == 0 {
		return nil
	}
	var inputs, outputs []*onnx.Value
	for _, x := range h.crossing {
		inputs = append(inputs, crossingValue(x.Member, g.fact(x.Member)))
	}
	for _, v := range g.model.Graph.Feeds() {
		if slices.Contains(h.feeds, v.Name) {
			inputs = append(inputs, v)
		}
	}
	for _, v := range g.model.Graph.Outputs {
		if !slices.ContainsFunc(h.direct, func(x crossing) bool { return x.Member == v.Name }) {
			outputs = append(outputs, v)
		}
	}
	return g.part("head", h.nodes, inputs, outputs)
}
