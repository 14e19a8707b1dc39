// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// decoder builds an index from the messages of onnx.proto. Sizes that it accounts for are those of our structures, about.
type decoder struct {
	budget budget
}

func (d *decoder) model(c *cursor) *Model {
	m := &Model{Opsets: map[string]int64{}, Metadata: map[string]string{}}
	for {
		field, wire, ok := c.next()
		if !ok {
			break
		}
		switch field {
		case 1:
			m.IR = int64(c.number(wire)) //nolint:gosec // protobuf's int64 is this conversion
		case 2:
			m.Producer = c.text(wire, &d.budget)
		case 3:
			m.ProducerVersion = c.text(wire, &d.budget)
		case 4:
			m.Domain = c.text(wire, &d.budget)
		case 5:
			m.Version = int64(c.number(wire)) //nolint:gosec // protobuf's int64 is this conversion
		case 7:
			inner := c.message(wire)
			if m.Graph != nil {
				c.fail("a model with two graphs")
				continue
			}
			m.Graph = d.graph(&inner)
		case 8:
			inner := c.message(wire)
			d.opset(&inner, m.Opsets)
		case 14:
			inner := c.message(wire)
			key, value := d.entry(&inner)
			m.Metadata[key] = value
		case 20:
			m.Training = true
			c.skip(wire)
		case 25:
			inner := c.message(wire)
			m.Functions = append(m.Functions, d.function(&inner))
		default:
			c.skip(wire)
		}
	}
	if m.Graph == nil {
		c.fail("not an ONNX model: no graph in it")
	}
	return m
}

func (d *decoder) opset(c *cursor, into map[string]int64) {
	var domain string
	var version int64
	for field, wire, ok := c.next(); ok; field, wire, ok = c.next() {
		switch field {
		case 1:
			domain = c.text(wire, &d.budget)
		case 2:
			version = int64(c.number(wire)) //nolint:gosec // protobuf's int64 is this conversion
		default:
			c.skip(wire)
		}
	}
	if domain == "ai.onnx" {
		domain = ""
	}
	if before, twice := into[domain]; twice && before != version {
		c.fail("two versions of operator set %q", domain)
	}
	d.budget.take(c, 64)
	into[domain] = version
}

func (d *decoder) entry(c *cursor) (key, value string) {
	for field, wire, ok := c.next(); ok; field, wire, ok = c.next() {
		switch field {
		case 1:
			key = c.text(wire, &d.budget)
		case 2:
			value = c.text(wire, &d.budget)
		default:
			c.skip(wire)
		}
	}
	d.budget.take(c, 64)
	return key, value
}

func (d *decoder) graph(c *cursor) *Graph {
	leave, ok := d.budget.deeper(c)
	defer leave()
	g := &Graph{initializers: map[string]*Tensor{}}
	if !ok {
		return g
	}
	for field, wire, ok := c.next(); ok; field, wire, ok = c.next() {
		switch field {
		case 1:
			inner := c.message(wire)
			g.Nodes = append(g.Nodes, d.node(&inner))
		case 2:
			g.Name = c.text(wire, &d.budget)
		case 5:
			inner := c.message(wire)
			t := d.tensor(&inner)
			if g.initializers[t.Name] != nil {
				c.fail("two initializers with the name %q", t.Name)
			}
			d.budget.take(c, 64)
			g.initializers[t.Name] = t
			g.Initializers = append(g.Initializers, t)
		case 11:
			g.Inputs = append(g.Inputs, d.value(c, wire))
		case 12:
			g.Outputs = append(g.Outputs, d.value(c, wire))
		case 13:
			g.Values = append(g.Values, d.value(c, wire))
		case 14:
			g.Quantization++
			c.skip(wire)
		case 15:
			g.SparseInitializers++
			c.skip(wire)
		default:
			c.skip(wire)
		}
	}
	return g
}

func (d *decoder) node(c *cursor) *Node {
	n := &Node{}
	d.budget.take(c, 160)
	for field, wire, ok := c.next(); ok; field, wire, ok = c.next() {
		switch field {
		case 1:
			d.budget.take(c, 16)
			n.Inputs = append(n.Inputs, c.text(wire, &d.budget))
		case 2:
			d.budget.take(c, 16)
			n.Outputs = append(n.Outputs, c.text(wire, &d.budget))
		case 3:
			n.Name = c.text(wire, &d.budget)
		case 4:
			n.Op = c.text(wire, &d.budget)
		case 5:
			inner := c.message(wire)
			n.Attributes = append(n.Attributes, d.attribute(&inner))
		case 7:
			if n.Domain = c.text(wire, &d.budget); n.Domain == "ai.onnx" {
				n.Domain = ""
			}
		case 8:
			n.Overload = c.text(wire, &d.budget)
		default:
			c.skip(wire)
		}
	}
	return n
}

func (d *decoder) attribute(c *cursor) *Attribute {
	a := &Attribute{}
	d.budget.take(c, 320)
	found := KindUndefined // files of the first IR versions leave the kind out
	for field, wire, ok := c.next(); ok; field, wire, ok = c.next() {
		switch field {
		case 1:
			a.Name = c.text(wire, &d.budget)
		case 21:
			a.RefName = c.text(wire, &d.budget)
		case 20:
			a.Kind = AttributeKind(c.number(wire)) //nolint:gosec // an enum of 32 bits
		default:
			if k := d.value1(c, wire, field, a); k != KindUndefined {
				found = k
			}
		}
	}
	if a.Kind == KindUndefined {
		a.Kind = found
	}
	if a.Kind == KindTensor && a.Tensor == nil && a.RefName == "" || a.Kind == KindGraph && a.Graph == nil && a.RefName == "" {
		c.fail("attribute %q has no value", a.Name)
	}
	return a
}

// value1 reads one field that holds (a part of) an attribute's value and says of which kind it is.
func (d *decoder) value1(c *cursor, wire protowire.Type, field protowire.Number, a *Attribute) AttributeKind {
	switch field {
	case 2:
		a.Float = math.Float32frombits(c.fixed32(wire))
		return KindFloat
	case 3:
		a.Int = int64(c.number(wire)) //nolint:gosec // protobuf's int64 is this conversion
		return KindInt
	case 4:
		a.String = c.bytes(wire, &d.budget)
		return KindString
	case 5:
		inner := c.message(wire)
		a.Tensor = d.tensor(&inner)
		return KindTensor
	case 6:
		inner := c.message(wire)
		a.Graph = d.graph(&inner)
		return KindGraph
	case 7:
		a.Floats = c.float32s(wire, a.Floats, &d.budget)
		return KindFloats
	case 8:
		a.Ints = c.int64s(wire, a.Ints, &d.budget)
		return KindInts
	case 9:
		d.budget.take(c, 24)
		a.Strings = append(a.Strings, c.bytes(wire, &d.budget))
		return KindStrings
	case 10:
		inner := c.message(wire)
		a.Tensors = append(a.Tensors, d.tensor(&inner))
		return KindTensors
	case 11:
		inner := c.message(wire)
		a.Graphs = append(a.Graphs, d.graph(&inner))
		return KindGraphs
	case 14, 15:
		inner := c.message(wire)
		a.Types = append(a.Types, d.typeOf(&inner))
		return map[protowire.Number]AttributeKind{14: KindType, 15: KindTypes}[field]
	case 22, 23:
		c.skip(wire)
		return map[protowire.Number]AttributeKind{22: KindSparseTensor, 23: KindSparseTensors}[field]
	default:
		c.skip(wire)
		return KindUndefined
	}
}

func (d *decoder) function(c *cursor) *Function {
	f := &Function{Opsets: map[string]int64{}}
	d.budget.take(c, 256)
	for field, wire, ok := c.next(); ok; field, wire, ok = c.next() {
		switch field {
		case 1:
			f.Name = c.text(wire, &d.budget)
		case 4:
			d.budget.take(c, 16)
			f.Inputs = append(f.Inputs, c.text(wire, &d.budget))
		case 5:
			d.budget.take(c, 16)
			f.Outputs = append(f.Outputs, c.text(wire, &d.budget))
		case 6:
			d.budget.take(c, 16)
			f.AttributeNames = append(f.AttributeNames, c.text(wire, &d.budget))
		case 7:
			inner := c.message(wire)
			f.Nodes = append(f.Nodes, d.node(&inner))
		case 9:
			inner := c.message(wire)
			d.opset(&inner, f.Opsets)
		case 10:
			f.Domain = c.text(wire, &d.budget)
		case 11:
			inner := c.message(wire)
			f.Attributes = append(f.Attributes, d.attribute(&inner))
		case 13:
			f.Overload = c.text(wire, &d.budget)
		default:
			c.skip(wire)
		}
	}
	return f
}

func (d *decoder) value(c *cursor, wire protowire.Type) *Value {
	inner := c.message(wire)
	v := &Value{}
	d.budget.take(c, 128)
	for field, wire, ok := inner.next(); ok; field, wire, ok = inner.next() {
		switch field {
		case 1:
			v.Name = inner.text(wire, &d.budget)
		case 2:
			t := inner.message(wire)
			v.Type = *d.typeOf(&t)
		default:
			inner.skip(wire)
		}
	}
	return v
}

func (d *decoder) typeOf(c *cursor) *Type {
	leave, ok := d.budget.deeper(c)
	defer leave()
	t := &Type{}
	d.budget.take(c, 96)
	if !ok {
		return t
	}
	kinds := map[protowire.Number]TypeKind{1: TensorKind, 4: SequenceKind, 5: MapKind, 7: OpaqueKind, 8: SparseTensorKind, 9: OptionalKind}
	for field, wire, ok := c.next(); ok; field, wire, ok = c.next() {
		kind, is := kinds[field]
		if !is {
			c.skip(wire)
			continue
		}
		inner := c.message(wire)
		*t = Type{Kind: kind}
		switch kind {
		case OpaqueKind:
		case SequenceKind, OptionalKind:
			d.element(&inner, t, 1)
		case MapKind:
			d.element(&inner, t, 2)
		default:
			d.tensorType(&inner, t)
		}
	}
	return t
}

// element reads the message of a sequence, an optional or a map, whose inner type is in the given field.
func (d *decoder) element(c *cursor, t *Type, field protowire.Number) {
	for f, wire, ok := c.next(); ok; f, wire, ok = c.next() {
		switch {
		case f == field:
			inner := c.message(wire)
			t.Inner = d.typeOf(&inner)
		case t.Kind == MapKind && f == 1:
			t.Elem = DataType(c.number(wire)) //nolint:gosec // an enum of 32 bits
		default:
			c.skip(wire)
		}
	}
}

func (d *decoder) tensorType(c *cursor, t *Type) {
	for field, wire, ok := c.next(); ok; field, wire, ok = c.next() {
		switch field {
		case 1:
			t.Elem = DataType(c.number(wire)) //nolint:gosec // an enum of 32 bits
		case 2:
			t.HasShape = true
			shape := c.message(wire)
			for field, wire, ok := shape.next(); ok; field, wire, ok = shape.next() {
				if field != 1 {
					shape.skip(wire)
					continue
				}
				inner := shape.message(wire)
				d.budget.take(c, 24)
				t.Dims = append(t.Dims, d.dim(&inner))
			}
		default:
			c.skip(wire)
		}
	}
}

func (d *decoder) dim(c *cursor) Dim {
	dim := Dim{Size: -1}
	for field, wire, ok := c.next(); ok; field, wire, ok = c.next() {
		switch field {
		case 1:
			dim = Dim{Size: max(int64(c.number(wire)), -1)} //nolint:gosec // protobuf's int64 is this conversion
		case 2:
			dim = Dim{Size: -1, Name: c.text(wire, &d.budget)}
		default:
			c.skip(wire)
		}
	}
	return dim
}
