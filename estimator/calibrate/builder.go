// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package calibrate

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/onnx/onnxpb"
)

// builder makes a graph with random weights, whose first dimension is the batch.
type builder struct {
	random *rand.Rand
	graph  *onnxpb.GraphProto
	count  int
	dims   []int64
}

func newBuilder(name string, dims ...int64) *builder {
	b := &builder{random: rand.New(rand.NewPCG(1, uint64(len(name)))), graph: &onnxpb.GraphProto{Name: name}, dims: dims}
	return b
}

func value(name string, dims []int64) *onnxpb.ValueInfoProto {
	shape := &onnxpb.TensorShapeProto{Dim: []*onnxpb.TensorShapeProto_Dimension{{Value: &onnxpb.TensorShapeProto_Dimension_DimParam{DimParam: "N"}}}}
	for _, d := range dims {
		shape.Dim = append(shape.Dim, &onnxpb.TensorShapeProto_Dimension{Value: &onnxpb.TensorShapeProto_Dimension_DimValue{DimValue: d}})
	}
	return &onnxpb.ValueInfoProto{Name: name, Type: &onnxpb.TypeProto{Value: &onnxpb.TypeProto_TensorType{TensorType: &onnxpb.TypeProto_Tensor{ElemType: int32(onnx.Float), Shape: shape}}}}
}

func (b *builder) fresh(kind string) string {
	b.count++
	return fmt.Sprintf("%s_%d", kind, b.count)
}

// weight is a parameter of normal values whose products keep their scale.
func (b *builder) weight(dims ...int64) string {
	n, fan := int64(1), int64(1)
	for i, d := range dims {
		n *= d
		if i > 0 {
			fan *= d
		}
	}
	raw := make([]byte, 4*n)
	scale := 1 / math.Sqrt(float64(fan))
	for i := range n {
		binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(float32(b.random.NormFloat64()*scale)))
	}
	name := b.fresh("weight")
	b.graph.Initializer = append(b.graph.Initializer, &onnxpb.TensorProto{Name: name, DataType: int32(onnx.Float), Dims: dims, RawData: raw})
	return name
}

func (b *builder) shape(values ...int64) string {
	var raw []byte
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(v))
	}
	name := b.fresh("shape")
	b.graph.Initializer = append(b.graph.Initializer, &onnxpb.TensorProto{Name: name, DataType: int32(onnx.Int64), Dims: []int64{int64(len(values))}, RawData: raw})
	return name
}

func integer(name string, v int64) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: name, Type: int32(onnx.KindInt), I: v}
}

func integers(name string, v ...int64) *onnxpb.AttributeProto {
	return &onnxpb.AttributeProto{Name: name, Type: int32(onnx.KindInts), Ints: v}
}

func (b *builder) add(op string, inputs []string, attributes ...*onnxpb.AttributeProto) string {
	out := b.fresh(op)
	b.graph.Node = append(b.graph.Node, &onnxpb.NodeProto{Name: out, OpType: op, Input: inputs, Output: []string{out}, Attribute: attributes})
	return out
}

func (b *builder) conv(x string, in, out, size, stride, group int64) string {
	pad := size / 2
	return b.add("Conv", []string{x, b.weight(out, in/group, size, size), b.weight(out)},
		integers("kernel_shape", size, size), integers("strides", stride, stride), integers("pads", pad, pad, pad, pad), integer("group", group))
}

func (b *builder) linear(x string, in, out int64) string {
	return b.add("Add", []string{b.add("MatMul", []string{x, b.weight(in, out)}), b.weight(out)})
}

func (b *builder) relu(x string) string { return b.add("Relu", []string{x}) }

// model ends the graph at value x, whose shape without the batch is dims.
func (b *builder) model(x string, dims ...int64) ([]byte, error) {
	b.graph.Node = append(b.graph.Node, &onnxpb.NodeProto{Name: "result", OpType: "Identity", Input: []string{x}, Output: []string{Output}})
	b.graph.Input = []*onnxpb.ValueInfoProto{value(Input, b.dims)}
	b.graph.Output = []*onnxpb.ValueInfoProto{value(Output, dims)}
	return proto.MarshalOptions{Deterministic: true}.Marshal(&onnxpb.ModelProto{
		IrVersion: 8, ProducerName: "conch", OpsetImport: []*onnxpb.OperatorSetIdProto{{Version: 17}}, Graph: b.graph,
	})
}
