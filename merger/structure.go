// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"slices"
	"strings"
)

// structure identifies a graph without its weights: operators, attributes, how they are connected, shapes of weights. Graphs with equal
// structure are what an edit distance of 0 finds, in linear time.
func (g *graph) structure() Digest {
	ids := map[string]int64{}
	id := func(name string) int64 {
		if _, known := ids[name]; !known {
			ids[name] = int64(len(ids))
		}
		return ids[name]
	}
	h := newHasher("structure")
	for _, v := range g.model.Graph.Feeds() {
		h.number(id(v.Name))
		h.number(int64(v.Type.Elem))
	}
	for _, n := range g.order {
		_ = g.signature(h, n, false) // without contents nothing is read
		for _, name := range n.Inputs {
			h.number(id(name))
			if t := g.model.Graph.Initializer(name); t != nil {
				h.number(int64(t.Type))
				for _, d := range t.Dims {
					h.number(d)
				}
			}
		}
		for _, name := range n.Outputs {
			h.number(id(name))
		}
	}
	return h.sum()
}

// operators is the sequence of operators in topological order.
func (g *graph) operators() []string {
	var ops []string
	for _, n := range g.order {
		ops = append(ops, n.Op)
	}
	return ops
}

// distance is the Levenshtein distance of two sequences of operators over the length of the longer: 0 for equal ones, 1 for ones that
// have nothing in common. It stands for the graph edit distance of USHER, section 3.4.1, which takes a second a pair.
func distance(a, b []string) float64 {
	if len(a) == 0 && len(b) == 0 {
		return 0
	}
	above := make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	row := make([]int, len(b)+1)
	for i, x := range a {
		row[0] = i + 1
		for j, y := range b {
			change := above[j]
			if x != y {
				change++
			}
			row[j+1] = min(change, above[j+1]+1, row[j]+1)
		}
		above, row = row, above
	}
	return float64(above[len(b)]) / float64(max(len(a), len(b)))
}

// clusters are the connected components of what near connects, members and clusters in the order given.
func clusters(n int, near func(i, j int) bool) [][]int {
	of := make([]int, n)
	for i := range of {
		of[i] = i
	}
	for i := range n {
		for j := range i {
			if of[i] != of[j] && near(i, j) {
				from, to := max(of[i], of[j]), min(of[i], of[j])
				for k := range of {
					if of[k] == from {
						of[k] = to
					}
				}
			}
		}
	}
	var out [][]int
	at := map[int]int{}
	for i, c := range of {
		if _, known := at[c]; !known {
			at[c] = len(out)
			out = append(out, nil)
		}
		out[at[c]] = append(out[at[c]], i)
	}
	return out
}

// families are the members by structure: equal ones together, and with loose above 0 those whose sequences of operators are that close.
func families(graphs []*graph, loose float64) [][]string {
	structures := make([]Digest, len(graphs))
	sequences := make([][]string, len(graphs))
	for i, g := range graphs {
		structures[i] = g.structure()
		if loose > 0 {
			sequences[i] = g.operators()
		}
	}
	groups := clusters(len(graphs), func(i, j int) bool {
		return structures[i] == structures[j] || loose > 0 && distance(sequences[i], sequences[j]) <= loose
	})
	var names [][]string
	for _, c := range groups {
		var family []string
		for _, i := range c {
			family = append(family, graphs[i].Name)
		}
		names = append(names, family)
	}
	slices.SortStableFunc(names, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return names
}
