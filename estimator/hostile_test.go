// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/calibrate"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/onnx/onnxpb"
)

func tensorType(dims ...int64) *onnxpb.TypeProto {
	shape := &onnxpb.TensorShapeProto{}
	for _, d := range dims {
		shape.Dim = append(shape.Dim, &onnxpb.TensorShapeProto_Dimension{Value: &onnxpb.TensorShapeProto_Dimension_DimValue{DimValue: d}})
	}
	return &onnxpb.TypeProto{Value: &onnxpb.TypeProto_TensorType{TensorType: &onnxpb.TypeProto_Tensor{ElemType: int32(onnx.Float), Shape: shape}}}
}

func node(op string, inputs, outputs []string, attributes ...*onnxpb.AttributeProto) *onnxpb.NodeProto {
	return &onnxpb.NodeProto{Name: op, OpType: op, Input: inputs, Output: outputs, Attribute: attributes}
}

func integersOf(name string, values ...int64) *onnxpb.TensorProto {
	var raw []byte
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(v))
	}
	return &onnxpb.TensorProto{Name: name, DataType: int32(onnx.Int64), Dims: []int64{int64(len(values))}, RawData: raw}
}

func modelWith(t *testing.T, initializers []*onnxpb.TensorProto, dims []int64, nodes ...*onnxpb.NodeProto) []byte {
	t.Helper()
	text, err := proto.Marshal(&onnxpb.ModelProto{IrVersion: 8, OpsetImport: []*onnxpb.OperatorSetIdProto{{Version: 17}}, Graph: &onnxpb.GraphProto{
		Name: "g", Node: nodes, Initializer: initializers,
		Input:  []*onnxpb.ValueInfoProto{{Name: "x", Type: tensorType(dims...)}},
		Output: []*onnxpb.ValueInfoProto{{Name: "y", Type: tensorType(1)}},
	}})
	require.NoError(t, err)
	return text
}

// Whatever a file holds, it is estimated, or refused with a reason that names it, within bounded memory.
func TestAnyFileIsEstimatedOrRefused(t *testing.T) {
	huge := int64(1) << 40
	outside := &onnxpb.TensorProto{Name: "w", DataType: int32(onnx.Float), Dims: []int64{4}, DataLocation: 1,
		ExternalData: []*onnxpb.StringStringEntryProto{{Key: "location", Value: "../../etc/passwd"}}}
	body := &onnxpb.GraphProto{
		Name: "body", Input: []*onnxpb.ValueInfoProto{{Name: "i", Type: tensorType()}, {Name: "c", Type: tensorType()}, {Name: "v", Type: tensorType(4)}},
		Output: []*onnxpb.ValueInfoProto{{Name: "c2", Type: tensorType()}, {Name: "v2", Type: tensorType(4)}},
		Node:   []*onnxpb.NodeProto{node("Identity", []string{"c"}, []string{"c2"}), node("Add", []string{"v", "v"}, []string{"v2"})},
	}
	files := map[string]struct {
		text []byte
		says string // empty: it is estimated
	}{
		"nothing":                    {nil, "no graph"},
		"a cycle":                    {modelWith(t, nil, []int64{4}, node("Add", []string{"x", "b"}, []string{"a"}), node("Add", []string{"a", "x"}, []string{"b"}), node("Relu", []string{"b"}, []string{"y"})), "cycle"},
		"a value that nothing makes": {modelWith(t, nil, []int64{4}, node("Add", []string{"x", "missing"}, []string{"y"})), "missing"},
		"absurd dimensions":          {modelWith(t, nil, []int64{huge, huge, huge}, node("Relu", []string{"x"}, []string{"y"})), "are not believed"},
		"external data outside":      {modelWith(t, []*onnxpb.TensorProto{outside}, []int64{4}, node("Add", []string{"x", "w"}, []string{"y"})), "outside of the model's directory"},
		"a constant of absurd shape": {modelWith(t, []*onnxpb.TensorProto{integersOf("s", 1<<30, 1<<30, 1<<30)}, []int64{4}, node("ConstantOfShape", []string{"s"}, []string{"y"})), "are not believed"},
		"a range without an end": {modelWith(t, []*onnxpb.TensorProto{integersOf("a", 0), integersOf("b", 1<<62), integersOf("c", 1)}, []int64{4},
			node("Range", []string{"a", "b", "c"}, []string{"r"}), node("Shape", []string{"r"}, []string{"y"})), "?"},
		"a loop without an end": {modelWith(t, []*onnxpb.TensorProto{integersOf("n", 1<<62)}, []int64{4},
			node("Loop", []string{"n", "", "x"}, []string{"y"}, &onnxpb.AttributeProto{Name: "body", Type: int32(onnx.KindGraph), G: body})), "?"},
		"an operator of nobody": {modelWith(t, nil, []int64{4}, node("Frobnicate", []string{"x"}, []string{"y"})), ""},
	}
	var whole []byte
	for _, m := range calibrate.Whole() {
		if m.Name == "encoder" {
			var err error
			whole, err = m.Build()
			require.NoError(t, err)
		}
	}
	for n := 1; n < len(whole); n = n*3/2 + 1 {
		files[fmt.Sprintf("cut off after %d bytes", n)] = struct {
			text []byte
			says string
		}{whole[:n], "?"}
	}
	d := device(t, "T4", "")
	for name, f := range files {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s, err := estimator.Read(bytes.NewReader(f.text), int64(len(f.text)), "hostile.onnx")
			if err == nil {
				_, err = s.Estimate(estimator.Declared{}, estimator.DefaultGrid(4), d)
			}
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(256<<20))
			switch {
			case err != nil:
				require.ErrorContains(t, err, "hostile.onnx")
				if f.says != "?" {
					require.ErrorContains(t, err, f.says)
					require.NotEmpty(t, f.says)
				}
			case f.says != "?":
				require.Empty(t, f.says, "it was estimated")
			}
		})
	}
}
