// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
)

// Reasons why a GPU is unavailable (GPU.unavailable_reason of the contract).
const (
	Cordoned = "cordoned"
	Drained  = "drained"
)

// Cordoning proposes what p proposes, with nothing new on GPUs that are cordoned and
// still have partitions: what the plan in force has there stays as far as the proposal
// wants it. A drained GPU, and one that is cordoned and empty, is unavailable in the
// snapshot, and no plan may use it.
type Cordoning struct {
	Planner
	// GPUs are the ids of those that are cordoned.
	GPUs    map[string]bool
	Current *policy.Plan
}

// Plan implements Planner.
func (c Cordoning) Plan(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
	answer, err := c.Planner.Plan(ctx, s)
	if err != nil || len(c.GPUs) == 0 {
		return answer, err
	}
	p := proto.CloneOf(answer)
	p.Partitions = nil
	for _, part := range answer.GetPartitions() {
		if !c.GPUs[part.GPU()] {
			p.Partitions = append(p.Partitions, part)
		} else if kept := c.kept(part, answer); kept != nil {
			p.Partitions = append(p.Partitions, kept)
		}
	}
	tidy(s, p)
	for _, m := range s.GetModels() {
		if len(answer.PartitionsOf(m.GetName())) > 0 && len(p.PartitionsOf(m.GetName())) == 0 {
			p.Unplaced = append(p.Unplaced, &policy.Unplaced{Model: m.GetName(), Text: "the policy wants it on a GPU that is cordoned, and nowhere else"})
		}
	}
	return p, nil
}

// kept is the partition of the plan in force in the place of a proposed one, with
// those of its models that are proposed for its GPU; nil where it has none.
func (c Cordoning) kept(proposed *policy.Partition, answer *policy.Plan) *policy.Partition {
	i := slices.IndexFunc(c.Current.GetPartitions(), func(was *policy.Partition) bool {
		return was.GetId() == proposed.GetId() && was.On(proposed.GetNode(), proposed.GPU())
	})
	if i < 0 {
		return nil
	}
	kept := proto.CloneOf(c.Current.GetPartitions()[i])
	kept.Rank = proposed.GetRank()
	kept.Instances = slices.DeleteFunc(kept.Instances, func(in *policy.Instance) bool {
		return !slices.ContainsFunc(answer.GetPartitions(), func(part *policy.Partition) bool {
			return part.On(kept.GetNode(), kept.GPU()) && part.Has(in.GetModel())
		})
	})
	if len(kept.Instances) == 0 {
		return nil
	}
	return kept
}
