// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// node is a server over several GPUs, for which as many partitions stand. Each model has an instance on every GPU, and the server gives a batch to the one that
// has waited longest: there it may have to wait for other models, while another GPU is idle.
type node struct {
	gpus [][]*partition          // by GPU, those whose batches are there, in order: the first executes
	idle map[queue.ModelID][]int // the GPUs whose instances of a model have no batch, the one that has waited longest first
}

// nodes are those of the world, by the names of their partitions.
func (w *World) nodes() map[string]*node {
	all := map[string]*node{}
	for _, partitions := range w.Nodes {
		n := &node{gpus: make([][]*partition, len(partitions)), idle: map[queue.ModelID][]int{}}
		for _, name := range partitions {
			all[name] = n
		}
	}
	return all
}

// take gives a partition's batch to an instance, and reports whether it executes at once.
func (n *node) take(p *partition) bool {
	m := p.batch.Model
	if n.idle[m] == nil { // models begin at different GPUs
		for i := range n.gpus {
			n.idle[m] = append(n.idle[m], (int(m)+i)%len(n.gpus))
		}
	}
	p.at = n.idle[m][0]
	n.idle[m] = n.idle[m][1:]
	n.gpus[p.at] = append(n.gpus[p.at], p)
	return len(n.gpus[p.at]) == 1
}

// leave takes a partition's batch away from its GPU, and returns the partition whose batch executes there from now on; nil if there is none, or another one
// executes as before.
func (n *node) leave(p *partition) *partition {
	i := slices.Index(n.gpus[p.at], p)
	if i < 0 {
		return nil
	}
	n.idle[p.batch.Model] = append(n.idle[p.batch.Model], p.at)
	left := slices.Delete(n.gpus[p.at], i, i+1)
	n.gpus[p.at] = left
	if i > 0 || len(left) == 0 {
		return nil
	}
	return left[0]
}
