// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package evaluate

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
)

// AtOnce makes partitions that run several batches at once (GPU.executions) as many partitions that run one each, on as many GPUs: the simulator's run one
// at a time. How often each model may be executed at once is not in a snapshot: it is as often as its partition executes. Of says which partition of the
// plan each of those is that were added.
func AtOnce(s *policy.Snapshot, p *policy.Plan, x *policy.Index) (of map[string]string) {
	of = map[string]string{}
	copied := map[*policy.GPU]int{} // how often
	name := func(id string, i int) string { return fmt.Sprintf("%s, execution %d", id, i) }
	for _, part := range p.GetPartitions() {
		g := x.GPUOf(part)
		for i := 1; i < x.AtOnce(part); i++ {
			also := proto.CloneOf(part)
			also.Id, also.Gpus = name(part.GetId(), i), []string{name(g.GetId(), i)}
			of[also.Id] = part.GetId()
			p.Partitions = append(p.Partitions, also)
			copied[g] = i
		}
	}
	if len(copied) == 0 {
		return of
	}
	nodes := make([]*policy.Node, len(s.GetNodes()))
	for n, node := range s.GetNodes() {
		nodes[n] = &policy.Node{Name: node.GetName(), Gpus: node.GetGpus(), Cpu: node.GetCpu()}
		for _, g := range node.GetGpus() {
			for i := 1; i <= copied[g]; i++ {
				also := proto.CloneOf(g)
				also.Id = name(g.GetId(), i)
				nodes[n].Gpus = append(nodes[n].Gpus[:len(nodes[n].Gpus):len(nodes[n].Gpus)], also)
			}
		}
	}
	s.Nodes = nodes
	return of
}
