// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import "sync"

// GPU is one emulated GPU, shared by the servers of its partitions. While executions of two partitions overlap they slow each other by
// gpulet's linear model of L2 and bandwidth utilisation.
type GPU struct {
	id string

	mu      sync.Mutex
	running map[string]load // by partition
}

// load is what an execution takes from the GPU, as fractions of all the GPU has.
type load struct{ l2, bandwidth float64 }

// NewGPU makes an emulated GPU with the given id.
func NewGPU(id string) *GPU { return &GPU{id: id, running: map[string]load{}} }

// ID is the id given to NewGPU.
func (g *GPU) ID() string { return g.id }
