// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx

import (
	"fmt"
	"slices"
)

// Order lists the graph's nodes so that each comes after those whose outputs it uses, its subgraphs' uses included: the order of the
// file where that is such an order already, which the format demands. Outer holds the names that enclosing graphs define. A cycle, a
// name defined twice and a name that nothing defines are errors.
func (g *Graph) Order(outer map[string]bool) ([]*Node, error) {
	defined := map[string]bool{"": true}
	for _, v := range g.Inputs {
		defined[v.Name] = true
	}
	for _, t := range g.Initializers {
		defined[t.Name] = true
	}
	producer := map[string]int{}
	for i, n := range g.Nodes {
		for _, name := range n.Outputs {
			if name == "" {
				continue
			}
			if _, twice := producer[name]; twice || defined[name] {
				return nil, fmt.Errorf("value %q is defined twice", name)
			}
			producer[name] = i
		}
	}
	uses := make([][]int, len(g.Nodes)) // producer -> its users
	waits := make([]int, len(g.Nodes))
	inOrder := true
	for i, n := range g.Nodes {
		for _, name := range n.Uses() {
			p, inside := producer[name]
			switch {
			case inside:
				uses[p] = append(uses[p], i)
				waits[i]++
				inOrder = inOrder && p < i
			case !defined[name] && !outer[name]:
				return nil, fmt.Errorf("node %d (%s %q) uses %q, which nothing defines", i, n.Op, n.Name, name)
			}
		}
	}
	for _, v := range g.Outputs {
		if _, inside := producer[v.Name]; !inside && !defined[v.Name] && !outer[v.Name] {
			return nil, fmt.Errorf("nothing defines the output %q", v.Name)
		}
	}
	if inOrder {
		return slices.Clone(g.Nodes), nil
	}
	var ready []int
	for i, w := range waits {
		if w == 0 {
			ready = append(ready, i)
		}
	}
	order := make([]*Node, 0, len(g.Nodes))
	for len(ready) > 0 {
		i := ready[0]
		ready = ready[1:]
		order = append(order, g.Nodes[i])
		for _, user := range uses[i] {
			if waits[user]--; waits[user] == 0 {
				ready = append(ready, user)
			}
		}
	}
	if len(order) < len(g.Nodes) {
		return nil, fmt.Errorf("the nodes form a cycle: %d of %d depend on themselves", len(g.Nodes)-len(order), len(g.Nodes))
	}
	return order, nil
}

// Uses are the names that the node reads, each once: its inputs, and what its subgraphs take from the graphs around them.
func (n *Node) Uses() []string {
	var names []string
	seen := map[string]bool{"": true}
	add := func(name string) {
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	for _, name := range n.Inputs {
		add(name)
	}
	for _, a := range n.Attributes {
		if a.Graph != nil {
			captured(a.Graph, add)
		}
		for _, g := range a.Graphs {
			captured(g, add)
		}
	}
	return names
}

// captured calls add for every name that the graph reads and does not define.
func captured(g *Graph, add func(string)) {
	defined := map[string]bool{}
	for _, v := range g.Inputs {
		defined[v.Name] = true
	}
	for _, t := range g.Initializers {
		defined[t.Name] = true
	}
	for _, n := range g.Nodes {
		for _, name := range n.Outputs {
			defined[name] = true
		}
	}
	for _, n := range g.Nodes {
		for _, name := range n.Uses() {
			if !defined[name] {
				add(name)
			}
		}
	}
	for _, v := range g.Outputs {
		if !defined[v.Name] {
			add(v.Name)
		}
	}
}
