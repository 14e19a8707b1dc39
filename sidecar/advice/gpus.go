// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advice

import "github.com/conch-serving/conch/plugins/policy"

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
			id := g.GetId()
			if len(nodes) > 1 {
				id = n.GetName() + "/" + id
			}
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
