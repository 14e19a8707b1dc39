// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package lower

import (
	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/onnx/shape"
)

// Launch is a kernel with where it comes from.
type Launch struct {
	kernel.Kernel
	// Node and Op are the operator's.
	Node, Op string
	// Repeat is how often it runs in turn.
	Repeat float64
	// Ready is the place in the sequence of the last kernel that it waits for, -1 if it needs only the model's inputs.
	Ready int
	// Guessed says that the operator is not known.
	Guessed bool
	// Within says that the operator before launches it, too: the host's time per kernel is that of an operator, and counted there.
	Within bool
}

// Options of lowering.
type Options struct {
	Runtime Runtime
	// Float is the arithmetic of FP32 tensors: FP32, or TF32 where the runtime is allowed tensor cores.
	Float kernel.Precision
}

// Lower gives the kernels of an inferred graph in the order in which they are launched.
func Lower(r *shape.Result, o Options) []Launch {
	f := fuse(r, o.Runtime)
	out := make([]Launch, 0, len(f.steps))
	ready := make([]int, r.Values) // per value the launch that makes it, plus one
	for i := range f.steps {
		s := &f.steps[i]
		last := 0
		for _, v := range s.In {
			if v >= 0 {
				last = max(last, ready[v])
			}
		}
		if f.own(i) {
			op := s.Node.Op
			if name := f.names[i]; name != "" {
				op = name
			}
			for _, k := range sequence(s, op, &f.work[i], o) {
				out = append(out, Launch{Kernel: k, Node: s.Node.Name, Op: op, Repeat: s.Repeat * f.work[i].Serial, Ready: last - 1, Guessed: f.work[i].Class == shape.Opaque})
				last = len(out)
			}
			if o.Runtime.Modules {
				if l, ok := f.besides(i, o); ok {
					l.Ready = last - 1
					out = append(out, l)
					last = len(out)
				}
			}
		}
		for _, v := range s.Out {
			if v >= 0 {
				ready[v] = last
			}
		}
	}
	return out
}

// precision is the arithmetic of an element type.
func precision(t onnx.DataType, float kernel.Precision) kernel.Precision {
	switch t {
	case onnx.Float16, onnx.BFloat16:
		return kernel.FP16
	case onnx.Int8, onnx.Uint8:
		return kernel.INT8
	}
	return float
}

// sequence is the kernels that a step launches which is, alone or put together with others, the operator op.
func sequence(s *shape.Step, op string, w *shape.Work, o Options) []kernel.Kernel {
	elements := 0.0
	if len(s.Outputs) > 0 && s.Outputs[0] != nil {
		elements = s.Outputs[0].Elements()
	}
	k := kernel.Kernel{Batch: 1, M: elements, N: 1, FLOPs: w.FLOPs, Read: w.Read, Write: w.Write, Weights: w.Weights}
	switch w.Class {
	case shape.Free:
		return nil
	case shape.Product, shape.Recurrent:
		k.Family, k.Precision = kernel.Product, precision(w.Element, o.Float)
		k.Batch, k.M, k.N, k.Depth, k.Shared = w.Batch, w.M, w.N, w.Depth, w.Shared
		if w.Class == shape.Product {
			return []kernel.Kernel{k}
		}
		// One product and one element-wise kernel per step of the sequence: the caller repeats both.
		k.FLOPs, k.Read, k.Write = k.FLOPs/w.Serial, w.Weights+(w.Read-w.Weights)/w.Serial, w.Write/w.Serial
		return []kernel.Kernel{k, {Family: kernel.Power, Batch: 1, M: w.Batch * w.M * w.N, N: 1, FLOPs: 10 * w.M * w.N, Read: 4 * w.M * w.N, Write: w.M * w.N}}
	case shape.Convolution:
		k.Precision = precision(w.Element, o.Float)
		k.Batch, k.M, k.N, k.Depth, k.Shared, k.Family = w.Batch, w.M, w.N, w.Depth, w.Shared, kernel.Convolution
		k.Winograd = w.Winograd
		if w.Batch > 1 && w.N < 8 {
			k.Family = kernel.Direct
			k.Window = w.Window
		} else if w.Window > 1 {
			k.Window = w.Window
		}
		return []kernel.Kernel{k}
	case shape.Pointwise:
		k.Family = kernel.Unary
		if w.Operands > 1 {
			k.Family = kernel.Binary
		}
		if op == "Pow" || op == "Erf" {
			k.Family = kernel.Power
		}
		k.M, k.N = rows(s)
		if s.Node.Op == "HardSwish" && o.Runtime.Separate { // plus 3, up to 6, divided by 6, times x
			k.FLOPs /= 4
			return []kernel.Kernel{k, k, k, k}
		}
	case shape.Softmax, shape.Normalization:
		k.Family = kernel.Softmax
		if w.Class == shape.Normalization {
			k.Family = kernel.Norm
		}
		k.M, k.N = w.Rows, w.Width
	case shape.Attention:
		return attention(s, w, precision(w.Element, o.Float))
	default:
		k.Family = kernel.Move
		if w.Rows > 0 {
			k.M = w.Rows
		}
		if w.Class == shape.Reduction && len(s.Inputs) > 0 && s.Inputs[0] != nil {
			k.Sources = s.Inputs[0].Elements()
		}
		if s.Node.Op == "NonMaxSuppression" || s.Node.Op == "NonZero" || s.Node.Op == "TopK" { // sort, scan, write
			return []kernel.Kernel{k, k, k}
		}
	}
	return []kernel.Kernel{k}
}

// attention is the kernels of a whole one: the product that projects where the operator has its weights, an arrangement by heads, scores, softmax, the
// product with the values, and the arrangement back.
func attention(s *shape.Step, w *shape.Work, p kernel.Precision) []kernel.Kernel {
	size := 4.0
	if len(s.Outputs) > 0 && s.Outputs[0] != nil {
		size = s.Outputs[0].ElementBytes()
	}
	move := func(elements float64) kernel.Kernel {
		return kernel.Kernel{Family: kernel.Move, Batch: 1, M: elements, N: 1, Read: size * elements, Write: size * elements}
	}
	scores, mixed := kernel.MatMul(w.Batch, w.M, w.N, w.Depth, size, false), kernel.MatMul(w.Batch, w.M, w.Depth, w.N, size, false)
	soft := kernel.Rows(kernel.Softmax, w.Batch*w.M, w.N, 1, size)
	soft.FLOPs *= 2
	scores.Precision, mixed.Precision = p, p
	out := []kernel.Kernel{move(w.Batch * w.Depth * (w.M + 2*w.N)), scores, soft, mixed, move(w.Batch * w.M * w.Depth)}
	if w.From > 0 && len(s.Inputs) > 0 && s.Inputs[0] != nil {
		project := kernel.MatMul(1, s.Inputs[0].Elements()/w.From, w.To, w.From, size, true)
		project.Precision, project.Weights = p, w.Weights
		out = append([]kernel.Kernel{project}, out...)
	}
	return out
}

// rows reads an element-wise operator as rows of its last dimension.
func rows(s *shape.Step) (m, n float64) {
	t := s.Outputs[0]
	if t == nil {
		return 1, 1
	}
	n = max(1, float64(last1(t.Dims)))
	return max(1, t.Elements()/n), n
}
