// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"math"

	"github.com/conch-serving/conch/internal/onnx"
)

// rules by operator. Names are unique over ONNX's own domain and ONNX Runtime's (com.microsoft) as far as they are here.
var rules = table()

func table() map[string]rule {
	t := map[string]rule{}
	all := func(r rule, names ...string) {
		for _, n := range names {
			t[n] = r
		}
	}
	all(same, "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sign", "HardSigmoid", "HardSwish", "Elu", "Selu", "Celu",
		"Softplus", "Softsign", "ThresholdedRelu", "Mish", "Gelu", "FastGelu", "QuickGelu", "BiasGelu", "Softmax", "LogSoftmax", "Hardmax",
		"Reciprocal", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "LRN", "InstanceNormalization",
		"LayerNormalization", "GroupNormalization", "GroupNorm", "SkipGroupNorm", "RMSNormalization", "SimplifiedLayerNormalization", "BatchNormalization", "MeanVarianceNormalization",
		"LpNormalization", "CumSum", "Trilu", "ReverseSequence", "Scatter", "ScatterElements", "ScatterND", "EyeLike", "Shrink",
		"RotaryEmbedding", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "Swish", "BiasSplitGelu", "NhwcConvReplace", "Bernoulli", "SequenceInsert",
		"BiasSoftmax", "BiasDropout", "BiasAdd", "RandomNormalLike", "RandomUniformLike")
	all(skipped, "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
	all(kept, "Identity", "Dropout", "Optional", "OptionalGetElement")
	all(typed(onnx.Bool), "Not", "IsNaN", "IsInf")
	all(typed(onnx.Uint8), "QuantizeLinear")
	all(typed(onnx.Float), "DequantizeLinear")
	t["Clip"] = kept
	t["Abs"], t["Neg"] = kept, negate
	t["Sqrt"], t["Floor"], t["Ceil"], t["Round"] = unary(math.Sqrt), unary(math.Floor), unary(math.Ceil), unary(math.RoundToEven)
	t["BitwiseNot"] = same
	t["DynamicQuantizeLinear"] = dynamicQuantize
	t["Cast"], t["CastLike"] = cast, castLike

	div := func(a, b int64) int64 {
		if b == 0 {
			return 0
		}
		return a / b
	}
	all(elementwise(func(a, b int64) int64 { return a + b }, func(a, b float64) float64 { return a + b }, 0), "Add")
	all(elementwise(func(a, b int64) int64 { return a - b }, func(a, b float64) float64 { return a - b }, 0), "Sub")
	all(elementwise(func(a, b int64) int64 { return a * b }, func(a, b float64) float64 { return a * b }, 0), "Mul")
	all(elementwise(div, func(a, b float64) float64 { return a / b }, 0), "Div")
	all(elementwise(func(a, b int64) int64 {
		if b == 0 {
			return 0
		}
		return ((a % b) + b) % b
	}, nil, 0), "Mod")
	all(elementwise(func(a, b int64) int64 { return max(a, b) }, math.Max, 0), "Max")
	all(elementwise(func(a, b int64) int64 { return min(a, b) }, math.Min, 0), "Min")
	all(elementwise(nil, math.Pow, 0), "Pow")
	all(elementwise(nil, nil, 0), "Sum", "Mean", "PRelu", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift", "AddGelu")
	truth := func(f func(a, b int64) bool) rule {
		return elementwise(func(a, b int64) int64 {
			if f(a, b) {
				return 1
			}
			return 0
		}, nil, onnx.Bool)
	}
	t["Equal"] = truth(func(a, b int64) bool { return a == b })
	t["Greater"] = truth(func(a, b int64) bool { return a > b })
	t["GreaterOrEqual"] = truth(func(a, b int64) bool { return a >= b })
	t["Less"] = truth(func(a, b int64) bool { return a < b })
	t["LessOrEqual"] = truth(func(a, b int64) bool { return a <= b })
	t["And"] = truth(func(a, b int64) bool { return a != 0 && b != 0 })
	t["Or"] = truth(func(a, b int64) bool { return a != 0 || b != 0 })
	t["Xor"] = truth(func(a, b int64) bool { return (a != 0) != (b != 0) })
	t["Where"] = where
	t["QLinearAdd"], t["QLinearMul"] = qlinearPair, qlinearPair

	t["MatMul"], t["FusedMatMul"], t["TransposeMatMul"] = matmul(1, 0), fusedMatMul, fusedMatMul
	t["MatMulInteger"], t["QLinearMatMul"], t["MatMulIntegerToFloat"], t["DynamicQuantizeMatMul"] = matmul(1, onnx.Int32), matmul(3, onnx.Uint8), matmul(1, onnx.Float), matmul(1, 0)
	t["MatMulNBits"] = matmulBits
	t["Gemm"], t["FusedGemm"], t["QGemm"] = gemm(0, 1), gemm(0, 1), gemm(0, 3)
	t["Conv"], t["FusedConv"], t["NhwcFusedConv"] = convolution(1, 0), convolution(1, 0), convolution(1, 0)
	t["ConvInteger"], t["QLinearConv"] = convolution(1, onnx.Int32), convolution(3, onnx.Uint8)
	t["ConvTranspose"] = transposed
	all(pool, "MaxPool", "AveragePool", "LpPool")
	t["QLinearAveragePool"] = pool
	all(globalPool, "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "QLinearGlobalAveragePool")
	t["Einsum"] = einsum
	all(recurrent, "LSTM", "GRU", "RNN")
	all(attention, "Attention", "QAttention")
	all(firstShape, "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention")
	t["EmbedLayerNormalization"] = embed

	t["Reshape"], t["Flatten"], t["Transpose"] = reshape, flatten, transpose
	t["Squeeze"], t["Unsqueeze"] = squeeze, unsqueeze
	t["Concat"], t["QLinearConcat"], t["Split"], t["Slice"] = concat, qlinearConcat, split, slice
	t["Gather"], t["GatherElements"], t["GatherND"] = gather, gatherElements, gatherND
	t["Expand"], t["Tile"], t["Pad"] = expand, tile, pad
	t["Resize"], t["Upsample"] = resize, resize
	t["DepthToSpace"], t["SpaceToDepth"] = depthToSpace, spaceToDepth
	t["Shape"], t["Size"], t["Constant"], t["ConstantOfShape"], t["Range"] = shapeOf, sizeOf, constant, constantOfShape, rangeOf
	t["NonZero"], t["Unique"], t["Compress"] = nonZero, contents, contents
	t["TopK"], t["ArgMax"], t["ArgMin"] = topK, arg, arg
	for _, name := range []string{"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"} {
		t[name] = reduce
	}
	t["OneHot"] = oneHot
	t["NonMaxSuppression"] = suppression
	t["RoiAlign"], t["MaxRoiPool"] = roiAlign, roiAlign
	t["GridSample"] = gridSample
	t["RandomNormal"], t["RandomUniform"] = random, random
	return t
}

// skipped is a normalisation of a sum, which it may give too, last of four.
func skipped(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	statistic := &Tensor{Type: x.Type, Dims: []int64{}}
	sum, deviation := *statistic, *statistic
	sum.Dims = x.Dims
	return []*Tensor{{Type: x.Type, Dims: x.Dims}, statistic, &deviation, &sum}, nil
}

func negate(c *call) ([]*Tensor, error) {
	out, err := same(c)
	if err == nil && c.in[0].Ints != nil {
		for _, v := range c.in[0].Ints {
			out[0].Ints = append(out[0].Ints, -v)
		}
	}
	return out, err
}

func cast(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	return castTo(x, onnx.DataType(c.node.Int("to", int64(x.Type)))), nil
}

func castLike(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	like, err := c.need(1)
	if err != nil {
		return nil, err
	}
	return castTo(x, like.Type), nil
}

func castTo(x *Tensor, t onnx.DataType) []*Tensor {
	out := &Tensor{Type: t, Dims: x.Dims}
	switch t {
	case onnx.Float, onnx.Double, onnx.Float16, onnx.BFloat16:
		out.Floats = x.Floats
		if x.Ints != nil {
			for _, v := range x.Ints {
				out.Floats = append(out.Floats, float64(v))
			}
		}
	case onnx.Int64, onnx.Int32, onnx.Bool:
		out.Ints = x.Ints
		if x.Floats != nil {
			for _, v := range x.Floats {
				out.Ints = append(out.Ints, int64(v))
			}
		}
	}
	return []*Tensor{out}
}

func dynamicQuantize(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	return []*Tensor{{Type: onnx.Uint8, Dims: x.Dims}, {Type: onnx.Float, Dims: []int64{}}, {Type: onnx.Uint8, Dims: []int64{}}}, nil
}

func qlinearPair(c *call) ([]*Tensor, error) {
	a, err := c.need(0)
	if err != nil {
		return nil, err
	}
	b, err := c.need(3)
	if err != nil {
		return nil, err
	}
	dims, err := broadcast(a.Dims, b.Dims)
	return tensor(a.Type, dims), err
}

func where(c *call) ([]*Tensor, error) {
	x, err := c.need(1)
	if err != nil {
		return nil, err
	}
	condition, other := c.at(0), c.at(2)
	if condition == nil || other == nil {
		return nil, errUnknown
	}
	dims, err := broadcast(condition.Dims, x.Dims, other.Dims)
	if err != nil {
		return nil, err
	}
	out := &Tensor{Type: x.Type, Dims: dims}
	if n := product(dims); condition.Ints != nil && x.Ints != nil && other.Ints != nil && n <= mostKnown && aligned(condition, x, n) && aligned(condition, other, n) {
		for i := range int(n) {
			if condition.Ints[i%len(condition.Ints)] != 0 {
				out.Ints = append(out.Ints, x.Ints[i%len(x.Ints)])
			} else {
				out.Ints = append(out.Ints, other.Ints[i%len(other.Ints)])
			}
		}
	}
	return []*Tensor{out}, nil
}

func random(c *call) ([]*Tensor, error) {
	return tensor(onnx.DataType(c.node.Int("dtype", 1)), c.node.Ints("shape")), nil
}
