// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import "sync"

// GPU is one emulated GPU, shared by the servers of its partitions. While executions of two partitions overlap they slow each other by
// gpulet's linear model of L2 and bandwidth utilisation.
type GPU struct {
	id string

	mu         sync.Mutex
	partitions map[string]*partitionState
}

// load is what an execution takes from the GPU, as fractions of all the GPU has.
type load struct{ l2, bandwidth float64 }

// partitionState is what the GPU knows of one partition: whose turn it is, and what runs.
type partitionState struct {
	// turn holds one token while an execution runs. Goroutines blocked on a channel are served first come, first served.
	turn chan struct{}
	busy bool
	load load
}

// NewGPU makes an emulated GPU with the given id.
func NewGPU(id string) *GPU { return &GPU{id: id, partitions: map[string]*partitionState{}} }

// ID is the id given to NewGPU.
func (g *GPU) ID() string { return g.id }

// partition finds or makes the state of a partition. Two servers of the same partition (a restart, make-before-break) take turns too.
func (g *GPU) partition(id string) *partitionState {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.partitions[id]
	if p == nil {
		p = &partitionState{turn: make(chan struct{}, 1)}
		g.partitions[id] = p
	}
	return p
}

// enter waits for the partition's turn and says by what factor the other partitions slow this execution.
func (g *GPU) enter(p *partitionState, l load) float64 {
	p.turn <- struct{}{}
	g.mu.Lock()
	defer g.mu.Unlock()
	factor := 1.0
	for _, other := range g.partitions {
		if other != p && other.busy {
			factor = max(factor, slowdown(l, other.load))
		}
	}
	p.busy, p.load = true, l
	return factor
}

func (g *GPU) leave(p *partitionState) {
	g.mu.Lock()
	p.busy = false
	g.mu.Unlock()
	<-p.turn
}

// slowdown is gpulet's interference model ("Serving Heterogeneous Machine Learning Models on Multi-GPU Servers with Spatio-Temporal
// Sharing", section 4.4) with the coefficients its authors published; co-running never makes an execution faster.
func slowdown(self, other load) float64 {
	return max(1, 0.1129*self.l2+0.7160*other.l2+0.3549*self.bandwidth+0.0882*other.bandwidth+0.8954)
}
