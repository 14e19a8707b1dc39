// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// release finds the places that have to go before their successors can come,
// because memory cannot hold both, a node has no GPU for both, or the claim of
// the GPU is not for both.
func (j *judgement) release() {
	for _, p := range j.want.Partitions {
		v := j.servers[p.Key]
		if v == nil {
			switch {
			case !j.hasGPU(p) || j.claimed(p):
				j.releaseNext(p)
			case !j.fits(p):
				j.releaseServers(p.GPU)
			}
			continue
		}
		if v.Phase == Up && v.Known && !j.want.Given {
			j.releaseModels(p, v)
		}
	}
}

// fits reports that a GPU has room for another server beside those that run.
func (j *judgement) fits(p Partition) bool {
	room := j.want.Memory[p.GPU]
	if _, whole := j.want.Whole[NodeOf(p.GPU)]; whole || room == 0 || p.Memory == 0 {
		return true
	}
	taken := uint64(0)
	old := false
	for _, v := range j.onGPU[p.GPU] {
		taken += v.Memory
		old = old || !j.wanted[v.Key]
	}
	// Without an old server there is nothing to wait for: the plan was judged.
	return !old || taken+p.Memory <= room
}

// hasGPU reports that a node has a GPU left for a server that takes a whole one, or that nothing is to be waited for.
func (j *judgement) hasGPU(p Partition) bool {
	node := NodeOf(p.GPU)
	all, whole := j.want.Whole[node]
	if !whole {
		return true
	}
	taken, old := j.begun[node], false
	for _, v := range j.seen.Servers {
		if NodeOf(v.GPU) == node {
			taken, old = taken+1, old || !j.wanted[v.Key]
		}
	}
	return !old || taken < all
}

// claimed reports that a GPU is claimed for old servers in another way than it has to be for the partition's.
func (j *judgement) claimed(p Partition) bool {
	return p.Claim != "" && slices.ContainsFunc(j.onGPU[p.GPU], func(v *Server) bool { return !j.wanted[v.Key] && v.Claim != p.Claim })
}

// byTurns reports that servers on a GPU are replaced in turns, where two generations are not there at once.
func (j *judgement) byTurns(gpu, claim string) bool {
	_, whole := j.want.Whole[NodeOf(gpu)]
	return whole || claim != ""
}

// releaseNext lets servers go that are not wanted: one, so that a node has a GPU for the partition's, that of its GPU if there is one; or all of its GPU, which have it
// claimed in another way. Where all are replaced, as by another image, they go in turns, while the others serve. Where a successor does not start though it has a place,
// nothing further goes.
func (j *judgement) releaseNext(p Partition) {
	for _, q := range j.want.Partitions {
		if !j.byTurns(q.GPU, q.Claim) {
			continue
		}
		v := j.servers[q.Key]
		if v != nil && !j.done(q, v) {
			return
		}
		if v == nil && j.hasGPU(q) && !j.claimed(q) {
			if f := j.seen.Starts[q.Key]; f.Attempts > 1 {
				j.out.Blocked[p.Key] = fmt.Sprintf("%s, and no old server goes while that of partition %s does not start: %s", j.lacks(p), q.Partition, f.Reason)
			}
			return
		}
	}
	var all []*Server
	for _, v := range j.seen.Servers {
		if !j.byTurns(v.GPU, v.Claim) {
			continue
		}
		if v.Phase != Up || j.released[place{v.ID, ""}] {
			return // a change is under way
		}
		switch {
		case j.wanted[v.Key]:
		case j.hasGPU(p): // it lacks the claim
			if v.GPU == p.GPU {
				all = append(all, v)
			}
		case NodeOf(v.GPU) == NodeOf(p.GPU) && (len(all) == 0 || v.GPU == p.GPU && all[0].GPU != p.GPU):
			all = []*Server{v}
		}
	}
	for _, v := range all {
		j.released[place{v.ID, ""}] = true
	}
}

// lacks says what a partition waits for that old servers have.
func (j *judgement) lacks(p Partition) string {
	if !j.hasGPU(p) {
		return fmt.Sprintf("node %s has no GPU left for it", NodeOf(p.GPU))
	}
	return fmt.Sprintf("GPU %s is claimed in another way", p.GPU)
}

// done reports that a server serves all that its partition is to have, but what does not load.
func (j *judgement) done(p Partition, v *Server) bool {
	for _, in := range p.Instances {
		if _, failed := j.failure(p.Key, in.Model); !failed && !j.serves(v, in.Model) {
			return false
		}
	}
	return true
}

// NodeOf is the node of a GPU's id, NODE/ID.
func NodeOf(gpu string) string {
	node, _, _ := strings.Cut(gpu, "/")
	return node
}

// releaseServers lets the servers of a GPU go that are not wanted.
func (j *judgement) releaseServers(gpu string) {
	for _, v := range j.onGPU[gpu] {
		if v.Memory > 0 && !j.wanted[v.Key] {
			j.released[place{v.ID, ""}] = true
		}
	}
}

// releaseModels lets models of a server go: those that it need not have, where
// what it shall have finds no room beside them, and the old files of a model
// whose new ones find none. Of the latter one place goes at a time, while the
// model's others serve.
func (j *judgement) releaseModels(p Partition, v *Server) {
	wants := map[string]bool{}
	for _, in := range p.Instances {
		wants[in.Model] = true
	}
	for _, in := range p.Instances {
		if j.current(v, in.Model) || !j.tight(p, v, in.Model) {
			continue
		}
		if _, failed := j.failure(p.Key, in.Model); failed {
			continue
		}
		for model := range v.Loaded {
			if !wants[model] {
				j.released[place{v.ID, model}] = true
			}
		}
		if _, has := v.Loaded[in.Model]; has && !j.crowded(p, v, in.Model) && j.canary(p, in.Model) && j.spared(p, in.Model) {
			j.released[place{v.ID, in.Model}] = true
		}
	}
}

// tight reports that a server has no room for another copy of a model beside
// what is loaded.
func (j *judgement) tight(p Partition, v *Server, model string) bool {
	size, room := j.want.Models[model].Memory, cmp.Or(p.Memory, p.Room)
	if room == 0 || size == 0 {
		return false
	}
	taken := uint64(0)
	for _, l := range v.Loaded {
		taken += l.Memory
	}
	return taken+size > room
}

// spared reports that no other place of a model is missing at the moment.
func (j *judgement) spared(p Partition, model string) bool {
	for _, q := range j.holders[model] {
		v := j.up(q.Key)
		if q.Key == p.Key || v == nil {
			continue
		}
		if _, failed := j.failure(q.Key, model); !v.Loaded[model].Answers && !failed {
			return false
		}
	}
	return true
}

// crowded reports that a model finds no room because of models that leave.
func (j *judgement) crowded(p Partition, v *Server, model string) bool {
	if !j.tight(p, v, model) {
		return false
	}
	for loaded := range v.Loaded {
		wanted := false
		for _, in := range p.Instances {
			wanted = wanted || in.Model == loaded && !j.faulted(v, loaded)
		}
		if !wanted {
			return true
		}
	}
	return false
}
