// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
)

// GPUs says of the GPUs of nodes which serve under a plan, and which have no
// partition in it. A GPU whose partitions are all down, or that is unavailable, is
// neither: it is no capacity, and giving it back is no saving that can be planned
// with.
func GPUs(nodes []*policy.Node, p *policy.Plan, measured []*policy.PartitionStatistics) (serving []GPU, spare []string) {
	statistics := make(map[string]*policy.PartitionStatistics, len(measured))
	for _, m := range measured {
		statistics[m.GetPartition()] = m
	}
	for _, n := range nodes {
		for _, g := range n.GetGpus() {
			id := name(nodes, n, g)
			gpu, has := GPU{ID: id, Rank: ^uint32(0)}, false
			var shares, idle float64
			for _, part := range p.GetPartitions() {
				if part.GPU() != g.GetId() || part.GetNode() != "" && part.GetNode() != n.GetName() {
					continue
				}
				has = true
				m := statistics[part.GetId()]
				if !m.GetUp() {
					continue
				}
				share := float64(max(1, part.GetThreadPercentage()))
				shares += share
				idle += share * m.GetIdleShare()
				gpu.Rank = min(gpu.Rank, part.GetRank())
			}
			switch {
			case g.GetUnavailable():
			case !has:
				spare = append(spare, id)
			case shares > 0:
				gpu.IdleShare = idle / shares
				serving = append(serving, gpu)
			}
		}
	}
	return serving, spare
}

// name is a GPU's id, with its node's where there are several: in a cluster the id begins with that.
func name(nodes []*policy.Node, n *policy.Node, g *policy.GPU) string {
	if len(nodes) > 1 && !strings.HasPrefix(g.GetId(), n.GetName()+".") {
		return n.GetName() + "/" + g.GetId()
	}
	return g.GetId()
}

// Wanted is how many GPUs of each type the load wants, as an autoscaler of nodes asks: those that serve or could, less those to give back, and those to add.
// What is to be added is of the type of which most serve. Without advice it is nil.
func Wanted(a *policy.Advice, nodes []*policy.Node, w Window) map[string]int {
	if a == nil {
		return nil
	}
	types, wanted, serving := map[string]string{}, map[string]int{}, map[string]int{}
	for _, n := range nodes {
		for _, g := range n.GetGpus() {
			types[name(nodes, n, g)] = g.GetType()
		}
	}
	most := ""
	for _, g := range w.GPUs {
		t := types[g.ID]
		wanted[t]++
		serving[t]++
		if n := serving[t]; n > serving[most] || n == serving[most] && t < most {
			most = t
		}
	}
	for _, id := range w.Spare {
		wanted[types[id]]++
	}
	for _, id := range a.GetRelease() {
		wanted[types[id]]--
	}
	wanted[most] += int(a.GetAllocateGpus())
	return wanted
}
