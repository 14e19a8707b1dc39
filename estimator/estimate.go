// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/estimator/lower"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/onnx/shape"
	"github.com/conch-serving/conch/plugins/policy/grid"
)

// Grid is what a profile is worked out for.
type Grid struct {
	Batches []int
	// Shares are thread percentages, 1 to 100.
	Shares []int
}

// DefaultGrid is gpulet's shares and batches of powers of two up to the model's maximum batch size.
func DefaultGrid(most int) Grid {
	g := Grid{Shares: []int{10, 20, 30, 40, 50, 60, 70, 80, 90, 100}}
	for b := 1; b < max(most, 1); b *= 2 {
		g.Batches = append(g.Batches, b)
	}
	g.Batches = append(g.Batches, max(most, 1))
	return g
}

// Request is a model to be estimated.
type Request struct {
	Model string
	Graph *shape.Graph
	// Inputs gives the dimensions of every input for a batch; nil takes [FeedShapes] of nothing declared.
	Inputs func(batch int) (map[string][]int64, error)
	Grid   Grid
	Device Device
}

// Share of an operator type in a model's time.
type Share struct {
	Op      string  `json:"op"`
	Kernels int     `json:"kernels"`
	Seconds float64 `json:"seconds"`
	FLOPs   float64 `json:"flops"`
	Bytes   float64 `json:"bytes"`
	Bound   string  `json:"bound"`
}

// Kernel of a model, with its time.
type Kernel struct {
	Node    string  `json:"node"`
	Op      string  `json:"op"`
	Family  string  `json:"family"`
	Seconds float64 `json:"seconds"`
	FLOPs   float64 `json:"flops"`
	Bytes   float64 `json:"bytes"`
	Waves   float64 `json:"waves"`
}

// Estimate is a profile with what it came from. Its points are in the order of the grid: by batch, then by share.
type Estimate struct {
	grid.Profile
	// Graph says that the model's graph was read; otherwise only the size of its file is known.
	Graph bool `json:"graph"`
	// Memory is that of the largest batch.
	Memory Memory `json:"memory"`
	// Parameters is how many weights there are, FLOPs and Bytes what the smallest batch computes and moves.
	Parameters int64   `json:"parameters"`
	FLOPs      float64 `json:"flops"`
	Bytes      float64 `json:"bytes"`
	// Kernels is how many the smallest batch launches; Concurrent is how many of them start within tau of another.
	Kernels    int `json:"kernels"`
	Concurrent int `json:"concurrent"`
	// Operators and Slowest are of the largest batch with the whole GPU, by time.
	Operators []Share  `json:"operators"`
	Slowest   []Kernel `json:"slowest"`
	// Fits says whether the largest batch fits the GPU's memory.
	Fits bool `json:"fits"`
	// MemoryOfGPU is that memory, in bytes.
	MemoryOfGPU float64 `json:"gpu_memory"`
	// Bound is the widest of the batches' bounds: how far, relative to the estimate, nine of ten models should be from it at most. Basis says what it was found on.
	Bound    float64  `json:"relative_error_bound"`
	Basis    string   `json:"basis"`
	Warnings []string `json:"warnings"`
}

// DoesNotFit says in numbers why the model does not fit the GPU's memory, and at which batch.
func (e *Estimate) DoesNotFit() string {
	most := uint32(1)
	for _, p := range e.Points {
		most = max(most, p.Batch)
	}
	return fmt.Sprintf("%s does not fit a %s: it needs %.0f MB at batch %d (weights %.0f, activations %.0f, workspace %.0f, arena %.0f, context %.0f), the GPU has %.0f MB",
		e.Model, e.GPUType, e.Memory.Total()/1e6, most, e.Memory.Parameters/1e6, e.Memory.Activations/1e6, e.Memory.Workspace/1e6, e.Memory.Arena/1e6, e.Memory.Context/1e6, e.MemoryOfGPU/1e6)
}

// Do estimates a model.
func Do(q Request) (*Estimate, error) {
	switch {
	case len(q.Grid.Batches) == 0 || len(q.Grid.Shares) == 0:
		return nil, errors.New("estimator: the grid has no batches or no shares")
	case q.Device.Kernels == nil || q.Device.Uses == nil:
		return nil, errors.New("estimator: the device has no kernels or no uses; see NewDevice")
	case !q.Device.Factors.Check():
		return nil, fmt.Errorf("estimator: factors of %s are not usable: %+v", q.Device.Sheet.Name, q.Device.Factors)
	}
	g := Grid{slices.Sorted(slices.Values(q.Grid.Batches)), slices.Sorted(slices.Values(q.Grid.Shares))}
	if g.Batches[0] < 1 || g.Shares[0] < 1 || g.Shares[len(g.Shares)-1] > 100 {
		return nil, fmt.Errorf("estimator: batches %v must be positive, thread percentages %v from 1 to 100", g.Batches, g.Shares)
	}
	shares := make([]float64, 0, len(g.Shares)+1)
	for _, p := range g.Shares {
		shares = append(shares, float64(p)/100)
	}
	whole := len(shares)
	shares = append(shares, 1)
	c := newClock(&q.Device, shares)
	e := &Estimate{Profile: grid.Profile{Model: q.Model, GPUType: q.Device.Sheet.Name, Source: grid.Estimated}, Graph: true, Parameters: q.Graph.Weights, Basis: q.Device.Factors.Source}
	warned := map[string]bool{}
	var curves [][]float64
	var held holding
	near := q.Device.near()
	for n, batch := range g.Batches {
		inputs, err := q.Inputs(batch)
		if err != nil {
			return nil, err
		}
		r, err := q.Graph.Infer(inputs)
		if err != nil {
			return nil, err
		}
		for _, w := range r.Warnings {
			warned[w] = true
		}
		launches := lower.Lower(r, lower.Options{Runtime: q.Device.Runtime, Float: q.Device.Float})
		times := make([]*timed, len(launches))
		for i := range launches {
			times[i] = c.time(launches[i].Kernel)
		}
		if n == 0 {
			e.Kernels = len(launches)
			e.Concurrent = together(launches, times, whole, tau)
			for _, l := range launches {
				e.FLOPs += l.FLOPs * l.Repeat
				e.Bytes += l.Bytes() * l.Repeat
			}
		}
		guessed := 0.0
		for i := range launches {
			if launches[i].Guessed {
				guessed += times[i].at[whole]
			}
		}
		use := q.Device.Uses.of(useFeatures(launches, times, whole, &q.Device.Sheet))
		m := held.execute(r, q.Graph, feeds(q.Graph, inputs), &q.Device)
		if q.Device.Sheet.Architecture != kernel.CPU { // what a processor's kernels use besides is part of what its process holds anyway
			m.Workspace = workspace(launches)
		}
		e.Memory = m
		input := 0.0
		for _, t := range feeds(q.Graph, inputs) {
			input += t.Bytes()
		}
		curve := make([]float64, len(g.Shares))
		for s := range g.Shares {
			curve[s] = span(launches, times, s, input, &q.Device.Factors)
		}
		// A larger share or a smaller batch is never slower: where waves make it so, the better of both is what a runtime could choose.
		for s := len(curve) - 2; s >= 0; s-- {
			curve[s] = max(curve[s], curve[s+1])
		}
		if n > 0 {
			for s := range curve {
				curve[s] = max(curve[s], curves[n-1][s])
			}
		}
		curves = append(curves, curve)
		full := span(launches, times, whole, input, &q.Device.Factors)
		bound, basis := q.Device.bound(kindOf(launches, times, whole, full), near)
		if guessed > 0 && full > 0 {
			bound += 2 * guessed / full
		}
		if bound > e.Bound {
			e.Bound, e.Basis = bound, basis
		}
		for s, p := range g.Shares {
			slow := full / curve[s] // the same work in more time uses less per second
			e.Points = append(e.Points, grid.Point{
				Batch: uint32(batch), ThreadPercentage: uint32(p), LatencyUS: curve[s] * 1e6, ErrorBoundUS: curve[s] * bound * halfWidth * 1e6,
				Creq: min(use.compute*min(1, slow), float64(p)/100), Mreq: m.Total() / max(1, q.Device.Sheet.Memory),
				BandwidthUtilization: min(1, use.bandwidth*min(1, slow)), L2Utilization: min(1, use.l2*min(1, slow)),
			})
		}
		if n == len(g.Batches)-1 {
			e.Operators, e.Slowest = explain(launches, times, whole)
		}
	}
	e.MemoryOfGPU = q.Device.Sheet.Memory
	e.Fits = e.Memory.Total() <= q.Device.Sheet.Memory
	e.Warnings = slices.Sorted(func(yield func(string) bool) {
		for w := range warned {
			if !yield(w) {
				return
			}
		}
	})
	return e, nil
}

// halfWidth makes the half width of a 95% interval, which points carry, of a bound that nine of ten errors stay below, as if errors were normal.
const halfWidth = 1.96 / 1.645

// feeds are the model's inputs as tensors.
func feeds(g *shape.Graph, inputs map[string][]int64) []*shape.Tensor {
	var out []*shape.Tensor
	for _, v := range g.Feeds {
		out = append(out, &shape.Tensor{Type: v.Type.Elem, Dims: inputs[v.Name]})
	}
	return out
}

// workspace is what the largest convolution takes to be unfolded a tile at a time, and cuBLAS keeps: cuDNN's algorithms without a limit may take more.
func workspace(launches []lower.Launch) float64 {
	most := 0.0
	for i := range launches {
		if k := &launches[i].Kernel; k.Window > 1 && k.Batch == 1 {
			most = max(most, min(4*k.M*k.Depth, 32<<20))
		}
	}
	if len(launches) > 0 {
		most += 8 << 20
	}
	return most
}

// explain sums times by operator, and lists the slowest kernels.
func explain(launches []lower.Launch, times []*timed, share int) ([]Share, []Kernel) {
	by := map[string]*Share{}
	var ops []Share
	var all []Kernel
	memory := map[string]float64{}
	for i := range launches {
		l := &launches[i]
		s := by[l.Op]
		if s == nil {
			s = &Share{Op: l.Op}
			by[l.Op] = s
		}
		seconds := times[i].at[share] * l.Repeat
		s.Kernels++
		s.Seconds += seconds
		s.FLOPs += l.FLOPs * l.Repeat
		s.Bytes += l.Bytes() * l.Repeat
		if times[i].full.Memory >= times[i].full.Compute {
			memory[l.Op] += seconds
		}
		all = append(all, Kernel{Node: l.Node, Op: l.Op, Family: l.Family.String(), Seconds: seconds, FLOPs: l.FLOPs, Bytes: l.Bytes(), Waves: times[i].full.Waves})
	}
	for _, s := range by {
		s.Bound = "compute"
		if memory[s.Op] > s.Seconds/2 {
			s.Bound = "memory"
		}
		ops = append(ops, *s)
	}
	slices.SortFunc(ops, func(a, b Share) int { return cmp.Or(-cmp.Compare(a.Seconds, b.Seconds), cmp.Compare(a.Op, b.Op)) })
	slices.SortStableFunc(all, func(a, b Kernel) int { return -cmp.Compare(a.Seconds, b.Seconds) })
	return ops, all[:min(len(all), 10)]
}

// CheckDims refuses sizes of dimensions that no input of the model names.
func (s *Subject) CheckDims(dims map[string]int64) error {
	if s.Graph == nil {
		return nil
	}
	named := map[string]bool{}
	for _, v := range s.Graph.Feeds {
		for _, d := range v.Type.Dims {
			if d.Size < 0 && d.Name != "" {
				named[d.Name] = true
			}
		}
	}
	for _, name := range sortedKeys(dims) {
		switch {
		case dims[name] < 1:
			return fmt.Errorf("%s: dimension %s=%d: a size is at least 1", s.Name, name, dims[name])
		case len(named) == 0:
			return fmt.Errorf("%s: dimension %q: no input of the model names a dimension", s.Name, name)
		case !named[name]:
			return fmt.Errorf("%s: dimension %q: no input of the model has it; its inputs name %s", s.Name, name, strings.Join(sortedKeys(named), ", "))
		}
	}
	return nil
}

// FeedShapes gives the shapes of a model's inputs for a batch: declared dimensions first, then those in the file, then assumptions, which it lists.
func FeedShapes(g *shape.Graph, declared Declared, batch int) (map[string][]int64, []string, error) {
	free := cmp.Or(declared.Free, 128)
	out := map[string][]int64{}
	var assumed []string
	for _, v := range g.Feeds {
		if v.Type.Kind != onnx.TensorKind {
			return nil, nil, fmt.Errorf("input %q is not a tensor: sequences and maps as inputs are not estimated", v.Name)
		}
		dims := make([]int64, len(v.Type.Dims))
		for i, d := range v.Type.Dims {
			dims[i] = d.Size
			if n, ok := declared.Dims[d.Name]; ok && d.Size < 0 && d.Name != "" {
				dims[i] = n
			}
		}
		given := declared.Inputs[v.Name]
		if given != nil && declared.MaxBatch >= 1 {
			given = append([]int64{-1}, given...)
		}
		if !v.Type.HasShape {
			dims = slices.Clone(given)
		}
		if len(given) == len(dims) {
			for i, d := range given {
				if d > 0 && dims[i] < 0 {
					dims[i] = d
				}
			}
		}
		for i, d := range dims {
			if d >= 0 {
				continue
			}
			if i == 0 {
				dims[i] = int64(batch)
				continue
			}
			dims[i] = free
			name := ""
			if i < len(v.Type.Dims) {
				name = v.Type.Dims[i].Name
			}
			assumed = append(assumed, fmt.Sprintf("input %q: dimension %d (%s) is not fixed; %d is assumed: say dims in config.pbtxt, or --dim", v.Name, i, cmp.Or(name, "without a name"), free))
		}
		out[v.Name] = dims
	}
	return out, assumed, nil
}
