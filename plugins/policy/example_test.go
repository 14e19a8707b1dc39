// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"fmt"

	"github.com/conch-serving/conch/plugins/policy"
)

// mine is the policy of README.md.
type mine struct{}

func (mine) Describe(context.Context) (*policy.Description, error) {
	return &policy.Description{Name: "mine", Version: "0.1.0", Summary: "All models on the first GPU."}, nil
}

func (mine) Plan(_ context.Context, s *policy.Snapshot, _ policy.Host) (*policy.Plan, error) {
	plan := &policy.Plan{SnapshotRevision: s.GetRevision()}
	x := policy.NewIndex(s)
	if len(x.GPUs()) == 0 {
		for _, m := range s.GetModels() {
			var tally policy.Tally
			plan.Unplaced = append(plan.Unplaced, tally.Unplaced(m.GetName()))
		}
		return plan, nil
	}
	gpu := x.GPUs()[0]
	only := &policy.Partition{Id: gpu.GetId(), Node: gpu.Node, Gpus: []string{gpu.GetId()}, ThreadPercentage: 100}
	for _, m := range s.GetModels() {
		only.Instances = append(only.Instances, policy.ModelInstance(m.GetName(), 0))
	}
	plan.Partitions = append(plan.Partitions, only)
	return plan, nil
}

// A policy's main function is policy.Serve(mine{}); its tests call it directly.
func ExamplePolicy() {
	plan, err := mine{}.Plan(context.Background(), &policy.Snapshot{
		Revision: 3,
		Nodes:    []*policy.Node{{Name: "box", Gpus: []*policy.GPU{{Id: "gpu0"}}}},
		Models:   []*policy.Model{{Name: "bert"}, {Name: "resnet50"}},
	}, policy.NoEvaluation{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range plan.GetPartitions() {
		for _, in := range p.GetInstances() {
			fmt.Println(p.GetId(), in.GetModel())
		}
	}
	// Output:
	// gpu0 bert
	// gpu0 resnet50
}
