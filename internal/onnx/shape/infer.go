// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"fmt"
	"slices"
	"sort"

	"github.com/conch-serving/conch/internal/onnx"
)

// Graph is a model with its names resolved, ready to be inferred for any input shapes. Infer may be called by one goroutine at a time.
type Graph struct {
	Model *onnx.Model
	// Feeds are the inputs that need shapes.
	Feeds []*onnx.Value
	// Parameters is the size of all initializers, in bytes; Weights how many elements they have.
	Parameters, Weights int64

	root      *block
	functions map[string]*onnx.Function
	constants map[*onnx.Tensor]*Tensor
	slots     int
}

// block is a graph or the body of a function: nodes with the slots that their values have.
type block struct {
	inputs, outputs []int
	fixed           []fixed
	nodes           []node
}

type fixed struct {
	slot   int
	tensor *onnx.Tensor
}

type node struct {
	*onnx.Node
	rule    rule
	in, out []int // slots, -1 where left out
	bodies  []*block
	inside  string // function that it stands for
}

// Compile resolves a model: the order of its nodes, its subgraphs and functions. Cycles and names that nothing defines are errors.
func Compile(m *onnx.Model) (*Graph, error) {
	if m.Graph == nil {
		return nil, fmt.Errorf("%s: the model has no graph", m.Path)
	}
	g := &Graph{Model: m, Feeds: m.Graph.Feeds(), functions: map[string]*onnx.Function{}, constants: map[*onnx.Tensor]*Tensor{}}
	for _, f := range m.Functions {
		g.functions[f.Domain+"::"+f.Name] = f
	}
	steps := 0
	root, err := g.compile(m.Graph, nil, 0, &steps)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Path, err)
	}
	g.root = root
	return g, nil
}

// scope is the names of a graph and those around it.
type scope struct {
	names map[string]int
	outer *scope
}

func (s *scope) find(name string) int {
	for at := s; at != nil; at = at.outer {
		if slot, ok := at.names[name]; ok {
			return slot
		}
	}
	return -1
}

func (s *scope) all() map[string]bool {
	names := map[string]bool{}
	for at := s; at != nil; at = at.outer {
		for name := range at.names {
			names[name] = true
		}
	}
	return names
}

func (g *Graph) slot(s *scope, name string) int {
	s.names[name] = g.slots
	g.slots++
	return g.slots - 1
}

func (g *Graph) compile(graph *onnx.Graph, outer *scope, depth int, steps *int) (*block, error) {
	if depth > mostDepth {
		return nil, fmt.Errorf("graphs nest more than %d deep", mostDepth)
	}
	order, err := graph.Order(outer.all())
	if err != nil {
		return nil, err
	}
	s := &scope{names: map[string]int{}, outer: outer}
	b := &block{}
	for _, v := range graph.Inputs {
		if graph.Initializer(v.Name) == nil {
			b.inputs = append(b.inputs, g.slot(s, v.Name))
		}
	}
	for _, t := range graph.Initializers {
		b.fixed = append(b.fixed, fixed{g.slot(s, t.Name), t})
		g.Parameters += t.Bytes()
		g.Weights += t.Elements()
	}
	if err := g.nodes(b, order, s, depth, steps); err != nil {
		return nil, err
	}
	for _, v := range graph.Outputs {
		b.outputs = append(b.outputs, s.find(v.Name))
	}
	return b, nil
}

func (g *Graph) nodes(b *block, order []*onnx.Node, s *scope, depth int, steps *int) error {
	for _, n := range order {
		if *steps++; *steps > mostSteps {
			return fmt.Errorf("more than %d operators, with functions and subgraphs unfolded", mostSteps)
		}
		compiled := node{Node: n}
		for _, name := range n.Inputs {
			slot := -1
			if name != "" {
				slot = s.find(name)
			}
			compiled.in = append(compiled.in, slot)
		}
		if f := g.functions[n.Domain+"::"+n.Op]; f != nil {
			body, err := g.function(f, n, depth+1, steps)
			if err != nil {
				return fmt.Errorf("function %s: %w", f.Name, err)
			}
			compiled.bodies, compiled.inside = []*block{body}, f.Name
		} else {
			compiled.rule = rules[n.Op]
			for _, a := range n.Attributes {
				if a.Graph == nil {
					continue
				}
				body, err := g.compile(a.Graph, s, depth+1, steps)
				if err != nil {
					return fmt.Errorf("%s %q, %s: %w", n.Op, n.Name, a.Name, err)
				}
				compiled.bodies = append(compiled.bodies, body)
			}
		}
		for _, name := range n.Outputs {
			slot := -1
			if name != "" {
				slot = g.slot(s, name)
			}
			compiled.out = append(compiled.out, slot)
		}
		b.nodes = append(b.nodes, compiled)
	}
	return nil
}

// function unfolds a function: its body with the attributes of the node that calls it.
func (g *Graph) function(f *onnx.Function, call *onnx.Node, depth int, steps *int) (*block, error) {
	if depth > mostDepth {
		return nil, fmt.Errorf("functions call each other more than %d deep", mostDepth)
	}
	value := func(name string) *onnx.Attribute {
		if a := call.Attribute(name); a != nil {
			return a
		}
		i := slices.IndexFunc(f.Attributes, func(a *onnx.Attribute) bool { return a.Name == name })
		if i < 0 {
			return nil
		}
		return f.Attributes[i]
	}
	body := &onnx.Graph{Name: f.Name}
	for _, name := range f.Inputs {
		body.Inputs = append(body.Inputs, &onnx.Value{Name: name})
	}
	for _, name := range f.Outputs {
		body.Outputs = append(body.Outputs, &onnx.Value{Name: name})
	}
	for _, n := range f.Nodes {
		bound := *n
		bound.Attributes = nil
		for _, a := range n.Attributes {
			if a.RefName == "" {
				bound.Attributes = append(bound.Attributes, a)
			} else if given := value(a.RefName); given != nil {
				renamed := *given
				renamed.Name = a.Name
				bound.Attributes = append(bound.Attributes, &renamed)
			}
		}
		body.Nodes = append(body.Nodes, &bound)
	}
	return g.compile(body, nil, depth, steps)
}

// constant is an initializer as a tensor, with its contents where they are few: read once.
func (g *Graph) constant(t *onnx.Tensor) *Tensor {
	if c := g.constants[t]; c != nil {
		return c
	}
	c := &Tensor{Type: t.Type, Dims: t.Dims, Weight: true}
	if c.Dims == nil {
		c.Dims = []int64{}
	}
	if t.Elements() <= mostKnown {
		// What cannot be read (external data that is not there) stays unknown: shapes then come from elsewhere or are warned of.
		switch t.Type {
		case onnx.Int64, onnx.Int32:
			c.Ints, _ = g.Model.Int64s(t)
		case onnx.Bool, onnx.Uint8, onnx.Int8:
			if data, err := g.Model.Data(t); err == nil {
				c.Ints = make([]int64, len(data))
				for i, b := range data {
					c.Ints[i] = int64(b)
				}
			}
		case onnx.Float, onnx.Double:
			if t.Elements() <= 64 {
				if floats, err := g.Model.Float32s(t); err == nil {
					c.Floats = make([]float64, len(floats))
					for i, f := range floats {
						c.Floats[i] = float64(f)
					}
				}
			}
		}
	}
	g.constants[t] = c
	return c
}

// Step is one operator with its tensors.
type Step struct {
	Node *onnx.Node
	// Inputs and Outputs have nil where the operator leaves one out.
	Inputs, Outputs []*Tensor
	// In and Out are numbers of the values, the same in every inference of the graph; -1 where one is left out.
	In, Out []int
	// Repeat is how often it runs: the trips of loops around it.
	Repeat float64
	// Known says that the operator has a rule.
	Known bool
}

// Result is an inference.
type Result struct {
	// Steps are in an order in which they can run.
	Steps []Step
	// Outputs are the numbers of the model's outputs.
	Outputs []int
	// Values is how many numbers there are.
	Values int
	// Warnings say what was guessed, each once, sorted.
	Warnings []string
}

// Infer works out every shape for inputs of these dimensions, by name.
func (g *Graph) Infer(inputs map[string][]int64) (*Result, error) {
	run := &run{g: g, values: make([]*Tensor, g.slots), result: &Result{Values: g.slots, Steps: make([]Step, 0, len(g.root.nodes))}, warned: map[string]bool{}}
	for i, v := range g.Feeds {
		dims, ok := inputs[v.Name]
		if !ok {
			return nil, fmt.Errorf("%s: input %q has no shape", g.Model.Path, v.Name)
		}
		if err := check(dims); err != nil {
			return nil, fmt.Errorf("%s: input %q: %w", g.Model.Path, v.Name, err)
		}
		run.values[g.root.inputs[i]] = &Tensor{Type: v.Type.Elem, Dims: dims}
	}
	if err := run.block(g.root, 1); err != nil {
		return nil, fmt.Errorf("%s: %w", g.Model.Path, err)
	}
	run.result.Outputs = g.root.outputs
	for w := range run.warned {
		run.result.Warnings = append(run.result.Warnings, w)
	}
	sort.Strings(run.result.Warnings)
	return run.result, nil
}

type run struct {
	g      *Graph
	values []*Tensor
	result *Result
	warned map[string]bool
	steps  int
}

func (r *run) warn(format string, args ...any) {
	if len(r.warned) < 100 {
		r.warned[fmt.Sprintf(format, args...)] = true
	}
}

func (r *run) get(slot int) *Tensor {
	if slot < 0 {
		return nil
	}
	return r.values[slot]
}

func (r *run) block(b *block, repeat float64) error {
	for _, f := range b.fixed {
		r.values[f.slot] = r.g.constant(f.tensor)
	}
	for i := range b.nodes {
		if err := r.node(&b.nodes[i], repeat); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) node(n *node, repeat float64) error {
	if r.steps++; r.steps > mostSteps {
		return fmt.Errorf("more than %d operators to run", mostSteps)
	}
	c := &call{run: r, node: n, in: make([]*Tensor, len(n.in))}
	weight := len(n.in) > 0 || n.Op == "Constant"
	unknown, guessed := false, false
	for i, slot := range n.in {
		c.in[i] = r.get(slot)
		if c.in[i] != nil {
			weight = weight && c.in[i].Weight
			unknown, guessed = unknown || c.in[i].Unknown, guessed || c.in[i].Guessed
		}
	}
	switch {
	case n.inside != "":
		return r.function(n, c, repeat)
	case n.Op == "If" || n.Op == "Loop" || n.Op == "Scan":
		return r.control(n, c, repeat)
	}
	out, err := c.outputs(unknown || guessed)
	if err != nil {
		return fmt.Errorf("%s %q: %w", n.Op, n.Name, err)
	}
	for i, slot := range n.out {
		if slot < 0 {
			continue
		}
		var t *Tensor
		if i < len(out) {
			t = out[i]
		}
		if t == nil {
			t = &Tensor{Unknown: true, Dims: []int64{}}
			if len(out) > 0 && out[0] != nil {
				t = &Tensor{Type: out[0].Type, Dims: []int64{}} // a statistic that the operator gives besides
			}
		}
		if err := check(t.Dims); err != nil {
			return fmt.Errorf("%s %q: %w", n.Op, n.Name, err)
		}
		t.Weight = weight
		t.Guessed = t.Guessed || guessed || n.rule == nil
		r.values[slot] = t
	}
	step := Step{Node: n.Node, Inputs: c.in, In: n.in, Out: n.out, Repeat: repeat, Known: n.rule != nil}
	for _, slot := range n.out {
		step.Outputs = append(step.Outputs, r.get(slot))
	}
	r.result.Steps = append(r.result.Steps, step)
	return nil
}

// function runs the body that the node stands for.
func (r *run) function(n *node, c *call, repeat float64) error {
	body := n.bodies[0]
	for i, slot := range body.inputs {
		if i < len(c.in) {
			r.values[slot] = c.in[i]
		}
	}
	if err := r.block(body, repeat); err != nil {
		return fmt.Errorf("function %s: %w", n.inside, err)
	}
	r.take(n.out, body.outputs, 0)
	return nil
}

func (r *run) take(out, from []int, skip int) {
	for i, slot := range out {
		if slot < 0 {
			continue
		}
		r.values[slot] = &Tensor{Unknown: true, Dims: []int64{}}
		if i+skip < len(from) && r.get(from[i+skip]) != nil {
			r.values[slot] = r.get(from[i+skip])
		}
	}
}

// control runs the bodies of If, Loop and Scan: of If the last branch's shapes are taken and every branch is counted for its share; a Loop whose trips are
// not known counts once.
func (r *run) control(n *node, c *call, repeat float64) error {
	if len(n.bodies) == 0 {
		return fmt.Errorf("%s %q has no body", n.Op, n.Name)
	}
	switch n.Op {
	case "If":
		r.warn("If %q: each branch is counted as taken by an equal share of the requests", n.Name)
		for _, body := range n.bodies {
			if err := r.block(body, repeat/float64(len(n.bodies))); err != nil {
				return err
			}
		}
		r.take(n.out, n.bodies[0].outputs, 0)
		return nil
	case "Loop":
		trips := 1.0
		if t := c.at(0); t != nil && len(t.Ints) == 1 && t.Ints[0] >= 0 && t.Ints[0] < 1<<20 {
			trips = float64(t.Ints[0])
		} else {
			r.warn("Loop %q: how often it runs is not known beforehand; it is counted once", n.Name)
		}
		body := n.bodies[0]
		for i, slot := range body.inputs {
			r.values[slot] = &Tensor{Type: onnx.Int64, Dims: []int64{}}
			if i >= 2 && c.at(i) != nil {
				carried := *c.at(i)
				carried.Ints, carried.Floats = nil, nil // it changes from trip to trip
				r.values[slot] = &carried
			}
		}
		if err := r.block(body, repeat*trips); err != nil {
			return err
		}
		r.take(n.out, body.outputs, 1)
		for i := len(c.in) - 2; i >= 0 && i < len(n.out); i++ { // what is collected over the trips
			if slot := n.out[i]; slot >= 0 && !r.values[slot].Unknown {
				collected := *r.values[slot]
				collected.Dims = append([]int64{int64(trips)}, collected.Dims...)
				collected.Ints, collected.Floats = nil, nil
				r.values[slot] = &collected
			}
		}
		return nil
	}
	return r.scan(n, c, repeat)
}

func (r *run) scan(n *node, c *call, repeat float64) error {
	body := n.bodies[0]
	scanned := int(n.Int("num_scan_inputs", 1))
	states := max(0, len(c.in)-scanned)
	trips := int64(1)
	for i, slot := range body.inputs {
		t := c.at(i)
		if t == nil {
			return fmt.Errorf("node %q (Scan): input %d is missing", n.Name, i)
		}
		slice := *t
		if i >= states && len(t.Dims) > 0 {
			trips = max(trips, t.Dims[0])
			slice.Dims = t.Dims[1:]
		}
		slice.Ints, slice.Floats = nil, nil
		r.values[slot] = &slice
	}
	if err := r.block(body, repeat*float64(trips)); err != nil {
		return err
	}
	r.take(n.out, body.outputs, 0)
	for i := states; i < len(n.out); i++ {
		if slot := n.out[i]; slot >= 0 && !r.values[slot].Unknown {
			collected := *r.values[slot]
			collected.Dims = append([]int64{trips}, collected.Dims...)
			r.values[slot] = &collected
		}
	}
	return nil
}
