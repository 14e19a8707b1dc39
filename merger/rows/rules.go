// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"errors"
	"fmt"
	"slices"

	"github.com/conch-serving/conch/internal/onnx"
)

// rule derives the outputs of a use of an operator, or says why they are not proved.
type rule func(*use) ([]Fact, error)

// rules is the whitelist, of ONNX's own operators.
var rules = table()

// hopeless are operators that are refused for a reason worth saying.
var hopeless = map[string]string{
	"RandomNormal": "its result is random", "RandomUniform": "its result is random", "RandomNormalLike": "its result is random",
	"RandomUniformLike": "its result is random", "Multinomial": "its result is random", "Bernoulli": "its result is random",
	"DynamicQuantizeLinear": "its scale depends on all rows",
	"If":                    "control flow is not looked into", "Loop": "control flow is not looked into", "Scan": "control flow is not looked into",
	"TopK": "ONNX Runtime dies of it on an empty batch", "Einsum": "ONNX Runtime dies of it on an empty batch",
	"OneHot": "ONNX Runtime dies of it on an empty batch", "LSTM": sequenceFirst, "GRU": sequenceFirst, "RNN": sequenceFirst,
	"NonZero": "its result has as many places as the data says", "Unique": "it compares rows with each other",
	"NonMaxSuppression": "its result has as many places as the data says", "Compress": "its result has as many places as the data says",
}

// sequenceFirst is why recurrent networks and some transformers are refused.
const sequenceFirst = "it wants the batch behind the sequence, on axis 1, and rows are followed on axis 0 alone: LSTM, GRU, RNN, and transformers as torch.nn exports them (nn.TransformerEncoder, nn.MultiheadAttention) are not merged"

// shapeInputs are the inputs that say a shape, which may depend on the number of rows.
var shapeInputs = map[string][]int{"Reshape": {1}, "Expand": {1}, "ConstantOfShape": {0}, "Resize": {3}, "Tile": {1}, "Slice": {1, 2}}

func table() map[string]rule {
	t := map[string]rule{
		"Constant": constantNode, "Shape": shapeOf, "Size": sizeOf, "ConstantOfShape": constantOfShape, "Range": rangeOf,
		"Cast": cast, "Where": where, "Clip": firstOnly, "Dropout": dropout, "PRelu": elementwise,
		"QuantizeLinear": quantize, "DequantizeLinear": quantize,
		"MatMul": matMul, "Gemm": gemm, "Conv": convolution, "ConvTranspose": convolution, "BatchNormalization": batchNormalization,
		"InstanceNormalization": channelwise, "GroupNormalization": channelwise, "LRN": channelwise,
		"LayerNormalization": layerNormalization, "Softmax": softmax, "LogSoftmax": softmax, "Hardmax": softmax,
		"GlobalAveragePool": globalPool, "GlobalMaxPool": globalPool, "GlobalLpPool": globalPool,
		"MaxPool": pool, "AveragePool": pool, "LpPool": pool, "Resize": resize, "Pad": pad, "DepthToSpace": rearranged, "SpaceToDepth": rearranged,
		"ArgMax": argument, "ArgMin": argument, "CumSum": cumulative,
		"Reshape": reshape, "Flatten": flatten, "Transpose": transpose, "Squeeze": squeeze, "Unsqueeze": unsqueeze, "Concat": concat,
		"Split": split, "Slice": slice, "Gather": gather, "Expand": expand, "Tile": tile, "Trilu": firstOnly,
	}
	for _, op := range []string{
		"Relu", "Gelu", "Erf", "Tanh", "Sigmoid", "Exp", "Log", "Sqrt", "Neg", "Abs", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish",
		"ThresholdedRelu", "Softplus", "Softsign", "Mish", "Floor", "Ceil", "Round", "Sign", "Reciprocal", "Identity", "Sin", "Cos", "Tan",
		"Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Not", "IsNaN", "IsInf", "BitwiseNot",
		"Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Sum", "Mean", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual",
		"And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift",
	} {
		t[op] = elementwise
	}
	for _, op := range []string{"Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"} {
		t["Reduce"+op] = reduce
	}
	return t
}

var errAcross = errors.New("rows of one input meet other places of another")

// broadcast is the shape and state of an operator that combines its inputs place by place (multidirectional broadcasting).
func broadcast(in []Fact) (Fact, error) {
	out := Fact{State: Constant, Shape: []Dim{}}
	if slices.ContainsFunc(in, func(f Fact) bool { return f.State == Rows }) {
		out.State = Rows
	}
	for _, f := range in {
		if f.Shape == nil {
			return Fact{}, errors.New("an input has an unknown number of dimensions")
		}
		if f.rank() > out.rank() {
			out.Shape = joined(f.Shape[:f.rank()-out.rank()], out.Shape)
		}
		for i := range f.Shape {
			at := out.rank() - f.rank() + i
			switch have, d := out.Shape[at], f.Shape[i]; {
			case have.Equal(d) || d.is(1):
			case have.is(1):
				out.Shape[at] = d
			case have.Unknown || d.Unknown || len(have.Symbols) > 0 || len(d.Symbols) > 0:
				if at == 0 && out.State == Rows {
					return Fact{}, errAcross
				}
				if _, fixed := d.Fixed(); fixed {
					out.Shape[at] = d // a size that must be 1 or this
				}
			default:
				return Fact{}, fmt.Errorf("dimensions %v and %v do not go together", have, d)
			}
		}
	}
	if out.State == Rows {
		for _, f := range in {
			// Rows must lie on axis 0 of the result, and no constant may tell places of axis 0 apart.
			if f.State == Rows && f.rank() != out.rank() || f.State == Constant && f.rank() == out.rank() && !f.Shape[0].is(1) {
				return Fact{}, errAcross
			}
			if f.State == Rows && !f.Shape[0].Equal(out.Shape[0]) {
				return Fact{}, errAcross
			}
		}
	}
	return out, nil
}

// comparison are the element-wise operators whose result is a truth value.
var comparison = map[string]bool{
	"Equal": true, "Greater": true, "Less": true, "GreaterOrEqual": true, "LessOrEqual": true, "IsNaN": true, "IsInf": true,
}

func elementwise(u *use) ([]Fact, error) {
	if len(u.in) == 0 {
		return nil, errors.New("it has no input")
	}
	if err := u.need(len(u.in)); err != nil {
		return nil, err
	}
	out, err := broadcast(u.in)
	if err != nil {
		return nil, err
	}
	if out.Type = u.in[0].Type; comparison[u.n.Op] {
		out.Type = onnx.Bool
	}
	out.Value = arithmetic(u)
	return []Fact{out}, nil
}

// arithmetic computes with the elements of small integer vectors.
func arithmetic(u *use) []Dim {
	if u.n.Op == "Identity" {
		return u.in[0].Value
	}
	if len(u.in) != 2 || u.in[0].Value == nil || u.in[1].Value == nil {
		return nil
	}
	a, b := u.in[0].Value, u.in[1].Value
	n := max(len(a), len(b))
	if len(a) != n && len(a) != 1 || len(b) != n && len(b) != 1 {
		return nil
	}
	out := make([]Dim, n)
	for i := range out {
		x, y := a[i%len(a)], b[i%len(b)]
		v, fixed := x.Fixed()
		w, both := y.Fixed()
		both = both && fixed
		switch {
		case u.n.Op == "Mul":
			out[i] = x.times(y)
		case u.n.Op == "Div" && both && w != 0:
			out[i] = Const(v / w) // of integers, towards zero
		case u.n.Op == "Div" && !y.is(0):
			out[i] = x.over(y)
		case u.n.Op == "Add" && both:
			out[i] = bounded(v, w)
		case u.n.Op == "Sub" && both:
			out[i] = bounded(v, -w)
		case u.n.Op == "Equal" && both:
			out[i] = truth(v == w)
		case u.n.Op == "Equal" && (fixed && v < 0 && isSize(y) || y.Factor < 0 && len(y.Symbols) == 0 && isSize(x)):
			out[i] = truth(false) // a size is never negative
		default:
			out[i] = unknown()
		}
	}
	return out
}

func isSize(d Dim) bool { return !d.Unknown && len(d.Symbols) > 0 && d.Factor > 0 }

func bounded(v, w int64) Dim {
	if max(v, w) > maxFactor || min(v, w) < -maxFactor {
		return unknown()
	}
	return Const(v + w)
}

func truth(b bool) Dim {
	if b {
		return Const(1)
	}
	return Const(0)
}

// firstOnly is element-wise in its first input; the others are constant scalars, or nothing that depends on the shape.
func firstOnly(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(1), u.constants(1)); err != nil {
		return nil, err
	}
	f := u.in[0]
	if u.n.Op == "Trilu" && f.State == Rows && f.rank() < 3 {
		return nil, errors.New("it works along axis 0, across rows")
	}
	f.Value = nil
	return []Fact{f}, nil
}

func dropout(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(1), u.constants(1)); err != nil {
		return nil, err
	}
	if u.has(2) || u.opset < 7 && u.n.Int("is_test", 0) == 0 {
		return nil, errors.New("it may be in training mode")
	}
	f, mask := u.in[0], u.in[0]
	f.Value, mask.Value, mask.Type = nil, nil, onnx.Bool
	return []Fact{f, mask}, nil
}

func cast(u *use) ([]Fact, error) {
	if err := u.need(1); err != nil {
		return nil, err
	}
	f := u.in[0]
	f.Type = onnx.DataType(u.n.Int("to", 0)) //nolint:gosec // an enum of 32 bits
	if f.Type != onnx.Int64 && f.Type != onnx.Int32 && f.Type != onnx.Bool {
		f.Value = nil
	}
	return []Fact{f}, nil
}

func where(u *use) ([]Fact, error) {
	if err := u.need(3); err != nil {
		return nil, err
	}
	out, err := broadcast(u.in)
	if err != nil {
		return nil, err
	}
	out.Type = u.in[1].Type
	c, x, y := u.in[0].Value, u.in[1].Value, u.in[2].Value
	if c != nil && x != nil && y != nil && len(c) > 0 && len(x) > 0 && len(y) > 0 {
		for i := range max(len(c), len(x), len(y)) {
			switch pick := c[i%len(c)]; {
			case pick.is(1):
				out.Value = append(out.Value, x[i%len(x)])
			case pick.is(0):
				out.Value = append(out.Value, y[i%len(y)])
			default:
				out.Value = append(out.Value, unknown())
			}
		}
	}
	return []Fact{out}, nil
}

func quantize(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(2), u.constants(1)); err != nil {
		return nil, err
	}
	f := u.in[0]
	if s := u.in[1]; s.rank() == 1 && !s.Shape[0].is(1) {
		if _, err := inner(u.n.Int("axis", 1), f); err != nil {
			return nil, err
		}
	} else if s.rank() > 1 {
		return nil, errors.New("scales for blocks have no rule")
	}
	f.Value = nil
	switch {
	case u.n.Op == "DequantizeLinear":
		f.Type = u.in[1].Type
	case u.has(2):
		f.Type = u.in[2].Type
	default:
		f.Type = onnx.Uint8
	}
	return []Fact{f}, nil
}
