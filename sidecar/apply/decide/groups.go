// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"maps"
	"slices"
)

// fallBack wants the members of a merge group in the partitions where the group does not load, does not answer, or fails in its executions,
// until it serves somewhere: they serve unmerged then.
func (j *judgement) fallBack() {
	j.want.Partitions = slices.Clone(j.want.Partitions)
	for i, p := range j.want.Partitions {
		for _, in := range p.Instances {
			members := j.want.Models[in.Model].Members
			if len(members) == 0 {
				continue
			}
			if _, failed := j.failure(p.Key, in.Model); !failed || j.anywhere(in.Model) {
				continue
			}
			instances := slices.Clone(j.want.Partitions[i].Instances)
			for _, member := range members {
				if spec, known := j.want.Members[member]; known && !slices.ContainsFunc(instances, func(o Instance) bool { return o.Model == member }) {
					instances = append(instances, Instance{Model: member, MaxBatch: in.MaxBatch})
					if _, wanted := j.want.Models[member]; !wanted {
						j.want.Models = maps.Clone(j.want.Models)
						j.want.Models[member] = spec
					}
				}
			}
			j.want.Partitions[i].Instances = instances
		}
	}
}

// anywhere reports that some server serves a model.
func (j *judgement) anywhere(model string) bool {
	return slices.ContainsFunc(j.loaded[model], func(v *Server) bool { return j.serves(v, model) })
}

// members are the models that merge groups have which are wanted, or loaded somewhere, sorted.
func (j *judgement) members() []string {
	all := map[string]bool{}
	for _, m := range j.want.Models {
		for _, member := range m.Members {
			all[member] = true
		}
	}
	for _, v := range j.seen.Servers {
		for _, l := range v.Loaded {
			for _, member := range l.Members {
				all[member] = true
			}
		}
	}
	return sortedKeys(all)
}

// merged decides for a member of a merge group where its requests go: to the group once enough of the group's places are ready; until
// then, and when the group is not wanted any more, to wherever the member or the group serves. Places of groups that are used so are added.
func (j *judgement) merged(member string, names map[uint64]string, routed map[string][]Place) []Place {
	_, direct := j.want.Models[member]
	own := routed[member]
	if slices.ContainsFunc(own, func(p Place) bool { return !p.Waiting }) {
		return own
	}
	group := j.groupOf(member)
	ready := slices.DeleteFunc(slices.Clone(routed[group]), func(p Place) bool { return p.Waiting })
	wanted := len(j.holders[group])
	if group != "" && !direct && len(ready) >= max(1, wanted) {
		return throughGroup(group, ready)
	}
	var old []Place
	for _, v := range j.loaded[member] {
		if j.serves(v, member) {
			old = append(old, Place{Route: names[v.ID], MaxBatch: v.Loaded[member].MaxBatch, Revision: v.Loaded[member].Revision})
			j.routed[place{v.ID, member}] = true
		}
	}
	switch {
	case len(old) > 0:
		return old
	case len(ready) > 0:
		return throughGroup(group, ready)
	}
	for _, v := range j.seen.Servers {
		for _, other := range sortedKeys(v.Loaded) {
			l := v.Loaded[other]
			if !slices.Contains(l.Members, member) || !j.serves(v, other) || group != "" && other != group {
				continue
			}
			at := Place{Route: names[v.ID], MaxBatch: l.MaxBatch, Revision: l.Revision}
			if !j.routed[place{v.ID, other}] {
				j.routed[place{v.ID, other}] = true
				routed[other] = append(routed[other], at)
			}
			group, old = other, append(old, at)
		}
	}
	switch {
	case len(old) > 0:
		return throughGroup(group, old)
	case direct:
		return own
	}
	return throughGroup(group, routed[group])
}

// throughGroup are the places of a group as those of a member.
func throughGroup(group string, places []Place) []Place {
	all := slices.Clone(places)
	for i := range all {
		all[i].Group = group
	}
	return all
}
