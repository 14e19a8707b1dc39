// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// node is a server over several GPUs, for which as many partitions stand. Each model has an instance on every GPU, and the server gives a batch to the first
// that has none, beginning at another GPU for each model: there it may have to wait for other models, while another GPU is idle.
type node struct {
	gpus [][]*partition // by GPU, those whose batches are there, in order: the first executes
}

// nodes are those of the world, by the names of their partitions.
func (w *World) nodes() map[string]*node {
	all := map[string]*node{}
	for _, partitions := range w.Nodes {
		n := &node{gpus: make([][]*partition, len(partitions))}
		for _, name := range partitions {
			all[name] = n
		}
	}
	return all
}

// take gives a partition's batch to an instance, and reports whether it executes at once.
func (n *node) take(p *partition) bool {
	has := func(model queue.ModelID) func(*partition) bool {
		return func(o *partition) bool { return o.batch.Model == model }
	}
	p.at = int(p.batch.Model) % len(n.gpus)
	for range n.gpus {
		if !slices.ContainsFunc(n.gpus[p.at], has(p.batch.Model)) {
			break
		}
		p.at = (p.at + 1) % len(n.gpus)
	}
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
	left := slices.Delete(n.gpus[p.at], i, i+1)
	n.gpus[p.at] = left
	if i > 0 || len(left) == 0 {
		return nil
	}
	return left[0]
}
