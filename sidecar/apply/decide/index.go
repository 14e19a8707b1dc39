// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import "cmp"

// A cluster has thousands of servers and of places: what is asked of each of them must not walk over all of them.

// holder is a partition, and which of its instances is a model's.
type holder struct {
	*Partition
	instance int
}

// index finds servers by what they have and where they are.
func (j *judgement) index() {
	j.loaded, j.onGPU = map[string][]*Server{}, map[string][]*Server{}
	for _, v := range j.seen.Servers {
		j.onGPU[v.GPU] = append(j.onGPU[v.GPU], v)
		for model := range v.Loaded {
			j.loaded[model] = append(j.loaded[model], v)
		}
	}
}

func holders(partitions []Partition) map[string][]holder {
	all := map[string][]holder{}
	for i := range partitions {
		p := &partitions[i]
		for n, in := range p.Instances {
			if of := all[in.Model]; len(of) == 0 || of[len(of)-1].Partition != p {
				all[in.Model] = append(of, holder{p, n})
			}
		}
	}
	return all
}

// failed reports whether the model's wanted files failed to load anywhere.
func (j *judgement) failed(model string) bool {
	if j.failures == nil {
		j.failures = map[string]bool{}
		for l := range j.seen.Loads {
			if j.wanted[l.Key] && l.Revision == j.want.Models[l.Model].Revision {
				j.failures[l.Model] = true
			}
		}
	}
	return j.failures[model]
}

// groupOf is the first wanted merge group of a member; empty where there is none.
func (j *judgement) groupOf(member string) string {
	if j.groups == nil {
		j.groups = map[string]string{}
		for _, name := range j.models() {
			for _, m := range j.want.Models[name].Members {
				if _, twice := j.groups[m]; !twice {
					j.groups[m] = name
				}
			}
		}
	}
	return j.groups[member]
}

// canary is where a model's new files are tried first: tried, that they were; last, the partition that is last by rank of those that serve with others, nil where
// none does.
type canary struct {
	tried bool
	last  *Partition
}

func (j *judgement) canaryOf(model string) canary {
	if c, known := j.canaries[model]; known {
		return c
	}
	var c canary
	for _, q := range j.holders[model] {
		v := j.up(q.Key)
		if v == nil {
			continue
		}
		l, has := v.Loaded[model]
		if c.tried = l.Tried && j.current(v, model); c.tried {
			break
		}
		if has && (c.last == nil || later(q.Partition, c.last) > 0) {
			c.last = q.Partition
		}
	}
	j.canaries[model] = c
	return c
}

// later compares partitions by rank, and by name where that is the same.
func later(a, b *Partition) int {
	return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Partition, b.Partition))
}
