// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package lower

import (
	"github.com/conch-serving/conch/internal/onnx/shape"
)

// Runtime is what executes a graph.
type Runtime struct {
	Name string
	// Epilogue says that activations and additions after a product or convolution run inside its kernel.
	Epilogue bool
	// Pointwise says that neighbouring element-wise operators become one kernel.
	Pointwise bool
	// Arena says that values lie in an arena that grows by extents of doubling size.
	Arena bool
	// Launch is the host's time per kernel in seconds, Fixed that per batch.
	Launch, Fixed float64
}

// ONNXRuntime is Triton's usual backend for ONNX. Its Launch and Fixed are priors: a bundle of calibration replaces them.
func ONNXRuntime() Runtime {
	return Runtime{Name: "onnxruntime", Epilogue: true, Arena: true, Launch: 4.5e-6, Fixed: 60e-6}
}

// Eager is PyTorch without a compiler.
func Eager() Runtime { return Runtime{Name: "eager", Launch: 9e-6, Fixed: 40e-6} }

// TensorRT is an engine of TensorRT, or ONNX Runtime with its provider.
func TensorRT() Runtime {
	return Runtime{Name: "tensorrt", Epilogue: true, Pointwise: true, Launch: 2.2e-6, Fixed: 30e-6}
}

// Named finds a runtime by name.
func Named(name string) (Runtime, bool) {
	for _, r := range []Runtime{ONNXRuntime(), Eager(), TensorRT()} {
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
}

func fuse(r *shape.Result, rt Runtime) *fusion {
	f := &fusion{steps: r.Steps, work: make([]shape.Work, len(r.Steps)), into: make([]int, len(r.Steps)), user: make([]int, r.Values), maker: make([]int, r.Values)}
	for v := range f.user {
		f.user[v], f.maker[v] = -1, -1
	}
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
	for i := range f.steps {
		f.gate(i)
		if f.steps[i].Node.Op == "BatchNormalization" {
			f.fold(i)
		}
	}
	for i := range f.steps {
		if rt.Epilogue {
			f.epilogue(i)
		}
		f.bias(i)
		if rt.Pointwise {
			f.chain(i)
		}
	}
	return f
}

// Fused says for every step of an inferred graph in which step's kernel it runs: itself where it has its own, -1 where it has none.
func Fused(r *shape.Result, rt Runtime) []int { return fuse(r, rt).into }

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

// norm finds a layer normalisation written out: ReduceMean, Sub, Pow or Mul, ReduceMean, Add, Sqrt, Div and what scales it. Its kernel is the first step's.
func (f *fusion) norm(i int) {
	if f.op(i) != "ReduceMean" || !f.own(i) || len(f.steps[i].Out) == 0 || f.steps[i].Out[0] < 0 {
		return
	}
	sub := f.user[f.steps[i].Out[0]]
	if f.op(sub) != "Sub" {
		return
	}
	// The difference goes both ways: to its square and to the quotient.
	members := []int{sub}
	div := -1
	for j := sub + 1; j < len(f.steps) && j < sub+12; j++ {
		reads := false
		for _, v := range f.steps[j].In {
			if v < 0 {
				continue
			}
			for _, m := range members {
				for _, o := range f.steps[m].Out {
					reads = reads || o == v
				}
			}
		}
		if !reads {
			continue
		}
		switch f.op(j) {
		case "Pow", "Mul", "ReduceMean", "Add", "Sqrt", "Cast", "Reciprocal":
			members = append(members, j)
		case "Div":
			members, div = append(members, j), j
		default:
			return
		}
		if div >= 0 {
			break
		}
	}
	if div < 0 {
		return
	}
	last := div
	for range 2 {
		n := f.next(last)
		if n < 0 || f.op(n) != "Mul" && f.op(n) != "Add" || !f.constant(n, 0) && !f.constant(n, 1) {
			break
		}
		members, last = append(members, n), n
	}
	for _, m := range members {
		f.into[m] = i
	}
	x := f.steps[i].Inputs[0]
	w := &f.work[i]
	w.Class = shape.Normalization
	w.Width = max(1, float64(last1(x.Dims)))
	w.Rows = x.Elements() / w.Width
	w.Read, w.Write, w.FLOPs = x.Bytes(), x.Bytes(), 8*x.Elements()
}

func last1(dims []int64) int64 {
	if len(dims) == 0 {
		return 1
	}
	return dims[len(dims)-1]
}

// gelu finds x * (1 + erf(x / sqrt 2)) / 2 around an Erf.
func (f *fusion) gelu(i int) {
	if f.op(i) != "Erf" || !f.own(i) {
		return
	}
	add := f.next(i)
	if f.op(add) != "Add" {
		return
	}
	if before := f.source(i, 0); before >= 0 && f.own(before) && (f.op(before) == "Div" || f.op(before) == "Mul") && f.next(before) == i {
		f.into[before] = i
	}
	f.into[add] = i
	for at := f.next(add); at >= 0 && f.op(at) == "Mul" && f.own(at); at = f.next(at) {
		for k := range f.steps[at].In { // the half that is multiplied elsewhere
			if s := f.source(at, k); s >= 0 && s != i && f.own(s) && f.op(s) == "Mul" && f.next(s) == at && (f.constant(s, 0) || f.constant(s, 1)) {
				f.into[s] = i
			}
		}
		f.into[at] = i
		if n := f.next(at); n < 0 || !f.constant(n, 0) && !f.constant(n, 1) || f.op(n) != "Mul" {
			break
		}
	}
	f.work[i].FLOPs = 20 * f.steps[i].Outputs[0].Elements()
}

// gate finds x * sigmoid(x) and x * hardsigmoid(x).
func (f *fusion) gate(i int) {
	if op := f.op(i); op != "Sigmoid" && op != "HardSigmoid" || !f.own(i) {
		return
	}
	if n := f.next(i); f.op(n) == "Mul" && f.own(n) && len(f.steps[n].In) == 2 {
		x := f.steps[i].In[0]
		if f.steps[n].In[0] == x || f.steps[n].In[1] == x {
			f.into[n] = i
		}
	}
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
func (f *fusion) epilogue(i int) {
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
