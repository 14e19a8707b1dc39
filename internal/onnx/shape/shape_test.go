// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shape_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/onnx/shape"
)

func ints(name string, v ...int64) *onnx.Attribute {
	return &onnx.Attribute{Name: name, Kind: onnx.KindInts, Ints: v}
}

func integer(name string, v int64) *onnx.Attribute {
	return &onnx.Attribute{Name: name, Kind: onnx.KindInt, Int: v}
}

// constant is a node that gives a list of integers under a name.
func constant(name string, v ...int64) *onnx.Node {
	return &onnx.Node{Op: "Constant", Outputs: []string{name}, Attributes: []*onnx.Attribute{ints("value_ints", v...)}}
}

// infer runs nodes on inputs a, b, ... of these shapes.
func infer(t *testing.T, inputs [][]int64, nodes ...*onnx.Node) (*shape.Result, error) {
	t.Helper()
	g := &onnx.Graph{Nodes: nodes}
	shapes := map[string][]int64{}
	for i, dims := range inputs {
		name := string(rune('a' + i))
		g.Inputs = append(g.Inputs, &onnx.Value{Name: name, Type: onnx.Type{Kind: onnx.TensorKind, Elem: onnx.Float}})
		shapes[name] = dims
	}
	c, err := shape.Compile(&onnx.Model{Path: "model.onnx", Graph: g})
	if err != nil {
		return nil, err
	}
	return c.Infer(shapes)
}

func node(op string, inputs []string, attributes ...*onnx.Attribute) *onnx.Node {
	return &onnx.Node{Op: op, Name: "node", Inputs: inputs, Outputs: []string{"y"}, Attributes: attributes}
}

func TestShapes(t *testing.T) {
	one, two, three := []string{"a"}, []string{"a", "b"}, []string{"a", "b", "c"}
	for _, c := range []struct {
		node      *onnx.Node
		inputs    [][]int64
		constants []*onnx.Node
		want      []int64
	}{
		{node("Relu", one), [][]int64{{2, 3}}, nil, []int64{2, 3}},
		{node("Add", two), [][]int64{{2, 1, 4}, {3, 1}}, nil, []int64{2, 3, 4}},
		{node("MatMul", two), [][]int64{{5, 1, 2, 3}, {7, 3, 4}}, nil, []int64{5, 7, 2, 4}},
		{node("MatMul", two), [][]int64{{3}, {3, 4}}, nil, []int64{4}},
		{node("Gemm", two, integer("transB", 1)), [][]int64{{2, 3}, {4, 3}}, nil, []int64{2, 4}},
		{node("Conv", two, ints("strides", 2, 2), ints("pads", 3, 3, 3, 3)), [][]int64{{8, 3, 224, 224}, {64, 3, 7, 7}}, nil, []int64{8, 64, 112, 112}},
		{node("Conv", two, integer("group", 8), ints("dilations", 2, 2)), [][]int64{{1, 8, 9, 9}, {8, 1, 3, 3}}, nil, []int64{1, 8, 5, 5}},
		{node("ConvTranspose", two, ints("strides", 2, 2)), [][]int64{{1, 4, 5, 5}, {4, 6, 2, 2}}, nil, []int64{1, 6, 10, 10}},
		{node("MaxPool", one, ints("kernel_shape", 3, 3), ints("strides", 2, 2), integer("ceil_mode", 1)), [][]int64{{1, 4, 8, 8}}, nil, []int64{1, 4, 4, 4}},
		{node("GlobalAveragePool", one), [][]int64{{2, 4, 7, 7}}, nil, []int64{2, 4, 1, 1}},
		{node("Flatten", one), [][]int64{{2, 3, 4}}, nil, []int64{2, 12}},
		{node("Transpose", one, ints("perm", 0, 2, 1)), [][]int64{{2, 3, 4}}, nil, []int64{2, 4, 3}},
		{node("Reshape", []string{"a", "k"}), [][]int64{{2, 3, 4}}, []*onnx.Node{constant("k", 0, -1)}, []int64{2, 12}},
		{node("Concat", two, integer("axis", -1)), [][]int64{{2, 3}, {2, 5}}, nil, []int64{2, 8}},
		{node("Slice", []string{"a", "s", "e", "x"}), [][]int64{{2, 10}}, []*onnx.Node{constant("s", -3), constant("e", 1<<62), constant("x", 1)}, []int64{2, 3}},
		{node("Gather", two, integer("axis", 0)), [][]int64{{100, 8}, {2, 5}}, nil, []int64{2, 5, 8}},
		{node("Unsqueeze", []string{"a", "x"}), [][]int64{{2, 3}}, []*onnx.Node{constant("x", 0, 3)}, []int64{1, 2, 3, 1}},
		{node("Squeeze", one), [][]int64{{1, 2, 1}}, nil, []int64{2}},
		{node("Expand", []string{"a", "k"}), [][]int64{{3, 1}}, []*onnx.Node{constant("k", 2, 1, 6)}, []int64{2, 3, 6}},
		{node("Pad", []string{"a", "k"}), [][]int64{{2, 3}}, []*onnx.Node{constant("k", 0, 1, 0, 2)}, []int64{2, 6}},
		{node("ReduceMean", one, ints("axes", -1), integer("keepdims", 0)), [][]int64{{2, 3, 4}}, nil, []int64{2, 3}},
		{node("Where", three), [][]int64{{2, 1}, {3}, {1}}, nil, []int64{2, 3}},
		{node("TopK", []string{"a", "k"}), [][]int64{{2, 9}}, []*onnx.Node{constant("k", 4)}, []int64{2, 4}},
		{node("ArgMax", one, integer("axis", 1)), [][]int64{{2, 9}}, nil, []int64{2, 1}},
		{node("DepthToSpace", one, integer("blocksize", 2)), [][]int64{{1, 8, 3, 3}}, nil, []int64{1, 2, 6, 6}},
		{node("LSTM", three), [][]int64{{7, 2, 5}, {1, 12, 5}, {1, 12, 3}}, nil, []int64{7, 1, 2, 3}},
		{node("Range", []string{"s", "e", "k"}), nil, []*onnx.Node{constant("s", 0), constant("e", 10), constant("k", 3)}, []int64{4}},
	} {
		t.Run(fmt.Sprintf("%s %v", c.node.Op, c.inputs), func(t *testing.T) {
			r, err := infer(t, c.inputs, append(c.constants, c.node)...)
			require.NoError(t, err)
			require.Empty(t, r.Warnings)
			require.Equal(t, c.want, r.Steps[len(r.Steps)-1].Outputs[0].Dims)
		})
	}
}

// An exported transformer works its Reshape out of Shape, Gather, Mul and Concat: the contents are followed.
func TestShapesThatAreComputed(t *testing.T) {
	r, err := infer(t, [][]int64{{3, 5, 8}},
		&onnx.Node{Op: "Shape", Inputs: []string{"a"}, Outputs: []string{"s"}},
		constant("zero", 0), constant("rest", -1), constant("two", 2),
		&onnx.Node{Op: "Gather", Inputs: []string{"s", "zero"}, Outputs: []string{"n"}},
		&onnx.Node{Op: "Mul", Inputs: []string{"n", "two"}, Outputs: []string{"twice"}},
		&onnx.Node{Op: "Concat", Inputs: []string{"twice", "rest"}, Outputs: []string{"k"}, Attributes: []*onnx.Attribute{integer("axis", 0)}},
		node("Reshape", []string{"a", "k"}))
	require.NoError(t, err)
	require.Equal(t, []int64{6, 20}, r.Steps[len(r.Steps)-1].Outputs[0].Dims)
}

func TestWhatCannotBeIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		node   *onnx.Node
		inputs [][]int64
		want   string
	}{
		"product":    {node("MatMul", []string{"a", "b"}), [][]int64{{2, 3}, {4, 5}}, "3 columns meet 4 rows"},
		"broadcast":  {node("Add", []string{"a", "b"}), [][]int64{{2}, {3}}, "do not broadcast"},
		"window":     {node("MaxPool", []string{"a"}, ints("kernel_shape", 9, 9)), [][]int64{{1, 1, 4, 4}}, "a window of 9 does not fit into 4"},
		"absurd":     {node("Relu", []string{"a"}), [][]int64{{1 << 40, 1 << 40}}, "are not believed"},
		"missing":    {node("Relu", nil), nil, "input 0 is missing"},
		"overflow":   {node("Tile", []string{"a", "k"}), [][]int64{{1 << 40}}, ""},
		"self-cycle": {node("Relu", []string{"y"}), nil, "cycle"},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := []*onnx.Node{c.node}
			if name == "overflow" {
				nodes = []*onnx.Node{constant("k", 1<<40), c.node}
			}
			_, err := infer(t, c.inputs, nodes...)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestAnUnknownOperatorIsNamed(t *testing.T) {
	r, err := infer(t, [][]int64{{2, 3}}, &onnx.Node{Op: "Sparkle", Domain: "com.example", Inputs: []string{"a"}, Outputs: []string{"y"}})
	require.NoError(t, err)
	require.Len(t, r.Warnings, 1)
	require.Contains(t, r.Warnings[0], "com.example.Sparkle")
	w := r.Steps[0].Work()
	require.Equal(t, shape.Opaque, w.Class)
	require.Equal(t, 24.0, w.Read)
	require.Equal(t, 24.0, w.Write)
}

func TestWork(t *testing.T) {
	r, err := infer(t, [][]int64{{4, 32, 10, 10}, {64, 32, 3, 3}}, node("Conv", []string{"a", "b"}, ints("pads", 1, 1, 1, 1)))
	require.NoError(t, err)
	w := r.Steps[0].Work()
	require.Equal(t, shape.Convolution, w.Class)
	require.Equal(t, 2.0*4*100*64*32*9, w.FLOPs)
	require.Equal(t, []float64{1, 400, 64, 288}, []float64{w.Batch, w.M, w.N, w.Depth})

	r, err = infer(t, [][]int64{{100, 8}, {2, 5}}, node("Gather", []string{"a", "b"}))
	require.NoError(t, err)
	require.Equal(t, 2*5*8*4.0, r.Steps[0].Work().Write, "a look-up moves the rows that it picks, not the table")
	require.Less(t, r.Steps[0].Work().Read, 100*8*4.0)
}
