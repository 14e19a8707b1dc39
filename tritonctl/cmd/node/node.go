// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package node groups the commands `tritonctl node ...`.
package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/conditions"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds `tritonctl node`.
func New(f *factory.Factory) *cobra.Command {
	c := &cobra.Command{Use: "node", Short: "Machines, or nodes of a cluster, with their GPUs"}
	ls := factory.Watchable(f, &cobra.Command{Use: "ls", Short: "List the nodes that have GPUs", Args: cobra.NoArgs}, func([]string) factory.Ask[[]Node] {
		return func(conch *client.Client, ctx context.Context) ([]Node, error) {
			gpus, err := conch.GPUs(ctx)
			return nodes(gpus), err
		}
	}, func([]string) factory.Live[[]Node] {
		return factory.Live[[]Node]{Topics: []api.Topic{api.TopicGPUs}, Answer: func(s client.State) ([]Node, bool) { return nodes(s.GPUs), true }}
	}, draw)
	c.AddCommand(ls,
		order(f, api.CordonRequest{}, &cobra.Command{Use: "cordon NODE", Short: "Keep new partitions and models off the GPUs of a node", Long: `cordon is tritonctl gpu cordon of each of the node's GPUs: what is there stays. In a cluster,
kubectl cordon has what is there leave, too, and keeps other Pods off.`}),
		order(f, api.CordonRequest{Undo: true}, &cobra.Command{Use: "uncordon NODE", Short: "Give the GPUs of a node back to the policy"}))
	return c
}

// Node is a machine with GPUs.
type Node struct {
	Name string `json:"name"`
	// GPUs are their ids, Available those that plans may use. The processors are none.
	GPUs      []string `json:"gpus"`
	Available []string `json:"available"`
	Types     []string `json:"types"`
	// Partitions of the serving plan, and how many of them have a server that is up.
	Partitions int      `json:"partitions"`
	Up         int      `json:"up"`
	Models     []string `json:"models"`
	// State says why GPUs are not available; "in use" where all are.
	State  string `json:"state"`
	states []string
}

// add counts a GPU.
func (n *Node) add(g api.GPU) {
	n.GPUs = append(n.GPUs, g.ID)
	if state := conditions.GPU(g); state == conditions.InUse {
		n.Available = append(n.Available, g.ID)
	} else if !slices.Contains(n.states, state) {
		n.states = append(n.states, state)
	}
	if !slices.Contains(n.Types, g.Type) {
		n.Types = append(n.Types, g.Type)
	}
}

// nodes are those of GPUs, in the order in which they come.
func nodes(gpus []api.GPU) []Node {
	all := []Node{}
	for _, g := range gpus {
		i := slices.IndexFunc(all, func(n Node) bool { return n.Name == g.Node })
		if i < 0 {
			i = len(all)
			all = append(all, Node{Name: g.Node, GPUs: []string{}, Available: []string{}, Types: []string{}, Models: []string{}})
		}
		n := &all[i]
		if g.ID != cpu {
			n.add(g)
		}
		for _, p := range g.Partitions {
			n.Partitions++
			if p.Up {
				n.Up++
			}
			for _, m := range p.Models {
				if !slices.Contains(n.Models, m) {
					n.Models = append(n.Models, m)
				}
			}
		}
	}
	for i := range all {
		all[i].State = cmp.Or(strings.Join(all[i].states, ", "), conditions.InUse)
		slices.Sort(all[i].Models)
	}
	return all
}

func draw(t *output.Table, all []Node) {
	t.Row("NODE", "GPUS", "AVAILABLE", "TYPE", "STATE", "PARTITIONS", "UP", "MODELS")
	for _, n := range all {
		t.Row(n.Name, strconv.Itoa(len(n.GPUs)), strconv.Itoa(len(n.Available)), strings.Join(n.Types, ","), n.State, strconv.Itoa(n.Partitions), strconv.Itoa(n.Up), strings.Join(n.Models, ","))
	}
}

// order builds cordon and uncordon.
func order(f *factory.Factory, r api.CordonRequest, c *cobra.Command) *cobra.Command {
	c.Args = cobra.ExactArgs(1)
	c.ValidArgsFunction = factory.Complete(f, (*client.Client).GPUs, func(g api.GPU) string { return g.Node })
	c.Flags().StringVar(&r.Reason, "reason", "", "the reason, for the event log and other operators")
	c.RunE = func(c *cobra.Command, args []string) error {
		r.Author = f.Author
		ask := func(conch *client.Client, ctx context.Context) ([]Node, error) {
			gpus, err := conch.GPUs(ctx)
			if err != nil {
				return nil, err
			}
			all := nodes(gpus)
			i := slices.IndexFunc(all, func(n Node) bool { return n.Name == args[0] })
			if i < 0 {
				var names []string
				for _, n := range all {
					names = append(names, n.Name)
				}
				return nil, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("no node is called %q; there are %s", args[0], strings.Join(names, ", "))}
			}
			for _, r.GPU = range all[i].GPUs {
				if _, err := conch.Cordon(ctx, r); err != nil {
					return nil, fmt.Errorf("GPU %s of node %s: %w", r.GPU, args[0], err)
				}
			}
			gpus, err = conch.GPUs(ctx)
			return slices.DeleteFunc(nodes(gpus), func(n Node) bool { return n.Name != args[0] }), err
		}
		return factory.Show(c.Context(), f, ask, draw)
	}
	return c
}

// cpu is the id under which a node's processors are listed among its GPUs.
const cpu = "cpu"
