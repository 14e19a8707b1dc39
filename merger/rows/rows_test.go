// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rows_test

import (
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/merger/rows"
)

// elements is a source of the integers of small tensors; floats are zeros.
type elements map[string][]int64

func (e elements) Reader(t *onnx.Tensor) (io.Reader, error) {
	if t.Type != onnx.Int64 {
		return strings.NewReader(strings.Repeat("\x00", int(t.Bytes()))), nil
	}
	var b []byte
	for _, v := range e[t.Name] {
		b = binary.LittleEndian.AppendUint64(b, uint64(v)) //nolint:gosec // two's complement
	}
	return strings.NewReader(string(b)), nil
}
func (elements) Strings(*onnx.Tensor) ([][]byte, error) { return nil, nil }

// graph builds a model from lines "OUT... = Op IN... key=value", with inputs x [N,3,4], w [3,3] and ids [N,5], and constants by their
// numbers: "2,3" is a vector, "7" a scalar.
func graph(t *testing.T, opset int64, lines ...string) *onnx.Model {
	t.Helper()
	dims := func(sizes ...int64) (out []onnx.Dim) {
		for _, s := range sizes {
			out = append(out, onnx.Dim{Size: s})
		}
		return out
	}
	tensor := func(name string, kind onnx.DataType, sizes ...int64) *onnx.Value {
		return &onnx.Value{Name: name, Type: onnx.Type{Kind: onnx.TensorKind, Elem: kind, HasShape: true, Dims: dims(sizes...)}}
	}
	g := &onnx.Graph{Name: "g", Inputs: []*onnx.Value{tensor("x", onnx.Float, -1, 3, 4), tensor("ids", onnx.Int64, -1, 5), tensor("seq", onnx.Float, -1, -1, 6)}}
	g.AddInitializer(&onnx.Tensor{Name: "w", Type: onnx.Float, Dims: []int64{4, 4}})
	g.AddInitializer(&onnx.Tensor{Name: "bias", Type: onnx.Float, Dims: []int64{4}})
	g.AddInitializer(&onnx.Tensor{Name: "table", Type: onnx.Float, Dims: []int64{100, 6}})
	g.AddInitializer(&onnx.Tensor{Name: "eight", Type: onnx.Float, Dims: []int64{8, 3, 4}})
	data := elements{}
	for _, line := range lines {
		left, right, _ := strings.Cut(line, " = ")
		n := &onnx.Node{Name: left, Outputs: strings.Fields(left)}
		for i, word := range strings.Fields(right) {
			key, value, attribute := strings.Cut(word, "=")
			switch {
			case i == 0:
				n.Op = word
			case attribute && (key == "axes" || key == "perm" || key == "kernel_shape"):
				n.Attributes = append(n.Attributes, &onnx.Attribute{Name: key, Kind: onnx.KindInts, Ints: numbers(value)})
			case attribute:
				n.Attributes = append(n.Attributes, &onnx.Attribute{Name: key, Kind: onnx.KindInt, Int: numbers(value)[0]})
			case strings.ContainsAny(word[:1], "-0123456789"):
				c := &onnx.Tensor{Name: "c" + word, Type: onnx.Int64}
				if data[c.Name] = numbers(word); strings.Contains(word, ",") {
					c.Dims = []int64{int64(len(data[c.Name]))}
				}
				if g.Initializer(c.Name) == nil {
					g.AddInitializer(c)
				}
				n.Inputs = append(n.Inputs, c.Name)
			case word == "_":
				n.Inputs = append(n.Inputs, "")
			default:
				n.Inputs = append(n.Inputs, word)
			}
		}
		g.Nodes = append(g.Nodes, n)
	}
	b, err := onnx.Marshal(&onnx.Model{Graph: g, Opsets: map[string]int64{"": opset}}, data)
	require.NoError(t, err)
	m, err := onnx.Read(strings.NewReader(string(b)), int64(len(b)), "m", onnx.DefaultLimits())
	require.NoError(t, err)
	return m
}

// numbers reads "2,3"; a comma at the end makes a vector of one.
func numbers(text string) []int64 {
	var out []int64
	for _, word := range strings.Split(strings.TrimSuffix(text, ","), ",") {
		v, sign := int64(0), int64(1)
		for _, c := range word {
			if c == '-' {
				sign = -1
				continue
			}
			v = 10*v + int64(c-'0')
		}
		out = append(out, sign*v)
	}
	return out
}

func TestRules(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines string
		want  string // the fact of y
		why   string // or why it is refused
	}{
		{name: "a linear layer", lines: "m = MatMul x w; y = Add m bias", want: "rows float [N,3,4]"},
		{name: "a function of each element", lines: "y = Gelu x", want: "rows float [N,3,4]"},
		{name: "a constant of eight rows", lines: "y = Add x eight", why: "rows of one input meet other places of another"},
		{name: "attention", lines: "k = Transpose seq perm=0,2,1; s = MatMul seq k; p = Softmax s axis=-1; y = MatMul p seq", want: "rows float [N,seq.1,6]"},
		{name: "rows times rows", lines: "f = Flatten x; y = Transpose f perm=1,0", why: "it moves axis 0"},
		{name: "softmax over rows", lines: "y = Softmax x axis=0", why: "across rows"},
		{name: "softmax over rows, from the end", lines: "y = Softmax x axis=-3", why: "across rows"},
		{name: "a mean over tokens", lines: "y = ReduceMean seq axes=1, keepdims=0", want: "rows float [N,6]"},
		{name: "a mean over rows", lines: "y = ReduceMean seq axes=0,", why: "across rows"},
		{name: "a mean over all", lines: "y = ReduceMean seq", why: "rows included"},
		{name: "reshape by literal", lines: "y = Reshape x 0,12", want: "rows float [N,12]"},
		{name: "reshape by -1", lines: "y = Reshape x -1,12", want: "rows float [N,12]"},
		{name: "tokens side by side and back", lines: "a = Reshape seq -1,6; b = Relu a; s = Shape seq; y = Reshape b s", want: "rows float [N,seq.1,6]"},
		{name: "tokens side by side", lines: "y = Reshape seq -1,6", want: "rows float [N*seq.1,6]"},
		{name: "eight rows written into a reshape", lines: "y = Reshape x 8,12", why: "not the batch"},
		{name: "a reshape that mixes rows", lines: "y = Reshape x 3,-1", why: "not the batch"},
		{name: "a shape computed as exporters do", lines: "s = Shape x; n = Gather s 0; u = Unsqueeze n 0,; t = Concat u 12, axis=0; y = Reshape x t", want: "rows float [N,12]"},
		{name: "tokens by a product", lines: "s = Shape seq; n = Slice s 0, 1,; l = Slice s 1, 2,; p = Mul n l; t = Concat p 6, axis=0; y = Reshape seq t", want: "rows float [N*seq.1,6]"},
		{name: "the number of rows as data", lines: "s = Shape x; n = Gather s 0; f = Cast n to=1; y = Mul x f", why: "depends on how many rows"},
		{name: "the number of tokens as data", lines: "s = Shape seq; n = Gather s 1; f = Cast n to=1; y = Mul seq f", want: "rows float [N,seq.1,6]"},
		{name: "positions in the batch", lines: "s = Shape x; n = Gather s 0; y = Range 0 n 1", why: "for each place in the batch"},
		{name: "ones for each row", lines: "s = Shape x; c = ConstantOfShape s; y = Add x c", want: "rows float [N,3,4]"},
		{name: "a slice of tokens", lines: "y = Slice x 0, 1, 1,", want: "rows float [N,1,4]"},
		{name: "a slice of rows", lines: "y = Slice x 0, 1, 0,", why: "takes some rows"},
		{name: "a slice to the end, as tf2onnx writes it", lines: "y = Slice x 0,0 1000000000,1000000000 0,1", want: "rows float [N,3,4]"},
		{name: "a slice to just the end of a row", lines: "y = Slice x 0, 3, 1,", want: "rows float [N,3,4]"},
		{name: "a slice beyond the end of a row", lines: "y = Slice x 1, 9, 1,", want: "rows float [N,2,4]"},
		{name: "a slice of many rows, and not all", lines: "y = Slice x 0, 999999999, 0,", why: "takes some rows"},
		{name: "a slice to the end of tokens", lines: "y = Slice seq 0, 1000000000, 1,", want: "rows float [N,seq.1,6]"},
		// As torch exports chunk(2, 1): the size of an axis, and one more, over two, times the part.
		{name: "half of the channels", lines: "s = Shape x; c = Gather s 2,; d = Add c 1,; h = Div d 2,; e = Mul h 1,; y = Slice x 0, e 2,", want: "rows float [N,3,2]"},
		{name: "the other half", lines: "s = Shape x; c = Gather s 2,; d = Add c 1,; h = Div d 2,; b = Mul h 1,; e = Mul h 2,; y = Slice x b e 2,", want: "rows float [N,3,2]"},
		{name: "half of the rows", lines: "s = Shape x; c = Gather s 0,; d = Add c 1,; h = Div d 2,; y = Slice x 0, h 0,", why: "takes some rows"},
		{name: "half of as many channels as there are rows", lines: "s = Shape x; c = Gather s 0,; d = Add c 1,; h = Div d 2,; y = Slice x 0, h 1,", why: "rows of one input meet"},
		{name: "a division towards zero", lines: "a = Add -7, 0,; h = Div a 2,; y = Slice x h 9, 1,", want: "rows float [N,3,4]"},
		{name: "a recurrent network", lines: "y = LSTM seq w w", why: "LSTM, GRU, RNN"},
		{name: "the sequence first", lines: "y = Transpose seq perm=1,0,2", why: "nn.TransformerEncoder"},
		{name: "a product that cannot be", lines: "y = MatMul seq w", why: "6 columns meet 4 rows"},
		{name: "a Gemm that cannot be", lines: "f = Flatten x; y = Gemm f w", why: "12 columns meet 4 rows"},
		{name: "a Reshape that cannot be", lines: "y = Reshape x 0,5", why: "[5] of a row of 12 elements"},
		{name: "a Concat that cannot be", lines: "h = Gather table ids; y = Concat x h axis=2", why: "dimensions 3 and 5 do not go together"},
		{name: "a Split that cannot be", lines: "y z = Split x 2,2 axis=1", why: "parts [2 2] of a dimension of 3"},
		{name: "channels that cannot be", lines: "y = BatchNormalization x bias bias bias bias", why: "4 weights for 3 channels"},
		{name: "a normalisation that cannot be", lines: "y = LayerNormalization seq bias", why: "4 weights for 6 places"},
		{name: "a sum that cannot be", lines: "g = Gather x 0 axis=1; h = Gather table ids; m = ReduceMean h axes=1, keepdims=0; y = Add g m", why: "do not go together"},
		{name: "a window that cannot be", lines: "u = Unsqueeze x 1,; y = MaxPool u kernel_shape=9,9", why: "window is larger"},
		{name: "the first token", lines: "y = Gather x 0 axis=1", want: "rows float [N,4]"},
		{name: "a row for all", lines: "y = Gather x 0 axis=0", why: "picks rows"},
		{name: "an embedding", lines: "y = Gather table ids", want: "rows float [N,5,6]"},
		{name: "squeeze whatever is one", lines: "y = Squeeze x", why: "a batch of one row too"},
		{name: "a new first axis", lines: "y = Unsqueeze x 0,", why: "moves axis 0"},
		{name: "concatenation of channels", lines: "y = Concat x x axis=1", want: "rows float [N,6,4]"},
		{name: "concatenation of rows", lines: "y = Concat x x axis=0", why: "across rows"},
		{name: "a random mask", lines: "y = RandomNormalLike x", why: "random"},
		{name: "a sort", lines: "y z = TopK x 1,", why: "empty batch"},
		{name: "a running sum over tokens", lines: "y = CumSum x 1", want: "rows float [N,3,4]"},
		{name: "a running sum over rows", lines: "y = CumSum x 0", why: "across rows"},
		{name: "the use of a refused value", lines: "a = Softmax x axis=0; y = Relu a", why: "nothing is known of its input"},
		{name: "training", lines: "y m v = BatchNormalization x bias bias bias bias", why: "training mode"},
		{name: "what nobody has heard of", lines: "y = Frobnicate x", why: "no rule"},
		{name: "an expanded shape", lines: "s = Shape x; e = Equal s -1; w2 = Where e 1 s; y = Expand 7 w2", want: "rows int64 [N,3,4]"},
		{name: "a slice by the number of rows", lines: "s = Shape x; n = Slice s 0, 1,; y = Slice seq 0, n 1,", why: "rows of one input meet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := graph(t, 17, strings.Split(c.lines, "; ")...)
			a, err := rows.Analyze(m)
			require.NoError(t, err)
			last := m.Graph.Nodes[len(m.Graph.Nodes)-1]
			if c.why != "" {
				require.False(t, a.Proved(last), "%v", a.Facts["y"])
				require.Contains(t, a.Refused[last].Reason, c.why)
				return
			}
			require.True(t, a.Proved(last), "%v", a.Refused)
			require.Equal(t, c.want, a.Facts["y"].String())
		})
	}
}

func TestEarlySoftmaxTakesAllAxesFromItsOwn(t *testing.T) {
	m := graph(t, 11, "y = Softmax x axis=1")
	a, err := rows.Analyze(m)
	require.NoError(t, err)
	require.True(t, a.Proved(m.Graph.Nodes[0]))
}

func TestAnInputWithoutABatchIsAnError(t *testing.T) {
	m := graph(t, 17, "y = Relu x")
	m.Graph.Inputs[0].Type.Dims[0].Size = 8
	_, err := rows.Analyze(m)
	require.ErrorContains(t, err, "fixed when it was exported")
	m.Graph.Inputs[0].Type.Dims = nil
	_, err = rows.Analyze(m)
	require.ErrorContains(t, err, "no axis for a batch")
}
