// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package graphs

import (
	"fmt"
	"math"

	"github.com/conch-serving/conch/internal/onnx"
)

// Chain is matrix products one after another, with biases and Relu between them: widths[0] inputs, then a layer for each further width.
// Weights are called layerI.weight and layerI.bias.
func Chain(w Weights, widths ...int64) *Model {
	m := start("chain", w)
	x := m.input("X", onnx.Float, widths[0])
	for i, out := range widths[1:] {
		if i > 0 {
			x = m.add("Relu", []string{x})
		}
		x = m.linear(x, fmt.Sprintf("layer%d", i), widths[i], out)
	}
	m.output("Y", x, widths[len(widths)-1])
	return m
}

// Skipping is a Chain whose result also depends on the inputs directly, through a matrix skip.weight.
func Skipping(w Weights, widths ...int64) *Model {
	m := Chain(w, widths...)
	last := len(m.Graph.Nodes) - 1
	result := m.Graph.Nodes[last]
	m.Graph.Nodes = m.Graph.Nodes[:last]
	skipped := m.add("MatMul", []string{"X", m.weight("skip.weight", 1, true, widths[0], widths[len(widths)-1])})
	result.Op, result.Inputs = "Add", append(result.Inputs, skipped)
	m.Graph.Nodes = append(m.Graph.Nodes, result)
	return m
}

// linear is MatMul and Add.
func (m *Model) linear(x, name string, in, out int64) string {
	x = m.add("MatMul", []string{x, m.weight(name+".weight", math.Sqrt(3/float64(in)), true, in, out)})
	return m.add("Add", []string{x, m.weight(name+".bias", .05, true, out)})
}

// ResNet has the convolutions of a residual network (He et al., 2016), each with BatchNormalization, over images of size by size pixels: so many bottleneck
// blocks in each stage, and channels behind the first convolution; ResNet-50 has 3, 4, 6 and 3, and 64. Convolutions are called conv0, conv1 and so on, their
// weights convI.weight, and the classifier head.
func ResNet(w Weights, stages []int, channels, size, classes int64) *Model {
	m := start("resnet", w)
	count := 0
	conv := func(x string, in, out, window, stride int64) string {
		name := fmt.Sprintf("conv%d", count)
		count++
		pad := window / 2
		x = m.add("Conv", []string{x, m.weight(name+".weight", math.Sqrt(6/float64(in*window*window)), false, out, in, window, window)},
			list("kernel_shape", window, window), list("strides", stride, stride), list("pads", pad, pad, pad, pad))
		return m.add("BatchNormalization", []string{
			x, m.constant(name+".gamma", .7, out), m.weight(name+".beta", .05, true, out),
			m.weight(name+".mean", .05, true, out), m.constant(name+".variance", 1, out),
		})
	}
	x := m.input("IMAGE", onnx.Float, 3, size, size)
	x = m.add("Relu", []string{conv(x, 3, channels, 7, 2)})
	x = m.add("MaxPool", []string{x}, list("kernel_shape", 3, 3), list("strides", 2, 2), list("pads", 1, 1, 1, 1))
	in := channels
	for stage, blocks := range stages {
		width := channels << stage
		for b := range blocks {
			stride := int64(1)
			if b == 0 && stage > 0 {
				stride = 2
			}
			y := m.add("Relu", []string{conv(x, in, width, 1, 1)})
			y = m.add("Relu", []string{conv(y, width, width, 3, stride)})
			y = conv(y, width, 4*width, 1, 1)
			if b == 0 {
				x = conv(x, in, 4*width, 1, stride)
			}
			x = m.add("Relu", []string{m.add("Add", []string{y, x})})
			in = 4 * width
		}
	}
	x = m.add("Flatten", []string{m.add("GlobalAveragePool", []string{x})}, integer("axis", 1))
	m.output("LOGITS", m.linear(x, "head", in, classes), classes)
	return m
}

// BERTBase has the layers of BERT-base (Devlin et al., 2019) over length tokens: 12 layers of width 768, 436 MB of weights. Weights are
// called layerI.query.weight and so on; the classifier is head.
func BERTBase(w Weights, length, classes int64) *Model {
	return Encoder(w, EncoderSize{Vocabulary: 30522, Layers: 12, Width: 768, Heads: 12, Inner: 3072}, length, classes)
}

// EncoderSize is the size of a transformer encoder.
type EncoderSize struct{ Vocabulary, Layers, Width, Heads, Inner int64 }

// Encoder is a transformer encoder over token ids, normalised behind each step, whose first token is classified. A length of -1 leaves
// it to requests how many tokens there are; tokens have no positions then.
func Encoder(w Weights, s EncoderSize, length, classes int64) *Model {
	m := start("encoder", w)
	norm := func(x, name string) string {
		return m.add("LayerNormalization", []string{x, m.constant(name+".gamma", 1, s.Width), m.weight(name+".beta", .02, true, s.Width)}, integer("axis", -1))
	}
	heads := func(x string, perm ...int64) string {
		return m.add("Transpose", []string{m.add("Reshape", []string{x, m.ints(0, length, s.Heads, s.Width/s.Heads)})}, list("perm", perm...))
	}
	tokens := m.input("TOKENS", onnx.Int64, length)
	x := m.add("Gather", []string{m.weight("embedding.word", 1, false, s.Vocabulary, s.Width), tokens})
	if length > 0 {
		x = m.add("Add", []string{x, m.weight("embedding.position", .1, false, length, s.Width)})
	}
	x = norm(x, "embedding.norm")
	scale := m.float(float32(1 / math.Sqrt(float64(s.Width/s.Heads))))
	half, one, root := m.float(.5), m.float(1), m.float(float32(math.Sqrt(.5)))
	for l := range s.Layers {
		name := fmt.Sprintf("layer%d.", l)
		q := heads(m.linear(x, name+"query", s.Width, s.Width), 0, 2, 1, 3)
		k := heads(m.linear(x, name+"key", s.Width, s.Width), 0, 2, 3, 1)
		v := heads(m.linear(x, name+"value", s.Width, s.Width), 0, 2, 1, 3)
		p := m.add("Softmax", []string{m.add("Mul", []string{m.add("MatMul", []string{q, k}), scale})}, integer("axis", -1))
		y := m.add("Transpose", []string{m.add("MatMul", []string{p, v})}, list("perm", 0, 2, 1, 3))
		y = m.add("Reshape", []string{y, m.ints(0, length, s.Width)})
		x = norm(m.add("Add", []string{x, m.linear(y, name+"attended", s.Width, s.Width)}), name+"norm1")
		y = m.linear(x, name+"inner", s.Width, s.Inner)
		erf := m.add("Add", []string{m.add("Erf", []string{m.add("Mul", []string{y, root})}), one})
		y = m.linear(m.add("Mul", []string{m.add("Mul", []string{y, half}), erf}), name+"outer", s.Inner, s.Width)
		x = norm(m.add("Add", []string{x, y}), name+"norm2")
	}
	x = m.add("Gather", []string{x, m.scalar(0)}, integer("axis", 1))
	x = m.add("Tanh", []string{m.linear(x, "pooler", s.Width, s.Width)})
	m.output("SCORES", m.linear(x, "head", s.Width, classes), classes)
	return m
}

// scalar adds an integer constant.
func (m *Model) scalar(v int64) string {
	name := m.ints(v)
	m.Graph.Initializer(name).Dims = []int64{}
	return name
}

// Pass computes OUTPUT = INPUT over rows of so many floats.
func Pass(elements int64) *Model {
	m := start("pass", Weights{})
	m.output("OUTPUT", m.add("Mul", []string{m.input("INPUT", onnx.Float, elements), m.constant("one", 1, elements)}), elements)
	return m
}

// FineTune computes OUTPUT = 2*INPUT + 1 over rows of so many floats, exactly for small numbers with few binary digits, as a fine-tune does:
// by a backbone that all of them have in common, and a head of each one's own weights. It is a graph for emulated models, whose answers can
// be checked whichever of them gave it.
func FineTune(number int, elements int64) *Model {
	m := start("finetune", Weights{})
	x := m.add("Mul", []string{m.input("INPUT", onnx.Float, elements), m.constant("backbone.0", 2, elements)})
	for i := range 20 { // so that the head is a small part of the whole
		x = m.add("Mul", []string{x, m.constant(fmt.Sprintf("backbone.%d", i+1), 1, elements)})
	}
	own := float32(16 * (number + 1))
	x = m.add("Add", []string{x, m.constant("head.up", own, elements)})
	m.output("OUTPUT", m.add("Add", []string{x, m.constant("head.down", 1-own, elements)}), elements)
	return m
}
