// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/conch-serving/conch/internal/onnx/onnxpb"
)

func (w *writer) model(m *Model) (*onnxpb.ModelProto, error) {
	if m.Training {
		return nil, errors.New("training information cannot be written")
	}
	out := &onnxpb.ModelProto{
		IrVersion: m.IR, ProducerName: m.Producer, ProducerVersion: m.ProducerVersion, Domain: m.Domain, ModelVersion: m.Version,
		OpsetImport: opsets(m.Opsets),
	}
	for _, key := range slices.Sorted(maps.Keys(m.Metadata)) {
		out.MetadataProps = append(out.MetadataProps, &onnxpb.StringStringEntryProto{Key: key, Value: m.Metadata[key]})
	}
	for _, f := range m.Functions {
		function, err := w.function(f)
		if err != nil {
			return nil, fmt.Errorf("function %q: %w", f.Name, err)
		}
		out.Functions = append(out.Functions, function)
	}
	var err error
	out.Graph, err = w.graph(m.Graph, true)
	return out, err
}

func opsets(versions map[string]int64) []*onnxpb.OperatorSetIdProto {
	var out []*onnxpb.OperatorSetIdProto
	for _, domain := range slices.Sorted(maps.Keys(versions)) {
		out = append(out, &onnxpb.OperatorSetIdProto{Domain: domain, Version: versions[domain]})
	}
	return out
}

func (w *writer) function(f *Function) (out *onnxpb.FunctionProto, err error) {
	out = &onnxpb.FunctionProto{
		Name: f.Name, Domain: f.Domain, Overload: f.Overload, Input: f.Inputs, Output: f.Outputs, Attribute: f.AttributeNames,
		OpsetImport: opsets(f.Opsets),
	}
	if out.AttributeProto, err = each(f.Attributes, w.attribute); err != nil {
		return nil, err
	}
	out.Node, err = each(f.Nodes, w.node)
	return out, err
}

func (w *writer) graph(g *Graph, outermost bool) (out *onnxpb.GraphProto, err error) {
	if g.SparseInitializers > 0 || g.Quantization > 0 {
		return nil, fmt.Errorf("graph %q: sparse initializers and quantisation annotations cannot be written", g.Name)
	}
	out = &onnxpb.GraphProto{Name: g.Name, Input: values(g.Inputs), Output: values(g.Outputs), ValueInfo: values(g.Values)}
	if out.Node, err = each(g.Nodes, w.node); err != nil {
		return nil, err
	}
	out.Initializer, err = each(g.Initializers, func(t *Tensor) (*onnxpb.TensorProto, error) { return w.initializer(t, outermost) })
	return out, err
}

func (w *writer) node(n *Node) (out *onnxpb.NodeProto, err error) {
	out = &onnxpb.NodeProto{Name: n.Name, OpType: n.Op, Domain: n.Domain, Overload: n.Overload, Input: n.Inputs, Output: n.Outputs}
	if out.Attribute, err = each(n.Attributes, w.attribute); err != nil {
		return nil, fmt.Errorf("node %q: %w", n.Name, err)
	}
	return out, nil
}

func (w *writer) attribute(a *Attribute) (out *onnxpb.AttributeProto, err error) {
	if a.Kind == KindSparseTensor || a.Kind == KindSparseTensors {
		return nil, fmt.Errorf("attribute %q: sparse tensors cannot be written", a.Name)
	}
	out = &onnxpb.AttributeProto{
		Name: a.Name, RefAttrName: a.RefName, Type: int32(a.Kind),
		F: a.Float, I: a.Int, S: a.String, Floats: a.Floats, Ints: a.Ints, Strings: a.Strings,
	}
	if a.Tensor != nil {
		if out.T, err = w.tensor(a.Tensor); err != nil {
			return nil, err
		}
	}
	if a.Graph != nil {
		if out.G, err = w.graph(a.Graph, false); err != nil {
			return nil, err
		}
	}
	for _, t := range a.Types {
		if a.Kind == KindType {
			out.Tp = typeProto(t)
		} else {
			out.TypeProtos = append(out.TypeProtos, typeProto(t))
		}
	}
	if out.Tensors, err = each(a.Tensors, w.tensor); err != nil {
		return nil, err
	}
	out.Graphs, err = each(a.Graphs, func(g *Graph) (*onnxpb.GraphProto, error) { return w.graph(g, false) })
	return out, err
}

func each[From, To any](from []From, convert func(From) (To, error)) ([]To, error) {
	var out []To
	for _, f := range from {
		t, err := convert(f)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

func values(from []*Value) []*onnxpb.ValueInfoProto {
	var out []*onnxpb.ValueInfoProto
	for _, v := range from {
		out = append(out, &onnxpb.ValueInfoProto{Name: v.Name, Type: typeProto(&v.Type)})
	}
	return out
}

func typeProto(t *Type) *onnxpb.TypeProto {
	if t == nil {
		return nil
	}
	switch t.Kind {
	case TensorKind:
		return &onnxpb.TypeProto{Value: &onnxpb.TypeProto_TensorType{TensorType: tensorType(t)}}
	case SparseTensorKind:
		return &onnxpb.TypeProto{Value: &onnxpb.TypeProto_SparseTensorType{SparseTensorType: tensorType(t)}}
	case SequenceKind:
		return &onnxpb.TypeProto{Value: &onnxpb.TypeProto_SequenceType{SequenceType: &onnxpb.TypeProto_Sequence{ElemType: typeProto(t.Inner)}}}
	case OptionalKind:
		return &onnxpb.TypeProto{Value: &onnxpb.TypeProto_OptionalType{OptionalType: &onnxpb.TypeProto_Optional{ElemType: typeProto(t.Inner)}}}
	case MapKind:
		return &onnxpb.TypeProto{Value: &onnxpb.TypeProto_MapType{MapType: &onnxpb.TypeProto_Map{KeyType: int32(t.Elem), ValueType: typeProto(t.Inner)}}}
	default:
		return nil
	}
}

func tensorType(t *Type) *onnxpb.TypeProto_Tensor {
	out := &onnxpb.TypeProto_Tensor{ElemType: int32(t.Elem)}
	if !t.HasShape {
		return out
	}
	out.Shape = &onnxpb.TensorShapeProto{}
	for _, d := range t.Dims {
		dim := &onnxpb.TensorShapeProto_Dimension{}
		switch {
		case d.Size >= 0:
			dim.Value = &onnxpb.TensorShapeProto_Dimension_DimValue{DimValue: d.Size}
		case d.Name != "":
			dim.Value = &onnxpb.TensorShapeProto_Dimension_DimParam{DimParam: d.Name}
		}
		out.Shape.Dim = append(out.Shape.Dim, dim)
	}
	return out
}
