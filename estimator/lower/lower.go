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
			for _, k := range sequence(s, &f.work[i], o) {
				out = append(out, Launch{Kernel: k, Node: s.Node.Name, Op: s.Node.Op, Repeat: s.Repeat * f.work[i].Serial, Ready: last - 1, Guessed: f.work[i].Class == shape.Opaque})
				last = len(out)
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

// sequence is the kernels that one operator launches.
func sequence(s *shape.Step, w *shape.Work, o Options) []kernel.Kernel {
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
		if s.Node.Op == "Pow" || s.Node.Op == "Erf" {
			k.Family = kernel.Power
		}
		k.M, k.N = rows(s)
	case shape.Softmax, shape.Normalization:
		k.Family = kernel.Softmax
		if w.Class == shape.Normalization {
			k.Family = kernel.Norm
		}
		k.M, k.N = w.Rows, w.Width
	case shape.Attention:
		k.Family, k.Precision = kernel.Product, precision(w.Element, o.Float)
		k.Batch, k.M, k.N, k.Depth = w.Batch, w.M, w.N, w.Depth
		scores := kernel.Rows(kernel.Softmax, w.Batch*w.M, w.N, 1, 4)
		one := kernel.MatMul(w.Batch, w.M, w.N, w.Depth, 4, false)
		two := kernel.MatMul(w.Batch, w.M, w.Depth, w.N, 4, false)
		one.Precision, two.Precision = k.Precision, k.Precision
		out := []kernel.Kernel{one, scores, two}
		if rest := w.FLOPs - one.FLOPs - two.FLOPs; rest > 0 && len(s.Inputs) > 1 && s.Inputs[1] != nil && len(s.Inputs[1].Dims) == 2 {
			d := s.Inputs[1].Dims
			project := kernel.MatMul(1, rest/(2*float64(d[0])*float64(d[1])), float64(d[1]), float64(d[0]), 4, true)
			project.Precision, project.Weights = k.Precision, w.Weights
			out = append([]kernel.Kernel{project}, out...)
		}
		return out
	default:
		k.Family = kernel.Move
		if s.Node.Op == "NonMaxSuppression" || s.Node.Op == "NonZero" || s.Node.Op == "TopK" { // sort, scan, write
			return []kernel.Kernel{k, k, k}
		}
	}
	return []kernel.Kernel{k}
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
