// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"math"
	"slices"
	"strings"

	"github.com/conch-serving/conch/internal/onnx"
)

// Class is what kind of work an operator is.
type Class uint8

// The classes.
const (
	// Free operators move nothing: they rename or reshape, or work on shapes on the host.
	Free Class = iota
	// Product is a matrix product.
	Product
	// Convolution is one, transposed ones included.
	Convolution
	// Pointwise works element by element.
	Pointwise
	// Softmax and Normalization work on rows.
	Softmax
	Normalization
	// Reduction makes fewer elements of many: reductions, pooling.
	Reduction
	// Movement copies: transpositions, concatenations, look-ups.
	Movement
	// Recurrent is an LSTM, GRU or RNN: as many products in turn as the sequence is long.
	Recurrent
	// Attention is a whole one in one operator.
	Attention
	// Opaque is an operator without a rule.
	Opaque
)

// Work is what one run of an operator computes and moves.
type Work struct {
	Class Class
	// FLOPs counts a multiplication and an addition as two.
	FLOPs float64
	// Read and Write are bytes, each tensor once; Weights are those of Read that are parameters.
	Read, Write, Weights float64
	// Batch products of (M x Depth) by (Depth x N); Shared if all have the same second factor. Groups of a convolution are Batch, and its M are
	// output positions.
	Batch, M, N, Depth float64
	Shared             bool
	// Rows of Width elements, of operators that work on rows.
	Rows, Width float64
	// Operands are the tensors that a Pointwise operator reads which are about as large as its result.
	Operands int
	// From and To are the widths of the projection that an Attention has the weights of; 0 where it has none.
	From, To float64
	// Serial is how many times in turn the products run: steps of a recurrent layer; 1 otherwise.
	Serial float64
	// Element is the type that the arithmetic is in.
	Element onnx.DataType
	// Window is the product of a convolution's or pooling's kernel dimensions; Strided says that it skips positions.
	Window  float64
	Strided bool
	// Winograd says that a convolution is of 3 x 3 positions next to each other and moves by one: there are ways to compute those with fewer multiplications.
	Winograd bool
}

var classes = map[string]Class{
	"Softmax": Softmax, "BiasSoftmax": Softmax, "LogSoftmax": Softmax, "Hardmax": Softmax,
	"LayerNormalization": Normalization, "SkipLayerNormalization": Normalization, "SimplifiedLayerNormalization": Normalization,
	"SkipSimplifiedLayerNormalization": Normalization, "RMSNormalization": Normalization, "InstanceNormalization": Normalization, "GroupNormalization": Normalization,
	"GroupNorm": Normalization, "SkipGroupNorm": Normalization, "LpNormalization": Normalization, "MeanVarianceNormalization": Normalization, "LRN": Normalization, "EmbedLayerNormalization": Normalization,
	"MaxPool": Reduction, "AveragePool": Reduction, "LpPool": Reduction, "GlobalAveragePool": Reduction, "GlobalMaxPool": Reduction, "GlobalLpPool": Reduction,
	"QLinearAveragePool": Reduction, "QLinearGlobalAveragePool": Reduction, "ArgMax": Reduction, "ArgMin": Reduction, "TopK": Reduction, "CumSum": Reduction,
	"Transpose": Movement, "Concat": Movement, "QLinearConcat": Movement, "Split": Movement, "Slice": Movement, "Gather": Movement, "GatherElements": Movement, "GatherND": Movement,
	"Expand": Movement, "Tile": Movement, "Pad": Movement, "Resize": Movement, "Upsample": Movement, "DepthToSpace": Movement, "SpaceToDepth": Movement,
	"Scatter": Movement, "ScatterElements": Movement, "ScatterND": Movement, "OneHot": Movement, "NonZero": Movement, "NonMaxSuppression": Movement,
	"RoiAlign": Movement, "MaxRoiPool": Movement, "GridSample": Movement, "ReverseSequence": Movement, "Trilu": Movement, "Unique": Movement, "Compress": Movement,
	"ConstantOfShape": Movement, "Range": Movement, "EyeLike": Movement,
	"Reshape": Free, "Flatten": Free, "Squeeze": Free, "Unsqueeze": Free, "Identity": Free, "Dropout": Free, "Shape": Free, "Size": Free, "Constant": Free,
	"Optional": Free, "OptionalGetElement": Free,
	"MatMul": Product, "FusedMatMul": Product, "TransposeMatMul": Product, "MatMulInteger": Product, "QLinearMatMul": Product, "MatMulIntegerToFloat": Product, "DynamicQuantizeMatMul": Product,
	"MatMulNBits": Product, "Gemm": Product, "FusedGemm": Product, "QGemm": Product, "Einsum": Product,
	"Conv": Convolution, "FusedConv": Convolution, "NhwcFusedConv": Convolution, "ConvInteger": Convolution, "QLinearConv": Convolution, "ConvTranspose": Convolution,
	"LSTM": Recurrent, "GRU": Recurrent, "RNN": Recurrent,
	"Attention": Attention, "QAttention": Attention, "MultiHeadAttention": Attention, "GroupQueryAttention": Attention, "DecoderMaskedMultiHeadAttention": Attention,
}

// costs of pointwise operators per element, where they are more than one operation.
var pointwiseFLOPs = map[string]float64{
	"Sigmoid": 8, "Tanh": 10, "Erf": 16, "Exp": 8, "Log": 8, "Gelu": 20, "FastGelu": 16, "QuickGelu": 10, "BiasGelu": 21, "Pow": 12, "Sqrt": 4, "Div": 4, "Mish": 20,
	"Softplus": 12, "HardSwish": 4, "HardSigmoid": 3, "BatchNormalization": 2, "Elu": 9, "Selu": 9, "Celu": 9, "Sin": 10, "Cos": 10, "Reciprocal": 4,
}

// Work is what the step computes and moves in one run.
func (s *Step) Work() Work {
	w := Work{Serial: 1, Batch: 1}
	class, ok := classes[s.Node.Op]
	switch {
	case !s.Known:
		class = Opaque
	case !ok && strings.HasPrefix(s.Node.Op, "Reduce"):
		class = Reduction
	case !ok:
		class = Pointwise
	}
	w.Class = class
	if s.folded() {
		w.Class = Free
		return w
	}
	for i, t := range s.Inputs {
		if t == nil || t.Unknown {
			continue
		}
		bytes := t.Bytes()
		if !s.touched(i) {
			continue
		}
		w.Read += bytes
		if t.Weight {
			w.Weights += bytes
		}
		if t.Elements() > 1 && 2*t.Elements() > s.output().Elements() { // a bias or a scale per channel is read in passing
			w.Operands++
		}
		if w.Element == onnx.Undefined && t.Type != onnx.Undefined {
			w.Element = t.Type
		}
	}
	for _, t := range s.Outputs {
		w.Write += t.Bytes()
	}
	x, y := s.input(0), s.output()
	switch class {
	case Free:
		return Work{Serial: 1, Batch: 1}
	case Product:
		s.product(&w)
	case Convolution:
		s.convolution(&w)
	case Pointwise:
		cost := pointwiseFLOPs[s.Node.Op]
		w.FLOPs = max(cost, 1) * y.Elements()
	case Softmax, Normalization:
		if s.Node.Op == "EmbedLayerNormalization" {
			x = y
			for table := 2; table <= 4; table++ {
				if len(s.input(table).Dims) > 0 { // the rows that are picked
					w.Read, w.Weights = w.Read+y.Bytes(), w.Weights+y.Bytes()
				}
			}
		}
		w.Width = max(1, float64(x.dim(int(s.Node.Int("axis", -1)))))
		if strings.HasPrefix(s.Node.Op, "Instance") || strings.HasPrefix(s.Node.Op, "Group") {
			w.Width = max(1, x.Elements()/max(1, float64(x.dim(0)*x.dim(1))))
		}
		w.Rows = x.Elements() / w.Width
		w.FLOPs = 8 * x.Elements()
	case Reduction:
		w.Window = max(1, x.Elements()/max(1, y.Elements()))
		if k := s.Node.Ints("kernel_shape"); k != nil {
			w.Window = float64(product(k))
		}
		w.FLOPs = max(x.Elements(), w.Window*y.Elements())
		if s.Node.Op == "TopK" {
			w.FLOPs *= 16 // radix passes
		}
	case Movement:
		s.movement(&w)
	case Recurrent:
		s.recurrent(&w)
	case Attention:
		s.attention(&w)
	case Opaque:
		w.FLOPs = y.Elements()
	}
	return w
}

// folded says that a runtime computes the step before it serves, or on the host: all of its inputs are parameters, or it makes shapes.
func (s *Step) folded() bool {
	all := len(s.Outputs) > 0
	for _, t := range s.Outputs {
		if t == nil {
			continue
		}
		small := (t.Ints != nil || t.Floats != nil) && t.Elements() <= 64
		all = all && (t.Weight || small)
	}
	return all
}

// touched says whether input i is data that the operator reads on the device: not a shape, an axis, or the table that a look-up picks from.
func (s *Step) touched(i int) bool {
	switch s.Node.Op {
	case "Reshape", "Expand", "Tile", "Resize", "Upsample", "Slice", "Split", "TopK", "OneHot", "Pad", "ConstantOfShape", "Range", "Unsqueeze", "Squeeze":
		return i == 0
	case "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd":
		return i == 0
	case "Gather", "GatherElements", "GatherND":
		return i == 1
	case "EmbedLayerNormalization":
		return i < 2 || i > 4
	}
	return true
}

func (s *Step) input(i int) *Tensor {
	if i < len(s.Inputs) && s.Inputs[i] != nil {
		return s.Inputs[i]
	}
	return &Tensor{Dims: []int64{}}
}

// output is the first one.
func (s *Step) output() *Tensor {
	if len(s.Outputs) > 0 && s.Outputs[0] != nil {
		return s.Outputs[0]
	}
	return &Tensor{Dims: []int64{}}
}

// product fills in the matrices of a product.
func (s *Step) product(w *Work) {
	x, y, out := s.input(0), s.input(1), s.output()
	if s.Node.Op == "QLinearMatMul" || s.Node.Op == "QGemm" {
		y = s.input(3)
	}
	depth := float64(x.dim(-1))
	n := float64(out.dim(-1))
	switch {
	case s.Node.Op == "Einsum":
		depth = max(1, math.Sqrt(x.Elements()*y.Elements()/max(1, out.Elements())))
	case s.Node.Op == "MatMulNBits":
		depth = float64(s.Node.Int("K", 1))
	case s.Node.Int("transA", 0) == 1 && len(x.Dims) >= 2:
		depth = float64(x.dim(-2))
	}
	if len(y.Dims) == 1 {
		n = 1
	}
	m := out.Elements() / max(1, n)
	w.N, w.Depth = n, depth
	w.Shared = len(y.Dims) <= 2 || s.Node.Op == "MatMulNBits"
	if w.Shared {
		w.Batch, w.M = 1, m
	} else {
		w.M = float64(out.dim(-2))
		w.Batch = max(1, m/max(1, w.M))
	}
	w.FLOPs = 2 * w.Batch * w.M * w.N * w.Depth
}

func (s *Step) convolution(w *Work) {
	x, weight, out := s.input(0), s.input(1), s.output()
	if s.Node.Op == "QLinearConv" {
		weight = s.input(3)
	}
	if len(weight.Dims) < 3 || len(x.Dims) != len(weight.Dims) {
		return
	}
	group := float64(max(1, s.Node.Int("group", 1)))
	w.Window = float64(product(weight.Dims[2:]))
	for _, stride := range s.Node.Ints("strides") {
		w.Strided = w.Strided || stride > 1
	}
	w.Winograd = group == 1 && s.Node.Op != "ConvTranspose" && slices.Equal(weight.Dims[2:], []int64{3, 3}) && !w.Strided && ones(s.Node.Ints("dilations"))
	w.Batch, w.Shared = group, group == 1
	positions := out.Elements() / max(1, float64(out.dim(1)))
	if s.Node.Op == "ConvTranspose" {
		positions = x.Elements() / max(1, float64(x.dim(1)))
		w.M, w.N, w.Depth = positions, float64(weight.dim(1))*w.Window, float64(weight.dim(0))/group
	} else {
		w.M, w.N, w.Depth = positions, float64(weight.dim(0))/group, float64(weight.dim(1))*w.Window
	}
	w.FLOPs = 2 * w.Batch * w.M * w.N * w.Depth
}

func ones(values []int64) bool {
	return !slices.ContainsFunc(values, func(v int64) bool { return v != 1 })
}

func (s *Step) movement(w *Work) {
	switch s.Node.Op {
	case "Gather", "GatherElements", "GatherND":
		w.Read += w.Write // the rows that are picked
		if s.input(0).Weight {
			w.Weights = w.Write
		}
		w.Element = s.output().Type
	case "Expand", "Slice", "Split", "RoiAlign", "MaxRoiPool":
		w.Read = min(w.Read, w.Write)
		if strings.HasSuffix(s.Node.Op, "Roi") {
			w.Read *= 4
		}
	case "ConstantOfShape", "Range", "EyeLike", "OneHot":
		w.Read = 0
	case "Resize", "Upsample", "GridSample":
		w.FLOPs = 8 * s.output().Elements()
	}
}

func (s *Step) recurrent(w *Work) {
	x, weight, r := s.input(0), s.input(1), s.input(2)
	gates := map[string]float64{"LSTM": 4, "GRU": 3, "RNN": 1}[s.Node.Op]
	length, batch := float64(x.dim(0)), float64(x.dim(1))
	if s.Node.Int("layout", 0) == 1 {
		length, batch = batch, length
	}
	directions, hidden := float64(r.dim(0)), float64(r.dim(2))
	w.Serial = max(1, length)
	w.Batch, w.M, w.N, w.Depth = directions, batch, gates*hidden, hidden+float64(weight.dim(2))
	w.FLOPs = 2 * w.Serial * w.Batch * w.M * w.N * w.Depth
}

// attention counts the projections where the operator has their weights, and both products of the scores.
func (s *Step) attention(w *Work) {
	x, key, value := s.input(0), s.input(1), s.input(2)
	heads := float64(max(1, s.Node.Int("num_heads", s.Node.Int("q_num_heads", 1))))
	batch, length, hidden := float64(x.dim(0)), float64(x.dim(1)), float64(x.dim(2))
	other, depth := length, 0.0
	switch {
	case (s.Node.Op == "Attention" || s.Node.Op == "QAttention") && s.Node.Domain != "" && len(key.Dims) == 2:
		w.From, w.To = float64(key.dim(0)), float64(key.dim(1))
		hidden = w.To / 3
		if sizes := s.Node.Ints("qkv_hidden_sizes"); len(sizes) == 3 && sizes[0] > 0 {
			hidden = float64(sizes[0])
		}
		w.FLOPs = 2 * batch * length * w.From * w.To
		if past := s.input(4); len(past.Dims) == 5 {
			other += float64(past.dim(3))
		}
	case len(x.Dims) == 4: // batch, heads, length, depth
		heads, length, depth = float64(x.dim(1)), float64(x.dim(2)), float64(x.dim(3))
		other = float64(key.dim(2))
	case len(x.Dims) == 5: // queries, keys and values of each head beside each other
		heads, depth = float64(x.dim(2)), float64(x.dim(4))
	case s.Node.Op == "GroupQueryAttention":
		if shared := float64(s.Node.Int("kv_num_heads", 1)); len(key.Dims) == 0 {
			depth = hidden / (heads + 2*shared)
		}
		if past := s.input(3); len(past.Dims) == 4 {
			other += float64(past.dim(2))
		}
	case len(key.Dims) == 4 && len(value.Dims) == 4: // keys of before, by heads
		other = float64(key.dim(2))
	case len(key.Dims) >= 3:
		other = float64(key.dim(1))
	}
	if depth == 0 {
		depth = hidden / heads
	}
	w.FLOPs += 4 * batch * heads * length * other * depth
	w.Batch, w.M, w.N, w.Depth = batch*heads, length, other, depth
}
