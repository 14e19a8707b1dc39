// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"cmp"
	"slices"

	"github.com/conch-serving/conch/estimator/arena"
	"github.com/conch-serving/conch/estimator/lower"
	"github.com/conch-serving/conch/internal/onnx/shape"
)

// block is how many channels ONNX Runtime's processor kernels interleave (its NCHWc layout, on processors with AVX-512): values and weights of convolutions
// are padded to whole blocks.
const block = 16

// overwriting are the operators whose processor kernels write over their input if no other node reads it.
var overwriting = map[string]bool{
	"Relu": true, "Sigmoid": true, "Tanh": true, "LeakyRelu": true, "Elu": true, "HardSigmoid": true, "Softplus": true, "Softsign": true, "ThresholdedRelu": true,
	"Clip": true, "Softmax": true, "LogSoftmax": true,
}

// unit is what a runtime executes at once: an operator with what it fuses into it.
type unit struct {
	// root is the step that gives the unit its kernel, last the one that gives its place.
	root, last int
	in, out    []int
	// blocked says that its result is interleaved; direct that it reads plain values nevertheless.
	blocked, direct bool
}

// planner plays ONNX Runtime's planner of memory: an order of execution, and for every value the buffer that it lies in.
type planner struct {
	r         *shape.Result
	processor bool
	work      []shape.Work
	units     []unit
	maker     []int // per value its unit, -1 for inputs and parameters
	name      []int // per value the value that it renames, itself otherwise
	tensor    []*shape.Tensor
	result    []bool
	sequence  []int // of units
}

func newPlanner(r *shape.Result, rt lower.Runtime, processor bool) *planner {
	p := &planner{
		r: r, processor: processor, work: make([]shape.Work, len(r.Steps)), maker: make([]int, r.Values), name: make([]int, r.Values),
		tensor: make([]*shape.Tensor, r.Values), result: make([]bool, r.Values),
	}
	for v := range p.name {
		p.name[v], p.maker[v] = v, -1
	}
	p.group(lower.Fused(r, rt))
	p.sequence = p.order()
	if processor {
		p.interleave(p.sequence)
	}
	return p
}

// next takes the shapes of another batch of the same graph; it says whether its steps are the same, too.
func (p *planner) next(r *shape.Result) bool {
	if len(r.Steps) != len(p.r.Steps) || r.Values != p.r.Values {
		return false
	}
	p.r = r
	clear(p.tensor)
	p.tensors()
	return true
}

// tensors notes the shape of every value.
func (p *planner) tensors() {
	for i := range p.r.Steps {
		s := &p.r.Steps[i]
		for k, v := range s.Out {
			if v >= 0 {
				p.tensor[v] = s.Outputs[k]
			}
		}
		for k, v := range s.In {
			if v >= 0 && p.tensor[v] == nil {
				p.tensor[v] = s.Inputs[k]
			}
		}
	}
}

// group makes units of steps.
func (p *planner) group(into []int) {
	p.tensors()
	place := make([]int, len(into)) // per step its unit plus one
	for i := range p.r.Steps {
		s := &p.r.Steps[i]
		p.work[i] = s.Work()
		if p.work[i].Class == shape.Free {
			if len(s.In) > 0 && s.In[0] >= 0 && len(s.Out) > 0 && s.Out[0] >= 0 && s.Outputs[0] != nil && !s.Outputs[0].Weight {
				p.name[s.Out[0]] = p.name[s.In[0]]
			}
			continue
		}
		root := into[i]
		if root < 0 {
			root = i
		}
		// Products of more than two dimensions take nothing along.
		if p.processor && root != i && p.work[root].Class == shape.Product && p.work[i].Class == shape.Pointwise && len(p.dims(root)) > 2 {
			root = i
		}
		if place[root] == 0 {
			p.units = append(p.units, unit{root: root, last: root})
			place[root] = len(p.units)
		}
		place[i] = place[root]
		u := &p.units[place[i]-1]
		u.last = max(u.last, i)
		for _, v := range s.Out {
			if v >= 0 {
				p.maker[v] = place[i] - 1
			}
		}
	}
	leaves := make([]bool, p.r.Values)
	for i := range p.r.Steps {
		if place[i] == 0 {
			continue
		}
		u := &p.units[place[i]-1]
		for k, v := range p.r.Steps[i].In {
			if v < 0 || p.r.Steps[i].Inputs[k] == nil || p.r.Steps[i].Inputs[k].Weight {
				continue
			}
			if v = p.name[v]; p.maker[v] != place[i]-1 {
				u.in = append(u.in, v)
				leaves[v] = true
			}
		}
	}
	for _, v := range p.r.Outputs {
		if v >= 0 {
			p.result[p.name[v]], leaves[p.name[v]] = true, true
		}
	}
	for v, m := range p.maker {
		if m >= 0 && leaves[v] && p.tensor[v] != nil && !p.tensor[v].Weight {
			p.units[m].out = append(p.units[m].out, v)
		}
	}
}

func (p *planner) dims(step int) []int64 {
	if s := &p.r.Steps[step]; len(s.Outputs) > 0 && s.Outputs[0] != nil {
		return s.Outputs[0].Dims
	}
	return nil
}

// order is that of ONNX Runtime: backwards from the results, of what a unit reads the last in the file first.
func (p *planner) order() []int {
	const fresh, open, done = 0, 1, 2
	state := make([]byte, len(p.units))
	byPlace := func(a, b int) int { return cmp.Compare(p.units[a].last, p.units[b].last) }
	var stack, all []int
	for v, is := range p.result {
		if m := p.maker[v]; is && m >= 0 {
			stack = append(stack, m)
		}
	}
	slices.SortFunc(stack, byPlace)
	for len(stack) > 0 {
		u := stack[len(stack)-1]
		switch state[u] {
		case fresh:
			state[u] = open
			from := len(stack)
			for _, v := range p.units[u].in {
				if m := p.maker[v]; m >= 0 && state[m] == fresh {
					stack = append(stack, m)
				}
			}
			slices.SortFunc(stack[from:], byPlace)
		case open:
			state[u] = done
			all = append(all, u)
			stack = stack[:len(stack)-1]
		default:
			stack = stack[:len(stack)-1]
		}
	}
	return all
}

// interleave decides which units work on interleaved values.
func (p *planner) interleave(order []int) {
	for _, at := range order {
		u := &p.units[at]
		s := &p.r.Steps[u.root]
		if len(p.dims(u.root)) != 4 || len(u.in) == 0 {
			continue
		}
		channels, known := int64(0), p.tensor[u.in[0]]
		if known != nil && len(known.Dims) == 4 {
			channels = known.Dims[1]
		}
		all := func() bool {
			return !slices.ContainsFunc(u.in, func(v int) bool {
				m := p.maker[v]
				return m < 0 || !p.units[m].blocked || !slices.Equal(p.tensor[v].Dims, p.dims(u.root))
			})
		}
		switch op := s.Node.Op; {
		case op == "Conv" || op == "FusedConv":
			group, out := max(1, s.Node.Int("group", 1)), p.dims(u.root)[1]
			switch {
			case group == 1 && channels < block:
				u.blocked, u.direct = true, true
			case group == 1, group == channels && out == channels:
				u.blocked = channels%block == 0 || p.of(u.in[0])
			default:
				u.blocked = channels/group%block == 0 && out/group%block == 0
			}
		case op == "MaxPool" || op == "AveragePool" || op == "GlobalAveragePool" || op == "GlobalMaxPool":
			u.blocked = channels%block == 0
		case op == "Concat":
			u.blocked = s.Node.Int("axis", 0) == 1 && !slices.ContainsFunc(u.in, func(v int) bool { return !p.of(v) || p.tensor[v].Dims[1]%block != 0 })
		case p.work[u.root].Class == shape.Pointwise:
			u.blocked = all()
		}
	}
}

// of says that a value is interleaved.
func (p *planner) of(v int) bool { m := p.maker[v]; return m >= 0 && p.units[m].blocked }

// bytes of a value in memory.
func (p *planner) bytes(v int, interleaved bool) int64 {
	t := p.tensor[v]
	if t == nil {
		return 1
	}
	bytes := t.Bytes()
	if interleaved && len(t.Dims) == 4 && t.Dims[1]%block != 0 {
		bytes = bytes / float64(t.Dims[1]) * float64((t.Dims[1]+block-1)/block*block)
	}
	return int64(min(max(bytes, 1), 1<<45))
}

// buffer is a piece of memory with the values that lie in it one after the other.
type buffer struct {
	bytes  int64
	uses   int // by units that have not run
	last   int // place in the order of the last unit that needs it
	result bool
	tensor *shape.Tensor // nil where ONNX Runtime does not know the shape before it executes
}

// events are the values that an execution takes and gives back. Buffers is how many numbers they have.
func (p *planner) events() (events []arena.Event, buffers int) {
	order := p.sequence
	// A value that is needed plain and interleaved exists twice: the second has the number values + v.
	values := p.r.Values
	uses := make([]int, 2*values)
	form := func(u *unit, v int) int {
		m := p.maker[v]
		blocked := m >= 0 && p.units[m].blocked
		if p.processor && blocked != u.blocked && (blocked || !u.direct) {
			return values + v
		}
		return v
	}
	for _, at := range order {
		u := &p.units[at]
		for _, v := range u.in {
			uses[form(u, v)]++
		}
	}
	for v, is := range p.result {
		if is && p.of(v) {
			uses[values+v]++
		} else if is {
			uses[v]++
		}
	}
	for v := range values {
		if uses[values+v] > 0 {
			uses[v]++ // the node that rearranges it reads it
		}
	}
	var all []buffer
	in := make([]int, 2*values) // the buffer of a value plus one
	takes := make([][]int, len(order))
	var dead []int
	need := func(at, v int, interleaved, result bool, over int) {
		t := p.tensor[v%values]
		b := over
		if b < 0 && t != nil && !result {
			if i := slices.IndexFunc(dead, func(d int) bool { return same(all[d].tensor, t) }); i >= 0 {
				b = dead[i]
				dead = slices.Delete(dead, i, i+1)
			}
		}
		if b < 0 {
			b = len(all)
			all = append(all, buffer{bytes: p.bytes(v%values, interleaved), result: result, tensor: t})
			takes[at] = append(takes[at], b)
		}
		all[b].uses += uses[v]
		all[b].last = at
		in[v] = b + 1
	}
	release := func(at, v int) {
		if in[v] == 0 {
			return // an input of the model, which lies elsewhere
		}
		b := in[v] - 1
		all[b].last = at
		if all[b].uses--; all[b].uses == 0 && !all[b].result {
			dead = slices.Insert(dead, 0, b)
		}
	}
	for at, number := range order {
		u := &p.units[number]
		for _, v := range u.in {
			if f := form(u, v); f != v && in[f] == 0 {
				need(at, f, u.blocked, false, -1)
				release(at, v)
			}
		}
		for k, v := range u.out {
			plain := p.result[v] && !u.blocked
			over := -1
			if k == 0 && !plain {
				over = p.over(u, v, in, all)
			}
			need(at, v, u.blocked, plain, over)
			if p.result[v] && u.blocked {
				need(at, values+v, false, true, -1)
			}
		}
		for _, v := range u.in {
			release(at, form(u, v))
		}
		for _, v := range u.out {
			if p.result[v] && u.blocked {
				release(at, v)
			}
		}
	}
	ends := make([][]int, len(order))
	for b := range all {
		if !all[b].result {
			ends[all[b].last] = append(ends[all[b].last], b)
		}
	}
	for at := range order {
		for _, b := range takes[at] {
			events = append(events, arena.Event{Value: b, Bytes: all[b].bytes, Result: all[b].result})
		}
		for _, b := range ends[at] {
			events = append(events, arena.Event{Value: b})
		}
	}
	return events, len(all)
}

// over is the buffer that the unit's result takes over from what it reads, -1 if it needs its own.
func (p *planner) over(u *unit, out int, in []int, all []buffer) int {
	if u.blocked && p.work[u.root].Class == shape.Convolution && len(u.in) == 2 {
		// What is added to a convolution's result is where the sum comes to lie.
		if b := in[u.in[1]] - 1; b >= 0 && all[b].uses == 1 && !all[b].result && same(all[b].tensor, p.tensor[out]) {
			return b
		}
		return -1
	}
	if u.blocked || u.root != u.last && p.work[u.root].Class != shape.Pointwise || p.processor && !overwriting[p.r.Steps[u.root].Node.Op] ||
		!p.processor && p.work[u.root].Class != shape.Pointwise {
		return -1
	}
	for _, v := range u.in {
		if b := in[v] - 1; b >= 0 && all[b].uses == 1 && !all[b].result && same(all[b].tensor, p.tensor[out]) {
			return b
		}
	}
	return -1
}

// same says that two values have one size: the same dimensions of elements of one type.
func same(a, b *shape.Tensor) bool {
	return a != nil && b != nil && a.Type == b.Type && slices.Equal(a.Dims, b.Dims)
}

// weights puts parameters into an arena, as loading does: those of products are packed and lie beside it. It gives how many bytes those are.
func (p *planner) weights(a *arena.Arena) (beside int64) {
	seen := make([]bool, p.r.Values)
	for i := range p.r.Steps {
		s := &p.r.Steps[i]
		if p.work[i].Class == shape.Free {
			continue
		}
		for k, v := range s.In {
			t := s.Inputs[k]
			if v < 0 || t == nil || !t.Weight || seen[v] {
				continue
			}
			seen[v] = true
			bytes := int64(min(max(t.Bytes(), 1), 1<<45))
			if p.processor && k == 1 && p.work[i].Class == shape.Product {
				beside += bytes
				continue
			}
			a.Alloc(bytes)
		}
	}
	return beside
}
