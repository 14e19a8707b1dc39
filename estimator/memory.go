// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"github.com/conch-serving/conch/estimator/arena"
	"github.com/conch-serving/conch/estimator/kernel"
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
	// Arena is what ONNX Runtime's arena takes for weights and values beyond them (see package arena): of a GPU all that it has taken, of a process what
	// it has written.
	Arena float64 `json:"arena"`
	// Context is that of the process before it loads a model; several models of a process share it.
	Context float64 `json:"context"`
}

// Total is the sum.
func (m Memory) Total() float64 { return m.Parameters + m.Working() + m.Context }

// Working is what executing takes beside the weights.
func (m Memory) Working() float64 { return m.Activations + m.Workspace + m.Arena }

// holding is the memory of a model that executes batches, one size after the other.
type holding struct {
	arena   arena.Arena
	planner *planner
	// beside is what lies outside of the arena: packed weights of products.
	beside int64
}

// execute gives the memory after batches of one more size: what is estimated of a batch is that of a server that has executed every smaller one of the grid.
func (h *holding) execute(r *shape.Result, g *shape.Graph, inputs []*shape.Tensor, d *Device) Memory {
	processor := d.Sheet.Architecture == kernel.CPU
	loaded := h.planner != nil
	if !loaded || !h.planner.next(r) {
		h.planner = newPlanner(r, d.Runtime, processor)
	}
	events, buffers := h.planner.events()
	peak := float64(arena.Peak(events, buffers))
	m := Memory{Parameters: float64(g.Parameters), Activations: peak, Context: d.Sheet.Context}
	for _, t := range inputs {
		m.Activations += t.Bytes()
	}
	if !d.Runtime.Arena {
		return m
	}
	if !loaded {
		h.beside = h.planner.weights(&h.arena)
	}
	h.arena.Run(events, buffers)
	taken := h.arena.Held()
	if processor {
		taken = h.arena.Written()
	}
	m.Arena = max(0, float64(taken+h.beside)-m.Parameters-peak)
	return m
}
