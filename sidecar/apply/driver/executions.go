// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"maps"
	"slices"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
)

// Executions are the batches that a server executes at once. The zero value is that of a
// server of which nothing else is known: one at a time.
type Executions struct {
	// AtOnce is how many; 0 is 1.
	AtOnce int
	// Of says which of them may be a model's: bit i is the execution i. A model that is not
	// in it has the execution 0. Nil: each of them may be any model's.
	Of map[string]uint64
}

// Mask has those that may be a model's, as Of has them.
func (e Executions) Mask(model string) uint64 {
	if e.Of != nil {
		return max(1, e.Of[model])
	}
	return 1<<max(1, e.AtOnce) - 1
}

// Several is a Server that may execute several batches at once.
type Several interface {
	Executions() Executions
}

// executionsOf reads out of the instance groups that a server reports how many batches it executes at once: one on each GPU that an instance is on. Set, if
// it is above 0, is what its operator says instead.
//
// An execution belongs to a GPU, or to several GPUs where fewer executions are set than there are GPUs, and a model has those of the GPUs that it has instances
// on: at most one for each instance. Where more executions are set than there are GPUs, they are dealt out to the GPUs in turn, and a model has as many of a GPU as it
// has instances there. What instances on CPUs run on is not known: they share the executions, as many for a model as it has instances.
func executionsOf(set int, models []Served) Executions {
	on := make([]instances, len(models))
	all := map[int32]int{}
	for i, m := range models {
		on[i] = instancesOf(m.Config)
		maps.Copy(all, on[i].gpus)
	}
	gpus := slices.Sorted(maps.Keys(all))
	n := set
	if n <= 0 {
		n = len(gpus)
	}
	n = min(max(1, n), policy.MostExecutions)
	of := make(map[string]uint64, len(models))
	first := 0 // of a model without a GPU: they are spread
	for i, m := range models {
		mask := on[i].onGPUs(gpus, n)
		if left := on[i].elsewhere; left > 0 {
			for k := range n {
				if bit := uint64(1) << ((first + k) % n); left > 0 && mask&bit == 0 {
					mask |= bit
					left--
				}
			}
			first++
		}
		of[m.Name] = max(1, mask)
	}
	return Executions{AtOnce: n, Of: of}
}

// instances of one model.
type instances struct {
	gpus      map[int32]int // how many on each
	elsewhere int           // on CPUs, or where the model itself decides
}

func instancesOf(c *tritonpb.ModelConfig) instances {
	in := instances{gpus: map[int32]int{}}
	for _, g := range c.GetInstanceGroup() {
		switch count := int(max(1, g.GetCount())); {
		case g.GetPassive(): // Triton sends it nothing
		case g.GetKind() == tritonpb.ModelInstanceGroup_KIND_GPU && len(g.GetGpus()) > 0:
			for _, gpu := range g.GetGpus() {
				in.gpus[gpu] += count
			}
		default:
			in.elsewhere += count
		}
	}
	return in
}

// onGPUs are the executions, of n, that may be on the GPUs of the instances.
func (in instances) onGPUs(gpus []int32, n int) (mask uint64) {
	for k, gpu := range gpus {
		if n < len(gpus) {
			if in.gpus[gpu] > 0 {
				mask |= 1 << (k % n)
			}
			continue
		}
		for i, left := k, in.gpus[gpu]; i < n && left > 0; i, left = i+len(gpus), left-1 {
			mask |= 1 << i
		}
	}
	return mask
}
