// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package lower

import (
	"slices"

	"github.com/conch-serving/conch/internal/onnx/shape"
)

// Runtime is what executes a graph.
type Runtime struct {
	Name string
	// Epilogue says that activations and additions after a product or convolution run inside its kernel.
	Epilogue bool
	// Pointwise says that neighbouring element-wise operators become one kernel.
	Pointwise bool
	// Separate says that layers are executed as they are written: a batch normalisation is a kernel of its own, and so are sigmoid and product of a gate.
	Separate bool `json:",omitempty"`
	// Modules says that what executes is the module that a file was exported from, as PyTorch does without a compiler (eager.go).
	Modules bool `json:",omitempty"`
	// Transformer says that the kernels of a transformer's blocks are put together on GPUs: attention, additions before a normalisation, and casts
	// around either.
	Transformer bool `json:",omitempty"`
	// Arena says that values lie in an arena that grows by extents of doubling size.
	Arena bool
	// Launch is the host's time per kernel in seconds, Fixed that per batch.
	Launch, Fixed float64
}

// ONNXRuntime is Triton's usual backend for ONNX. Its Launch and Fixed are priors: a bundle of calibration replaces them.
func ONNXRuntime() Runtime {
	return Runtime{Name: "onnxruntime", Epilogue: true, Transformer: true, Arena: true, Launch: 4.5e-6, Fixed: 60e-6}
}

// Eager is PyTorch without a compiler.
func Eager() Runtime { return Runtime{Name: "eager", Modules: true, Launch: 9e-6, Fixed: 40e-6} }

// TensorFlow is a SavedModel as TensorFlow 2 executes it, without XLA: weights are variables, so that nothing is folded into them.
func TensorFlow() Runtime {
	return Runtime{Name: "tensorflow", Separate: true, Launch: 15e-6, Fixed: 100e-6}
}

// TensorRT is an engine of TensorRT, or ONNX Runtime with its provider.
func TensorRT() Runtime {
	return Runtime{Name: "tensorrt", Epilogue: true, Pointwise: true, Transformer: true, Launch: 2.2e-6, Fixed: 30e-6}
}

// OnProcessor is the runtime as it executes on a processor, whose kernels of attention are not put together.
func (r Runtime) OnProcessor() Runtime {
	r.Transformer = false
	return r
}

// Named finds a runtime by name.
func Named(name string) (Runtime, bool) {
	for _, r := range []Runtime{ONNXRuntime(), Eager(), TensorFlow(), TensorRT()} {
		if r.Name == name {
			return r, true
		}
	}
	return Runtime{}, false
}

// fusion says for every step which step's kernel it runs in: itself where it has its own, -1 where it has none.
type fusion struct {
	steps []shape.Step
	work  []shape.Work
	into  []int
	// user is the only step that reads a value, -1 where there are several or none; maker is the step that makes it.
	user, maker []int
	// readers are the steps that read a value: those of value v lie between first[v] and first[v+1]. A result of the model has one that is no step, -1.
	readers []int
	first   []int
	// names are the operators that steps were put together to.
	names map[int]string
}

func fuse(r *shape.Result, rt Runtime) *fusion {
	f := &fusion{
		steps: r.Steps, work: make([]shape.Work, len(r.Steps)), into: make([]int, len(r.Steps)), user: make([]int, r.Values), maker: make([]int, r.Values),
		names: map[int]string{},
	}
	for v := range f.user {
		f.user[v], f.maker[v] = -1, -1
	}
	f.index(r)
	several := make([]bool, r.Values)
	for i := range f.steps {
		f.work[i] = f.steps[i].Work()
		f.into[i] = i
		if f.work[i].Class == shape.Free {
			f.into[i] = -1
		}
		for _, v := range f.steps[i].In {
			if v < 0 {
				continue
			}
			if f.user[v] >= 0 && f.user[v] != i {
				several[v] = true
			}
			f.user[v] = i
		}
		for _, v := range f.steps[i].Out {
			if v >= 0 {
				f.maker[v] = i
			}
		}
	}
	for _, v := range r.Outputs {
		if v >= 0 {
			several[v] = true
		}
	}
	for v, many := range several {
		if many {
			f.user[v] = -1
		}
	}
	for i := range f.steps {
		f.norm(i)
		f.gelu(i)
	}
	if rt.Transformer {
		f.transformer()
	}
	for i := range f.steps {
		if rt.Separate {
			continue
		}
		f.gate(i)
		if f.steps[i].Node.Op == "BatchNormalization" && !rt.Modules {
			f.fold(i)
		}
		if rt.Modules {
			f.view(i)
		}
	}
	for i := range f.steps {
		if rt.Epilogue {
			f.epilogue(i, rt)
		}
		f.bias(i)
		if rt.Pointwise {
			f.chain(i)
		}
	}
	return f
}

// index notes which nodes read which values.
func (f *fusion) index(r *shape.Result) {
	f.first = make([]int, r.Values+1)
	each := func(yield func(v, reader int)) {
		for i := range f.steps {
			for _, v := range f.steps[i].In {
				if v >= 0 {
					yield(v, i)
				}
			}
		}
		for _, v := range r.Outputs {
			if v >= 0 {
				yield(v, -1)
			}
		}
	}
	each(func(v, _ int) { f.first[v+1]++ })
	for v := range r.Values {
		f.first[v+1] += f.first[v]
	}
	f.readers = make([]int, f.first[r.Values])
	at := slices.Clone(f.first)
	each(func(v, reader int) {
		f.readers[at[v]] = reader
		at[v]++
	})
}

// of are the readers of a value.
func (f *fusion) of(v int) []int {
	if v < 0 {
		return nil
	}
	return f.readers[f.first[v]:f.first[v+1]]
}

// Fused says for every step of an inferred graph in which step's kernel it runs on a processor: itself where it has its own, -1 where it has none.
func Fused(r *shape.Result, rt Runtime) []int { return fuse(r, rt.OnProcessor()).into }

// own says that a step still has a kernel of its own.
func (f *fusion) own(i int) bool { return i >= 0 && f.into[i] == i }

// next is the only user of the step's first output, -1 otherwise; renaming operators on the way are passed.
func (f *fusion) next(i int) int {
	for range 4 {
		if i < 0 || len(f.steps[i].Out) == 0 || f.steps[i].Out[0] < 0 {
			return -1
		}
		i = f.user[f.steps[i].Out[0]]
		if i < 0 || f.work[i].Class != shape.Free {
			return i
		}
	}
	return -1
}

// source is the step that makes input k of step i, -1 if none does.
func (f *fusion) source(i, k int) int {
	if k >= len(f.steps[i].In) || f.steps[i].In[k] < 0 {
		return -1
	}
	return f.maker[f.steps[i].In[k]]
}

// constant says that input k of step i is a parameter.
func (f *fusion) constant(i, k int) bool {
	return k < len(f.steps[i].Inputs) && f.steps[i].Inputs[k] != nil && f.steps[i].Inputs[k].Weight
}

func (f *fusion) op(i int) string {
	if i < 0 {
		return ""
	}
	return f.steps[i].Node.Op
}

func last1(dims []int64) int64 {
	if len(dims) == 0 {
		return 1
	}
	return dims[len(dims)-1]
}

// fold takes a batch normalisation into the convolution or product before it: its factors become weights.
func (f *fusion) fold(i int) {
	if s := f.source(i, 0); s >= 0 && (f.work[s].Class == shape.Convolution || f.work[s].Class == shape.Product) && f.next(s) == i {
		f.into[i] = f.root(s)
	}
}

func (f *fusion) root(i int) int {
	for i >= 0 && f.into[i] >= 0 && f.into[i] != i {
		i = f.into[i]
	}
	return i
}

// epilogue takes element-wise steps that follow a convolution or product into its kernel; another operand is read in passing.
func (f *fusion) epilogue(i int, rt Runtime) {
	if !f.own(i) || f.work[i].Class != shape.Convolution && f.work[i].Class != shape.Product {
		return
	}
	last, added := i, false
	for at := f.next(i); at >= 0; at = f.next(at) {
		if f.into[at] == i {
			last = at
			continue
		}
		w := &f.work[at]
		simple := f.op(at) == "Relu" || f.op(at) == "Clip" || f.op(at) == "LeakyRelu" || f.op(at) == "Sigmoid" || f.op(at) == "Tanh" || f.op(at) == "HardSwish"
		plain := f.op(at) == "Add" && !added
		if !f.own(at) || w.Class != shape.Pointwise || !simple && !plain || f.steps[at].Outputs[0].Elements() != f.steps[last].Outputs[0].Elements() {
			break
		}
		if plain {
			bias := f.constant(at, 0) || f.constant(at, 1)
			if !bias && rt.Transformer && f.work[i].Class == shape.Product {
				break // a product adds a bias, and nothing else, in passing
			}
			added = true
			f.work[i].Read += max(0, w.Read-f.steps[last].Outputs[0].Bytes())
		}
		f.into[at], last = i, at
		if simple {
			break
		}
	}
}

// bias takes an addition of a parameter into the product before it: every runtime's products add one.
func (f *fusion) bias(i int) {
	if f.op(i) != "Add" || !f.own(i) || !f.constant(i, 0) && !f.constant(i, 1) {
		return
	}
	for k := range 2 {
		if s := f.source(i, k); s >= 0 && f.own(s) && f.work[s].Class == shape.Product && f.next(s) == i {
			f.into[i] = s
			return
		}
	}
}

// chain takes an element-wise step into the element-wise or normalising step before it.
func (f *fusion) chain(i int) {
	if !f.own(i) || f.work[i].Class != shape.Pointwise {
		return
	}
	for k := range f.steps[i].In {
		s := f.root(f.source(i, k))
		if s < 0 || s == i || f.next(f.source(i, k)) != i {
			continue
		}
		if c := f.work[s].Class; c != shape.Pointwise && c != shape.Normalization {
			continue
		}
		f.work[s].FLOPs += f.work[i].FLOPs
		f.work[s].Read += max(0, f.work[i].Read-f.steps[i].Inputs[k].Bytes())
		f.into[i] = s
		return
	}
}
