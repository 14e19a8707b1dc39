// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"slices"
)

// route decides where requests go.
func (j *judgement) route() {
	j.routed = map[place]bool{}
	names := j.routeNames()
	r := Routes{Places: map[string][]Place{}}
	used := map[uint64]bool{}
	waiting := map[string]bool{}
	for _, model := range j.models() {
		var ready, old []Place
		wanted := len(j.holders[model])
		for _, p := range j.holders[model] {
			if v := j.up(p.Key); v != nil && j.serves(v, model) {
				// Files of before serve on where they are: the server changes over by itself.
				ready = append(ready, Place{Route: names[v.ID], MaxBatch: p.Instances[p.instance].MaxBatch, Revision: v.Loaded[model].Revision})
				j.routed[place{v.ID, model}] = true
			}
		}
		if len(ready) < max(1, wanted) {
			for _, v := range j.loaded[model] {
				if j.serves(v, model) && !j.routed[place{v.ID, model}] {
					old = append(old, Place{Route: names[v.ID], MaxBatch: v.Loaded[model].MaxBatch, Revision: v.Loaded[model].Revision})
					j.routed[place{v.ID, model}] = true
				}
			}
		}
		all := append(ready, old...)
		if len(all) == 0 {
			all = j.coming(model, waiting)
		}
		if len(all) > 0 {
			r.Places[model] = all
		}
	}
	for _, model := range sortedKeys(j.want.Instead) {
		if places := j.retained(model, names, r.Places); len(places) > 0 {
			r.Places[model] = places
		}
	}
	for _, member := range j.members() {
		if places := j.merged(member, names, r.Places); len(places) > 0 {
			r.Places[member] = places
		}
	}
	for at := range j.routed {
		used[at.server] = true
	}
	for _, v := range j.seen.Servers {
		if used[v.ID] {
			r.Partitions = append(r.Partitions, RoutePartition{ID: names[v.ID], Server: v.ID, Partition: v.Partition})
		}
	}
	for _, p := range j.want.Partitions {
		if waiting[p.Partition] {
			r.Partitions = append(r.Partitions, RoutePartition{ID: p.Partition + waitingSuffix, Partition: p.Partition})
		}
	}
	j.out.Routes = r
}

// retained are the old places of a model that others are to take the place of,
// none of which is ready.
func (j *judgement) retained(model string, names map[uint64]string, routed map[string][]Place) (old []Place) {
	if _, wanted := j.want.Models[model]; wanted {
		return nil
	}
	for _, other := range j.want.Instead[model] {
		if slices.ContainsFunc(routed[other], func(p Place) bool { return !p.Waiting }) {
			return nil
		}
	}
	for _, v := range j.loaded[model] {
		if j.serves(v, model) {
			old = append(old, Place{Route: names[v.ID], MaxBatch: v.Loaded[model].MaxBatch, Revision: v.Loaded[model].Revision})
			j.routed[place{v.ID, model}] = true
		}
	}
	return old
}

// waitingSuffix ends the name of a route that nothing is behind yet.
const waitingSuffix = " (to come)"

// coming are the places that a model without any will have: its requests wait
// for them. There are none once it is known that it does not load.
func (j *judgement) coming(model string, waiting map[string]bool) []Place {
	var all []Place
	for _, p := range j.holders[model] {
		f, failed := j.failure(p.Key, model)
		if failed && !f.chance() || j.want.Given && j.up(p.Key) != nil {
			continue
		}
		for _, in := range p.Instances {
			if in.Model == model {
				waiting[p.Key.Partition] = true
				all = append(all, Place{Route: p.Key.Partition + waitingSuffix, MaxBatch: in.MaxBatch, Revision: j.want.Models[model].Revision, Waiting: true})
			}
		}
	}
	return all
}

// routeNames gives every server a name in the route table: its partition's, or
// where an old and a new one of a partition serve, the old one gets another.
func (j *judgement) routeNames() map[uint64]string {
	names := map[uint64]string{}
	taken := map[string]bool{}
	name := func(v *Server) {
		names[v.ID] = v.Partition
		for n := 2; taken[names[v.ID]]; n++ {
			names[v.ID] = fmt.Sprintf("%s (old %d)", v.Partition, n-1)
		}
		taken[names[v.ID]] = true
	}
	members := map[string]bool{}
	for _, member := range j.members() {
		members[member] = true
	}
	serving := func(v *Server) bool {
		for model := range v.Loaded {
			_, wanted := j.want.Models[model]
			_, replaced := j.want.Instead[model]
			if (wanted || replaced || members[model] || len(v.Loaded[model].Members) > 0) && j.serves(v, model) {
				return true
			}
		}
		return false
	}
	for _, p := range j.want.Partitions {
		if v := j.servers[p.Key]; v != nil && serving(v) {
			name(v)
		}
	}
	for _, v := range j.seen.Servers {
		if _, has := names[v.ID]; !has && serving(v) {
			name(v)
		}
	}
	return names
}
