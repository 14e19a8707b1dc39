// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"sync"

	"github.com/conch-serving/conch/plugins/policy"
)

// GPU is one emulated GPU, shared by the servers of its partitions. An execution that starts beside others is slowed by them
// (policy.Interference.Slowdown, with gpulet's coefficients).
type GPU struct {
	id           string
	interference *policy.Interference

	mu         sync.Mutex
	partitions map[string]*partitionState
}

// partitionState is what the GPU knows of one partition: whose turn it is, and what runs.
type partitionState struct {
	// turn holds one token while an execution runs. Goroutines blocked on a channel are served first come, first served.
	turn chan struct{}
	busy bool
	load policy.Load
}

// NewGPU makes an emulated GPU with the given id.
func NewGPU(id string) *GPU {
	return &GPU{id: id, interference: policy.GpuletInterference(""), partitions: map[string]*partitionState{}}
}

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
func (g *GPU) enter(p *partitionState, l policy.Load) float64 {
	p.turn <- struct{}{}
	g.mu.Lock()
	defer g.mu.Unlock()
	factor := 1.0
	for _, other := range g.partitions {
		if other != p && other.busy {
			factor = max(factor, g.interference.Slowdown(l, other.load))
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
