// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/conch-serving/conch/internal/onnx"
)

// State is what a value has to do with the rows of a batch.
type State int

const (
	// Nothing is known of the value.
	Nothing State = iota
	// Constant says that the value is the same whatever the rows hold. It may depend on how many there are and on other sizes.
	Constant
	// Rows says that axis 0 is the batch, or a multiple of it in the order of the rows; what is at a row depends on that row alone.
	Rows
)

// String is "nothing", "constant" or "rows".
func (s State) String() string { return [...]string{"nothing", "constant", "rows"}[s] }

// Fact is what is known of a value.
type Fact struct {
	State State
	Type  onnx.DataType
	// Shape is nil where not even the number of dimensions is known; a scalar has an empty one. A value with State Rows has a shape.
	Shape []Dim
	// Value holds the elements of an integer scalar or vector that shapes are computed with, where they are known.
	Value []Dim
	// Counts says of a constant that it may depend on how many rows there are: good for shapes, never for what a row computes.
	Counts bool
}

// Crosses says whether the value can be an input or output of a Triton model with batching: axis 0 is the batch itself, and there
// are further ones, which Triton's configuration demands.
func (f Fact) Crosses() bool {
	return f.State == Rows && len(f.Shape) > 1 && f.Shape[0].Equal(Symbol(Batch))
}

// String is state, type and shape, as in "rows float [N,768]".
func (f Fact) String() string {
	if f.Shape == nil {
		return fmt.Sprintf("%s %s", f.State, f.Type)
	}
	var dims []string
	for _, d := range f.Shape {
		dims = append(dims, d.String())
	}
	return fmt.Sprintf("%s %s [%s]", f.State, f.Type, strings.Join(dims, ","))
}

func (f Fact) rank() int { return len(f.Shape) }

// Refusal is a node that is not proved to keep rows apart.
type Refusal struct {
	Node   string // its name, or its first output where it has none
	Op     string
	Reason string
	// Follows says that the node is refused because of one before it alone.
	Follows bool
}

// Analysis is what is known of a graph.
type Analysis struct {
	// Facts by the name of the value; a value without one comes from a refused node.
	Facts map[string]Fact
	// Refused by the node.
	Refused map[*onnx.Node]Refusal
	// Order is the nodes, each after those that it uses.
	Order []*onnx.Node
}

// Proved says whether the node keeps rows apart.
func (a *Analysis) Proved(n *onnx.Node) bool { _, refused := a.Refused[n]; return !refused }

// Analyze derives the facts of the model's graph. Axis 0 of every input is taken for the batch, as Triton does where max_batch_size is
// not 0. The error is a graph that has no order (a cycle, an undefined name) or an input that has no batch.
func Analyze(m *onnx.Model) (*Analysis, error) {
	order, err := m.Graph.Order(nil)
	if err != nil {
		return nil, err
	}
	a := &Analysis{Facts: map[string]Fact{}, Refused: map[*onnx.Node]Refusal{}, Order: order}
	for _, v := range m.Graph.Feeds() {
		f, err := feed(v)
		if err != nil {
			return nil, err
		}
		a.Facts[v.Name] = f
	}
	for _, t := range m.Graph.Initializers {
		a.Facts[t.Name] = constant(m, t)
	}
	for _, n := range order {
		a.node(m, n)
	}
	return a, nil
}

// feed is the fact of a graph's input.
func feed(v *onnx.Value) (Fact, error) {
	t := v.Type
	switch {
	case t.Kind != onnx.TensorKind:
		return Fact{}, fmt.Errorf("input %q is not a tensor", v.Name)
	case !t.HasShape || len(t.Dims) == 0:
		return Fact{}, fmt.Errorf("input %q has no axis for a batch", v.Name)
	case t.Dims[0].Size >= 0:
		return Fact{}, fmt.Errorf("input %q has %d rows, fixed when it was exported", v.Name, t.Dims[0].Size)
	}
	f := Fact{State: Rows, Type: t.Elem, Shape: []Dim{Symbol(Batch)}}
	for i, d := range t.Dims[1:] {
		switch {
		case d.Size >= 0:
			f.Shape = append(f.Shape, Const(d.Size))
		case d.Name != "" && d.Name != t.Dims[0].Name && d.Name != Batch:
			f.Shape = append(f.Shape, Symbol("dim "+d.Name))
		default:
			f.Shape = append(f.Shape, Symbol(fmt.Sprintf("%s.%d", v.Name, i+1)))
		}
	}
	return f, nil
}

// maxValue is how many elements a vector may have that shapes are computed with.
const maxValue = 64

func constant(m *onnx.Model, t *onnx.Tensor) Fact {
	f := Fact{State: Constant, Type: t.Type, Shape: []Dim{}}
	for _, d := range t.Dims {
		f.Shape = append(f.Shape, Const(d))
	}
	if len(t.Dims) <= 1 && t.Elements() <= maxValue && (t.Type == onnx.Int64 || t.Type == onnx.Int32) {
		if v, err := m.Int64s(t); err == nil {
			f.Value = []Dim{}
			for _, x := range v {
				f.Value = append(f.Value, Const(x))
			}
		}
	}
	return f
}

func (a *Analysis) node(m *onnx.Model, n *onnx.Node) {
	refuse := func(format string, args ...any) {
		name := n.Name
		if name == "" && len(n.Outputs) > 0 {
			name = n.Outputs[0]
		}
		a.Refused[n] = Refusal{Node: name, Op: n.Op, Reason: fmt.Sprintf(format, args...)}
	}
	if n.Domain != "" {
		refuse("operators of domain %q are not known", n.Domain)
		return
	}
	rule, known := rules[n.Op]
	if !known {
		if why := hopeless[n.Op]; why != "" {
			refuse("%s", why)
			return
		}
		refuse("no rule proves that it keeps rows apart")
		return
	}
	in := make([]Fact, len(n.Inputs))
	present := make([]bool, len(n.Inputs))
	for i, name := range n.Inputs {
		if name == "" {
			continue
		}
		present[i] = true
		if in[i] = a.Facts[name]; in[i].State == Nothing {
			refuse("nothing is known of its input %q", name)
			r := a.Refused[n]
			r.Follows = true
			a.Refused[n] = r
			return
		}
	}
	u := &use{m: m, n: n, in: in, present: present, opset: m.Opsets[""]}
	out, err := rule(u)
	if err != nil {
		refuse("%s", err)
		return
	}
	for i, name := range n.Outputs {
		if name == "" {
			continue
		}
		if i >= len(out) {
			refuse("its output %q has no rule", name)
			return
		}
		if err := u.check(name, &out[i]); err != nil {
			refuse("%s", err)
			return
		}
	}
	for i, name := range n.Outputs {
		if name != "" {
			a.Facts[name] = out[i]
		}
	}
}

func batches(dims []Dim) bool {
	return slices.ContainsFunc(dims, func(d Dim) bool { return d.batches() != 0 })
}

// check holds an output to what its state promises, whatever the rule was.
func (u *use) check(name string, o *Fact) error {
	switch o.State {
	case Rows:
		if len(o.Shape) == 0 || o.Shape[0].batches() != 1 || batches(o.Shape[1:]) {
			return fmt.Errorf("axis 0 of its output %q is not the batch: %v", name, *o)
		}
		for i, f := range u.in {
			if f.Counts && !slices.Contains(shapeInputs[u.n.Op], i) {
				return errors.New("what it computes depends on how many rows there are")
			}
		}
	case Constant:
		if batches(o.Shape) {
			return fmt.Errorf("its output %q has a constant for each place in the batch", name)
		}
		o.Counts = slices.ContainsFunc(u.in, func(f Fact) bool { return f.Counts })
		if o.Value != nil {
			lost := slices.ContainsFunc(o.Value, func(d Dim) bool { return d.Unknown })
			o.Counts = batches(o.Value) || lost && o.Counts
		}
	}
	return nil
}

// use is one use of an operator, as its rule sees it.
type use struct {
	m       *onnx.Model
	n       *onnx.Node
	in      []Fact
	present []bool
	opset   int64
}

// has says whether input i is given.
func (u *use) has(i int) bool { return i < len(u.in) && u.present[i] }

// constants refuses inputs from i on that are rows.
func (u *use) constants(from int) error {
	for i := from; i < len(u.in); i++ {
		if u.has(i) && u.in[i].State != Constant {
			return fmt.Errorf("its input %d depends on rows", i)
		}
	}
	return nil
}

// need refuses a use with fewer inputs, or with one of the first n left out.
func (u *use) need(n int) error {
	for i := range n {
		if !u.has(i) {
			return fmt.Errorf("it has no input %d", i)
		}
	}
	return nil
}

// numbers is the elements of a constant input, all fixed.
func (u *use) numbers(i int) ([]int64, bool) {
	if !u.has(i) || u.in[i].Value == nil {
		return nil, false
	}
	var out []int64
	for _, d := range u.in[i].Value {
		v, fixed := d.Fixed()
		if !fixed {
			return nil, false
		}
		out = append(out, v)
	}
	return out, true
}

// axes is the list of axes given as an attribute or, in later operator sets, as an input.
func (u *use) axes(input int) (axes []int64, given bool, err error) {
	if a := u.n.Ints("axes"); a != nil {
		return a, true, nil
	}
	if !u.has(input) {
		return nil, false, nil
	}
	axes, known := u.numbers(input)
	if !known {
		return nil, false, errors.New("its axes are not constant")
	}
	return axes, true, nil
}

// axis makes an axis that may count from the end one that counts from the start.
func axis(a int64, rank int) (int, error) {
	if a < -int64(rank) || a >= int64(rank) {
		return 0, fmt.Errorf("axis %d of %d", a, rank)
	}
	if a < 0 {
		a += int64(rank)
	}
	return int(a), nil
}

// inner is axis for uses that must leave axis 0 alone when f holds rows.
func inner(a int64, f Fact) (int, error) {
	k, err := axis(a, f.rank())
	if err == nil && k == 0 && f.State == Rows {
		return 0, errors.New("it works along axis 0, across rows")
	}
	return k, err
}
