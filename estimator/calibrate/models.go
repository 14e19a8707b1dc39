// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package calibrate

import "fmt"

// Input and Output are the names of a micro-model's tensors, both FP32.
const (
	Input  = "INPUT"
	Output = "OUTPUT"
)

// Model is a graph that is measured: a micro-model to fit, or a whole one to judge by.
type Model struct {
	Name string
	// Inputs and Outputs are the shapes of INPUT and OUTPUT without the batch.
	Inputs, Outputs []int64
	Batches         []int
	// Build writes the ONNX file.
	Build func() ([]byte, error)
}

// Micros are the micro-models: what an execution costs that computes nothing, and every family of kernels over a grid of sizes.
func Micros() []Model {
	var all []Model
	add := func(name string, in, out []int64, batches []int, body func(b *builder) string) {
		all = append(all, Model{Name: name, Inputs: in, Outputs: out, Batches: batches, Build: func() ([]byte, error) {
			b := newBuilder(name, in...)
			return b.model(body(b), out...)
		}})
	}
	// Executions stay short, a few milliseconds on a processor: what else runs there then leaves some of them alone.
	few := []int{1, 2, 6}
	chain := func(b *builder, n int, step func(x string) string) string {
		x := Input
		for range n {
			x = step(x)
		}
		return x
	}
	for _, n := range []int{1, 33} {
		add(fmt.Sprintf("null_%d", n), []int64{16}, []int64{16}, []int{1}, func(b *builder) string {
			return chain(b, n, func(x string) string { return b.add("Sigmoid", []string{x}) })
		})
	}
	add("copy", []int64{3, 224, 224}, []int64{3, 1, 1}, []int{1, 8}, func(b *builder) string {
		return b.add("Slice", []string{Input, b.shape(0, 0), b.shape(1, 1), b.shape(2, 3)})
	})
	for _, s := range [][2]int64{{64, 64}, {128, 512}, {256, 256}, {512, 2048}, {1024, 1024}} {
		width, inner := s[0], s[1]
		add(fmt.Sprintf("linear_%d_%d", width, inner), []int64{width}, []int64{width}, []int{1, 8, 32}, func(b *builder) string {
			return chain(b, 2, func(x string) string { return b.linear(b.linear(x, width, inner), inner, width) })
		})
		if width <= 512 {
			add(fmt.Sprintf("rows_%d_%d", width, inner), []int64{32, width}, []int64{32, width}, few, func(b *builder) string {
				return chain(b, 2, func(x string) string { return b.linear(b.linear(x, width, inner), inner, width) })
			})
		}
	}
	for _, s := range [][2]int64{{32, 32}, {64, 64}, {128, 32}, {128, 128}} {
		length, width := s[0], s[1]
		add(fmt.Sprintf("attention_%d_%d", length, width), []int64{4, length, width}, []int64{4, length, width}, few, func(b *builder) string {
			return chain(b, 2, func(x string) string {
				turned := b.add("Transpose", []string{x}, integers("perm", 0, 1, 3, 2))
				return b.add("MatMul", []string{b.add("Softmax", []string{b.add("MatMul", []string{x, turned})}, integer("axis", -1)), x})
			})
		})
	}
	type conv struct{ channels, side, size, group int64 }
	for _, c := range []conv{
		{16, 64, 3, 1}, {32, 32, 3, 1}, {32, 64, 3, 1}, {64, 16, 3, 1}, {64, 32, 3, 1}, {128, 8, 3, 1}, {128, 16, 3, 1}, {256, 8, 3, 1}, {32, 16, 5, 1},
		{32, 32, 1, 1}, {64, 32, 1, 1}, {128, 16, 1, 1}, {256, 16, 1, 1}, {256, 8, 1, 1}, {512, 8, 1, 1},
		{32, 32, 3, 32}, {64, 32, 3, 64}, {128, 16, 3, 128}, {256, 8, 3, 256}, {64, 32, 5, 64}, {512, 4, 3, 512},
	} {
		shape := []int64{c.channels, c.side, c.side}
		add(fmt.Sprintf("conv_%d_%d_%d_%d", c.channels, c.side, c.size, c.group), shape, shape, few, func(b *builder) string {
			// A chain is long where its convolutions are short: what a runtime does before and after it (other layouts) must not weigh.
			n := 4
			if c.size == 1 || c.group > 1 {
				n = 12
			}
			return chain(b, n, func(x string) string { return b.relu(b.conv(x, c.channels, c.channels, c.size, 1, c.group)) })
		})
	}
	for _, s := range []int64{8, 32, 64} {
		shape := []int64{32, s, s}
		add(fmt.Sprintf("sigmoid_%d", s), shape, shape, few, func(b *builder) string {
			return chain(b, 4, func(x string) string { return b.add("Sigmoid", []string{x}) })
		})
		add(fmt.Sprintf("sum_%d", s), shape, shape, few, func(b *builder) string {
			return chain(b, 4, func(x string) string { return b.add("Add", []string{x, Input}) })
		})
		add(fmt.Sprintf("pool_%d", s), shape, shape, few, func(b *builder) string {
			return chain(b, 3, func(x string) string {
				return b.add("MaxPool", []string{x}, integers("kernel_shape", 3, 3), integers("pads", 1, 1, 1, 1), integers("strides", 1, 1))
			})
		})
		add(fmt.Sprintf("concat_%d", s), shape, []int64{64, s, s}, few, func(b *builder) string {
			return b.add("Concat", []string{Input, b.add("Sigmoid", []string{Input})}, integer("axis", 1))
		})
	}
	for _, s := range [][2]int64{{32, 128}, {128, 256}, {128, 768}} {
		shape := []int64{s[0], s[1]}
		add(fmt.Sprintf("norm_%d_%d", s[0], s[1]), shape, shape, few, func(b *builder) string {
			return chain(b, 4, func(x string) string {
				return b.add("LayerNormalization", []string{x, b.weight(s[1]), b.weight(s[1])}, integer("axis", -1))
			})
		})
		add(fmt.Sprintf("softmax_%d_%d", s[0], s[1]), shape, shape, few, func(b *builder) string {
			return chain(b, 4, func(x string) string { return b.add("Softmax", []string{x}, integer("axis", -1)) })
		})
		add(fmt.Sprintf("erf_%d_%d", s[0], s[1]), shape, shape, few, func(b *builder) string {
			return chain(b, 4, func(x string) string { return b.add("Erf", []string{x}) })
		})
		add(fmt.Sprintf("transpose_%d_%d", s[0], s[1]), []int64{s[0], 4, s[1] / 4}, []int64{s[0], 4, s[1] / 4}, few, func(b *builder) string {
			return chain(b, 2, func(x string) string {
				return b.add("Transpose", []string{b.add("Transpose", []string{x}, integers("perm", 0, 2, 1, 3))}, integers("perm", 0, 2, 1, 3))
			})
		})
	}
	return all
}

// Whole are small whole models to judge a calibration by, which no fit sees: residual, depthwise-separable, inception-like, an encoder; densely connected,
// without branches, and a mixer of rows and columns, which the rules of estimated memory were not held against while they were written.
func Whole() []Model {
	batches := []int{1, 2, 4, 8, 16}
	image := []int64{3, 96, 96}
	classes := []int64{100}
	head := func(b *builder, x string, width int64) string {
		return b.linear(b.add("Flatten", []string{b.add("GlobalAveragePool", []string{x})}), width, 100)
	}
	resnet := func(b *builder) string {
		x := b.relu(b.conv(Input, 3, 48, 7, 2, 1))
		in := int64(48)
		for _, out := range []int64{48, 96, 192, 384} {
			for i := range 2 {
				stride := int64(1)
				if i == 0 && out != 48 {
					stride = 2
				}
				y := b.conv(b.relu(b.conv(x, in, out, 3, stride, 1)), out, out, 3, 1, 1)
				if stride != 1 || in != out {
					x = b.conv(x, in, out, 1, stride, 1)
				}
				x, in = b.relu(b.add("Add", []string{x, y})), out
			}
		}
		return head(b, x, in)
	}
	mobilenet := func(b *builder) string {
		x := b.relu(b.conv(Input, 3, 24, 3, 2, 1))
		in := int64(24)
		for _, s := range [][2]int64{{48, 1}, {96, 2}, {96, 1}, {192, 2}, {192, 1}, {384, 2}, {384, 1}, {384, 1}} {
			x = b.relu(b.conv(b.relu(b.conv(x, in, in, 3, s[1], in)), in, s[0], 1, 1, 1))
			in = s[0]
		}
		return head(b, x, in)
	}
	inception := func(b *builder) string {
		x := b.relu(b.conv(b.relu(b.conv(Input, 3, 32, 3, 2, 1)), 32, 64, 3, 2, 1))
		in := int64(64)
		for range 4 {
			pooled := b.add("MaxPool", []string{x}, integers("kernel_shape", 3, 3), integers("pads", 1, 1, 1, 1), integers("strides", 1, 1))
			x = b.add("Concat", []string{
				b.relu(b.conv(x, in, 48, 1, 1, 1)), b.relu(b.conv(b.relu(b.conv(x, in, 32, 1, 1, 1)), 32, 64, 3, 1, 1)),
				b.relu(b.conv(b.relu(b.conv(x, in, 16, 1, 1, 1)), 16, 32, 5, 1, 1)), b.relu(b.conv(pooled, in, 32, 1, 1, 1)),
			}, integer("axis", 1))
			in = 176
		}
		return head(b, x, in)
	}
	encoder := func(b *builder) string {
		const length, width, heads = 48, 192, 6
		x := Input
		norm := func(x string) string {
			return b.add("LayerNormalization", []string{x, b.weight(width), b.weight(width)}, integer("axis", -1))
		}
		split := func(x string, perm ...int64) string {
			return b.add("Transpose", []string{b.add("Reshape", []string{x, b.shape(0, length, heads, width/heads)})}, integers("perm", perm...))
		}
		for range 4 {
			n := norm(x)
			q, k, v := split(b.linear(n, width, width), 0, 2, 1, 3), split(b.linear(n, width, width), 0, 2, 3, 1), split(b.linear(n, width, width), 0, 2, 1, 3)
			scores := b.add("Softmax", []string{b.add("MatMul", []string{q, k})}, integer("axis", -1))
			mixed := b.add("Transpose", []string{b.add("MatMul", []string{scores, v})}, integers("perm", 0, 2, 1, 3))
			x = b.add("Add", []string{x, b.linear(b.add("Reshape", []string{mixed, b.shape(0, length, width)}), width, width)})
			x = b.add("Add", []string{x, b.linear(b.relu(b.linear(norm(x), width, 4*width)), 4*width, width)})
		}
		return x
	}
	dense := func(b *builder) string {
		x := b.relu(b.conv(Input, 3, 32, 3, 2, 1))
		in := int64(32)
		for block := range 3 {
			for range 4 {
				y := b.relu(b.conv(b.relu(b.conv(x, in, 64, 1, 1, 1)), 64, 16, 3, 1, 1))
				x = b.add("Concat", []string{x, y}, integer("axis", 1))
				in += 16
			}
			if block < 2 {
				x = b.add("AveragePool", []string{b.conv(x, in, in/2, 1, 1, 1)}, integers("kernel_shape", 2, 2), integers("strides", 2, 2))
				in /= 2
			}
		}
		return head(b, x, in)
	}
	plain := func(b *builder) string {
		x, in := Input, int64(3)
		for _, w := range []int64{64, 128, 256, 512} {
			x = b.relu(b.conv(b.relu(b.conv(x, in, w, 3, 1, 1)), w, w, 3, 1, 1))
			x = b.add("MaxPool", []string{x}, integers("kernel_shape", 2, 2), integers("strides", 2, 2))
			in = w
		}
		return head(b, x, in)
	}
	mixer := func(b *builder) string {
		const rows, width = 64, 256
		x := Input
		norm := func(x string) string {
			return b.add("LayerNormalization", []string{x, b.weight(width), b.weight(width)}, integer("axis", -1))
		}
		for range 5 {
			turned := b.add("Transpose", []string{norm(x)}, integers("perm", 0, 2, 1))
			mixed := b.linear(b.add("Sigmoid", []string{b.linear(turned, rows, 2*rows)}), 2*rows, rows)
			x = b.add("Add", []string{x, b.add("Transpose", []string{mixed}, integers("perm", 0, 2, 1))})
			x = b.add("Add", []string{x, b.linear(b.add("Tanh", []string{b.linear(norm(x), width, 3*width)}), 3*width, width)})
		}
		return x
	}
	model := func(name string, in, out []int64, body func(b *builder) string) Model {
		return Model{Name: name, Inputs: in, Outputs: out, Batches: batches, Build: func() ([]byte, error) {
			b := newBuilder(name, in...)
			return b.model(body(b), out...)
		}}
	}
	return []Model{
		model("residual", image, classes, resnet), model("depthwise", image, classes, mobilenet), model("inception", image, classes, inception),
		model("encoder", []int64{48, 192}, []int64{48, 192}, encoder), model("dense", image, classes, dense), model("plain", image, classes, plain),
		model("mixer", []int64{64, 256}, []int64{64, 256}, mixer),
	}
}
