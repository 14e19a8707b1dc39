// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"math"
	"slices"

	"github.com/conch-serving/conch/internal/onnx/shape"
)

// Memory is what a loaded model takes of the GPU's memory, in bytes.
type Memory struct {
	// Parameters are the weights.
	Parameters float64 `json:"parameters"`
	// Activations is the largest sum of values that are alive at the same time, inputs and outputs included.
	Activations float64 `json:"activations"`
	// Workspace is what convolutions and products may use besides.
	Workspace float64 `json:"workspace"`
	// Arena is what ONNX Runtime's arena takes of the device for the two above beyond them: see arena.
	Arena float64 `json:"arena"`
	// Context is that of the process before it loads a model; several models of a process share it.
	Context float64 `json:"context"`
}

// Total is the sum.
func (m Memory) Total() float64 { return m.Parameters + m.Working() + m.Context }

// Working is what executing takes beside the weights.
func (m Memory) Working() float64 { return m.Activations + m.Workspace + m.Arena }

// The extents by which ONNX Runtime's arena grows (arena_extend_strategy kNextPowerOfTwo, the default of its CPU and CUDA providers): the first is of
// 1 MiB, each further one twice as large as the one before, and none larger than 1 GiB unless one value is.
const (
	firstExtent = 1 << 20
	mostExtent  = 1 << 30
)

// arena is what the arena holds that has given out bytes at the same time. It gives nothing back, so that this stays for as long as the model is loaded.
func arena(bytes float64) float64 {
	total, next := 0.0, float64(firstExtent)
	for total < bytes && next < mostExtent {
		total += next
		next *= 2
	}
	if total < bytes {
		total += math.Ceil((bytes-total)/mostExtent) * mostExtent
	}
	return total
}

// alignment is what ONNX Runtime's and CUDA's allocators round up to.
const alignment = 256

// activations walks the steps in order and gives the peak of live values. A value lives from its step to its last reader. Operators that rename
// share their input's memory, and element-wise ones write over an input that dies with them and is as large (ONNX Runtime's planner does both).
func activations(r *shape.Result, inputs []*shape.Tensor) float64 {
	last := make([]int, r.Values)
	for i := range last {
		last[i] = -1
	}
	for i := range r.Steps {
		for _, v := range r.Steps[i].In {
			if v >= 0 {
				last[v] = i
			}
		}
	}
	for _, v := range r.Outputs {
		if v >= 0 {
			last[v] = len(r.Steps)
		}
	}
	buffer := make([]int, r.Values) // the value in whose memory a value lies
	until := slices.Clone(last)
	size := make([]float64, r.Values)
	for i := range buffer {
		buffer[i] = i
	}
	live := 0.0
	for _, t := range inputs {
		live += round(t.Bytes())
	}
	peak := live
	dying := make([][]int, len(r.Steps)+1)
	for i := range r.Steps {
		s := &r.Steps[i]
		work := s.Work()
		for k, v := range s.Out {
			if v < 0 || s.Outputs[k] == nil || s.Outputs[k].Weight {
				continue
			}
			bytes := round(s.Outputs[k].Bytes())
			if from := reused(s, work.Class, bytes, i, buffer, until, size); k == 0 && from >= 0 {
				buffer[v] = from
				until[from] = max(until[from], last[v])
				if until[from] < len(dying) && until[from] >= 0 {
					dying[until[from]] = append(dying[until[from]], from)
				}
				continue
			}
			size[v] = bytes
			live += bytes
			end := max(last[v], i)
			until[v] = end
			dying[end] = append(dying[end], v)
		}
		peak = max(peak, live)
		for _, v := range dying[i] {
			if until[v] == i && size[v] > 0 {
				live -= size[v]
				size[v] = 0
			}
		}
	}
	return peak
}

// reused is the value whose memory the step's first output takes over, -1 if it needs its own.
func reused(s *shape.Step, class shape.Class, bytes float64, at int, buffer, until []int, size []float64) int {
	if class != shape.Free && class != shape.Pointwise {
		return -1
	}
	for k, v := range s.In {
		if v < 0 || s.Inputs[k] == nil || s.Inputs[k].Weight {
			continue
		}
		b := buffer[v]
		if size[b] == 0 || size[b] < bytes {
			continue
		}
		if class == shape.Free || until[b] <= at && size[b] == bytes {
			return b
		}
	}
	return -1
}

func round(bytes float64) float64 {
	return float64((int64(min(bytes, 1<<60)) + alignment - 1) / alignment * alignment)
}
