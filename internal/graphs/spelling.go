// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package graphs

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/conch-serving/conch/internal/onnx"
)

// Spelling is how an exporter writes the parts of a transformer down. The zero value is operators of ONNX alone, in single precision.
type Spelling struct {
	// Norm is "" (LayerNormalization), "written" (ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul, Add), "twice" (the difference is taken twice),
	// "reciprocal" (by Reciprocal and Mul) or "skip" (SkipLayerNormalization).
	Norm string
	// Gelu is "" (written around Erf), "half" (the same, halved first), "tanh", "quick" (x times the sigmoid of 1.702 x), "op" (Gelu), "bias" (BiasGelu) or "fast" (FastGelu).
	Gelu string
	// Attention is "" (three products, written out), "packed" (one product and Split), "stacked" (one product, Transpose and Gather), "gemm" (products of
	// matrices), "scaled" (queries and keys are scaled), "op" (Attention of ONNX Runtime), "multihead" (MultiHeadAttention) or "onnx" (Attention of ONNX).
	Attention string
	// Half has weights and values of half precision; Casts has normalisations and softmax in single precision, between casts.
	Half, Casts bool
	// Before normalises before each step, not behind it; Causal has tokens see those before them alone, by a part of a table that is a parameter.
	Before, Causal bool
	// Embed looks tokens up by EmbedLayerNormalization.
	Embed bool
	// Mask adds a mask of tokens to scores; Dynamic works shapes out of the inputs' while it runs.
	Mask, Dynamic bool
}

// Transformer is a transformer encoder over token ids, spelled so, whose first token is classified: BERT's, without token types.
func Transformer(w Weights, size EncoderSize, length, classes int64, s Spelling) *Model {
	m := start("transformer", w)
	m.Opsets["com.microsoft"] = 1
	switch {
	case s.Attention == "onnx":
		m.Opsets[""] = 23
	case s.Gelu == "op":
		m.Opsets[""] = 20
	}
	t := &speller{Model: m, size: size, s: s}
	t.tokens = m.input("TOKENS", onnx.Int64, length)
	if s.Mask {
		mask := m.add("Cast", []string{m.input("MASK", onnx.Int64, length)}, integer("to", int64(t.kind())))
		mask = m.add("Unsqueeze", []string{mask, m.ints(1, 2)})
		t.mask = m.add("Mul", []string{m.add("Sub", []string{t.number(1), mask}), t.number(-10000)})
	}
	var x string
	more := ""
	words, positions := t.table("embedding.word", size.Vocabulary), t.matrix("embedding.position", length, size.Width)
	if s.Embed {
		x = t.contrib("EmbedLayerNormalization", []string{t.tokens, "", words, positions, "", t.tensor("embedding.gamma", size.Width), t.tensor("embedding.beta", size.Width)})
	} else {
		x = m.add("Add", []string{m.add("Gather", []string{words, t.tokens}), positions})
		if !s.Before {
			x, _ = t.norm(x, "", "embedding.norm")
		}
	}
	step := func(name string, f func(x string) string) {
		if s.Before {
			var normal string
			normal, x = t.norm(x, more, name)
			more = f(normal)
			return
		}
		more = f(x)
		x, more = t.behind(x, more, name), ""
	}
	for l := range size.Layers {
		name := fmt.Sprintf("layer%d.", l)
		step(name+"norm1", func(x string) string { return t.linear(t.attention(x, name), name+"attended", size.Width, size.Width) })
		step(name+"norm2", func(x string) string { return t.linear(t.gelu(x, name), name+"outer", size.Inner, size.Width) })
	}
	if s.Before {
		x, _ = t.norm(x, more, "norm")
	}
	x = m.add("Gather", []string{x, m.scalar(0)}, integer("axis", 1))
	x = t.linear(m.add("Tanh", []string{t.linear(x, "pooler", size.Width, size.Width)}), "head", size.Width, classes)
	m.output("SCORES", x, classes)
	m.Graph.Outputs[0].Type.Elem = t.kind()
	return m
}

// speller writes one transformer.
type speller struct {
	*Model
	size         EncoderSize
	s            Spelling
	tokens, mask string
}

func (t *speller) kind() onnx.DataType {
	if t.s.Half {
		return onnx.Float16
	}
	return onnx.Float
}

// tensor adds a weight of the transformer's precision.
func (t *speller) tensor(name string, dims ...int64) string {
	t.weight(name, .05, true, dims...)
	t.Graph.Initializer(name).Type = t.kind()
	return name
}

func (t *speller) matrix(name string, rows, columns int64) string {
	return t.tensor(name, rows, columns)
}

func (t *speller) table(name string, rows int64) string { return t.matrix(name, rows, t.size.Width) }

// number adds a scalar of the transformer's precision. That of half precision is 1 whatever it stands for: values play no part in what a graph costs.
func (t *speller) number(v float32) string {
	if !t.s.Half {
		return t.float(v)
	}
	name := t.fresh("scalar")
	t.Graph.AddInitializer(&onnx.Tensor{Name: name, Type: onnx.Float16, Dims: []int64{}})
	t.values[name] = binary.LittleEndian.AppendUint16(nil, 0x3c00)
	return name
}

// op adds an operator without attributes.
func (t *speller) op(name string, inputs ...string) string { return t.add(name, inputs) }

// contrib adds an operator of ONNX Runtime's own.
func (t *speller) contrib(op string, inputs []string, attributes ...*onnx.Attribute) string {
	out := t.add(op, inputs, attributes...)
	t.Graph.Nodes[len(t.Graph.Nodes)-1].Domain = "com.microsoft"
	return out
}

func (t *speller) linear(x, name string, in, out int64) string {
	if t.s.Attention == "gemm" && name != "pooler" && name != "head" {
		x = t.add("Reshape", []string{x, t.ints(-1, in)})
		x = t.add("Gemm", []string{x, t.matrix(name+".weight", in, out), t.tensor(name+".bias", out)})
		return t.add("Reshape", []string{x, t.shape(t.length(), out)})
	}
	x = t.add("MatMul", []string{x, t.matrix(name+".weight", in, out)})
	return t.add("Add", []string{x, t.tensor(name+".bias", out)})
}

func (t *speller) length() int64 { return t.Graph.Inputs[0].Type.Dims[1].Size }

// shape is that of so many rows of each request, worked out while it runs where the spelling says so.
func (t *speller) shape(dims ...int64) string {
	if !t.s.Dynamic {
		return t.ints(append([]int64{-1}, dims...)...)
	}
	shape := t.add("Shape", []string{t.tokens})
	parts := []string{}
	for i, d := range append([]int64{0}, dims...) {
		if i < 2 {
			parts = append(parts, t.add("Unsqueeze", []string{t.add("Gather", []string{shape, t.scalar(int64(i))}), t.ints(0)}))
		} else {
			parts = append(parts, t.ints(d))
		}
	}
	return t.add("Concat", parts, integer("axis", 0))
}

// single is what f makes of a value, in single precision where the spelling has casts.
func (t *speller) single(x string, f func(x string) string) string {
	if !t.s.Casts {
		return f(x)
	}
	return t.add("Cast", []string{f(t.add("Cast", []string{x}, integer("to", int64(onnx.Float))))}, integer("to", int64(t.kind())))
}

// norm normalises the sum of x and what is added to it, or x alone, and gives that sum.
func (t *speller) norm(x, more, name string) (normal, sum string) {
	width := t.size.Width
	gamma, beta := t.tensor(name+".gamma", width), t.tensor(name+".beta", width)
	if t.s.Norm == "skip" && more != "" {
		normal = t.contrib("SkipLayerNormalization", []string{x, more, gamma, beta})
		if t.s.Before {
			sum = t.fresh("sum")
			n := t.Graph.Nodes[len(t.Graph.Nodes)-1]
			n.Outputs = append(n.Outputs, "", "", sum)
		}
		return normal, sum
	}
	if more != "" {
		x = t.add("Add", []string{x, more})
	}
	mean := func(x string) string { return t.add("ReduceMean", []string{x}, list("axes", -1)) }
	if t.s.Norm == "" || t.s.Norm == "skip" {
		if t.s.Casts {
			t.Graph.Initializer(gamma).Type, t.Graph.Initializer(beta).Type = onnx.Float, onnx.Float
		}
		return t.single(x, func(x string) string {
			return t.add("LayerNormalization", []string{x, gamma, beta}, integer("axis", -1))
		}), x
	}
	number := t.number
	if t.s.Casts {
		number = t.float
	}
	normal = t.single(x, func(x string) string {
		d := t.op("Sub", x, mean(x))
		root := t.op("Sqrt", t.op("Add", mean(t.op("Pow", d, number(2))), number(1e-12)))
		switch t.s.Norm {
		case "twice":
			return t.op("Div", t.op("Sub", x, mean(x)), root)
		case "reciprocal":
			return t.op("Mul", d, t.op("Reciprocal", root))
		}
		return t.op("Div", d, root)
	})
	return t.op("Add", t.op("Mul", normal, gamma), beta), x
}

// behind is the sum of a step's input and result, normalised.
func (t *speller) behind(x, more, name string) string {
	normal, _ := t.norm(x, more, name)
	return normal
}

// gelu is the first product of the block behind attention, with its activation.
func (t *speller) gelu(x, name string) string {
	if t.s.Gelu == "bias" || t.s.Gelu == "fast" {
		x = t.op("MatMul", x, t.matrix(name+"inner.weight", t.size.Width, t.size.Inner))
		return t.contrib(map[string]string{"bias": "BiasGelu", "fast": "FastGelu"}[t.s.Gelu], []string{x, t.tensor(name+"inner.bias", t.size.Inner)})
	}
	y := t.linear(x, name+"inner", t.size.Width, t.size.Inner)
	switch t.s.Gelu {
	case "op":
		return t.op("Gelu", y)
	case "quick":
		return t.op("Mul", y, t.op("Sigmoid", t.op("Mul", y, t.number(1.702))))
	case "half":
		return t.op("Mul", t.op("Mul", y, t.number(.5)), t.op("Add", t.op("Erf", t.op("Div", y, t.number(1.4142135))), t.number(1)))
	case "tanh":
		inner := t.op("Mul", t.op("Add", y, t.op("Mul", t.op("Pow", y, t.number(3)), t.number(.044715))), t.number(.7978845))
		return t.op("Mul", t.op("Mul", y, t.number(.5)), t.op("Add", t.op("Tanh", inner), t.number(1)))
	}
	return t.op("Mul", t.op("Mul", y, t.op("Add", t.op("Erf", t.op("Div", y, t.number(1.4142135))), t.number(1))), t.number(.5))
}

// attention is the values of each token's attention, before the product that mixes heads.
func (t *speller) attention(x, name string) string {
	width, heads := t.size.Width, t.size.Heads
	depth := width / heads
	heading := integer("num_heads", heads)
	split := func(x string, perm ...int64) string {
		return t.add("Transpose", []string{t.add("Reshape", []string{x, t.shape(t.length(), heads, depth)})}, list("perm", perm...))
	}
	var q, k, v string
	switch t.s.Attention {
	case "op":
		causal := int64(0)
		if t.s.Causal {
			causal = 1
		}
		return t.contrib("Attention", []string{x, t.matrix(name+"qkv.weight", width, 3*width), t.tensor(name+"qkv.bias", 3*width)}, heading, integer("unidirectional", causal))
	case "packed":
		all := t.linear(x, name+"qkv", width, 3*width)
		q, k, v = t.fresh("q"), t.fresh("k"), t.fresh("v")
		t.Graph.Nodes = append(t.Graph.Nodes, &onnx.Node{
			Name: q, Op: "Split", Inputs: []string{all, t.ints(width, width, width)}, Outputs: []string{q, k, v}, Attributes: []*onnx.Attribute{integer("axis", -1)},
		})
	case "stacked":
		all := t.add("Reshape", []string{t.linear(x, name+"qkv", width, 3*width), t.shape(t.length(), 3, heads, depth)})
		all = t.add("Transpose", []string{all}, list("perm", 2, 0, 3, 1, 4))
		part := func(i int64) string { return t.add("Gather", []string{all, t.scalar(i)}, integer("axis", 0)) }
		q, k, v = part(0), t.add("Transpose", []string{part(1)}, list("perm", 0, 1, 3, 2)), part(2)
	default:
		q, k, v = t.linear(x, name+"query", width, width), t.linear(x, name+"key", width, width), t.linear(x, name+"value", width, width)
	}
	switch t.s.Attention {
	case "multihead":
		return t.contrib("MultiHeadAttention", []string{q, k, v}, heading)
	case "onnx":
		return t.add("Attention", []string{q, k, v}, integer("q_num_heads", heads), integer("kv_num_heads", heads))
	case "stacked":
	default:
		q, k, v = split(q, 0, 2, 1, 3), split(k, 0, 2, 3, 1), split(v, 0, 2, 1, 3)
	}
	scale := float32(1 / math.Sqrt(float64(depth)))
	var scores string
	if t.s.Attention == "scaled" {
		root := t.number(float32(math.Sqrt(float64(scale))))
		scores = t.add("MatMul", []string{t.add("Mul", []string{q, root}), t.add("Mul", []string{k, root})})
	} else {
		scores = t.add("Div", []string{t.add("MatMul", []string{q, k}), t.number(1 / scale)})
	}
	if t.s.Causal {
		table := name + "causal"
		t.Graph.AddInitializer(&onnx.Tensor{Name: table, Type: onnx.Bool, Dims: []int64{1, 1, 1024, 1024}})
		t.values[table] = make([]byte, 1<<20)
		n := t.ints(t.length())
		if t.s.Dynamic {
			n = t.add("Slice", []string{t.shape(t.length()), t.ints(1), t.ints(2), t.ints(0)})
		}
		for _, axis := range []int64{2, 3} {
			table = t.add("Slice", []string{table, t.ints(0), n, t.ints(axis)})
		}
		scores = t.add("Where", []string{table, scores, t.number(-1e9)})
	}
	if t.mask != "" {
		scores = t.add("Add", []string{scores, t.mask})
	}
	p := t.single(scores, func(x string) string { return t.add("Softmax", []string{x}, integer("axis", -1)) })
	y := t.add("Transpose", []string{t.add("MatMul", []string{p, v})}, list("perm", 0, 2, 1, 3))
	return t.add("Reshape", []string{y, t.shape(t.length(), width)})
}
