// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Single proposes the plan in force with one model more, and with what that model
// calls and what calls it: where Policy wants them, as far as the partitions of the
// plan in force are those of its answer, else wherever they fit. Nothing else moves
// or leaves, but for models that load on demand where there is no room otherwise.
type Single struct {
	Current *policy.Plan
	Model   string
	Policy  Planner
	// Cordoned are GPUs that take nothing new, by id; Policy must know of them itself.
	Cordoned map[string]bool
}

// Plan implements Planner.
func (p Single) Plan(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
	index := policy.NewIndex(s)
	next := Fit(p.Current, s, "it is not in the plan in force")
	missing := p.missing(index, next)
	if len(missing) == 0 {
		return next, nil
	}
	// Without an answer the model takes what is free.
	answer, failed := p.Policy.Plan(ctx, s)
	if failed != nil {
		answer = &policy.Plan{}
	}
	for _, model := range missing {
		for _, part := range answer.PartitionsOf(model) {
			if at := room(next, part); at != nil {
				at.Instances = append(at.Instances, instance(index, part, model))
			}
		}
	}
	adopt(next, answer, missing)
	if !fits(s, next) {
		withoutDemanded(index, next, answer, missing)
	}
	if fits(s, next) && placed(next, missing) {
		return next, nil
	}
	// What the policy would have to move stays: the model takes what is free.
	free := Fit(p.Current, s, "it is not in the plan in force")
	for _, part := range free.GetPartitions() {
		if p.Cordoned[part.GPU()] {
			continue
		}
		before := part.Instances
		for _, model := range missing {
			if !part.Has(model) {
				part.Instances = append(slices.Clip(part.Instances), policy.ModelInstance(model, index.Model(model).GetMaxBatchSize()))
			}
		}
		adopt(free, answer, missing)
		if fits(s, free) && placed(free, missing) {
			return free, nil
		}
		part.Instances = before
	}
	if failed != nil {
		return nil, failed
	}
	return next, nil // its violations, or reasons, say why there is no place
}

// instance is how a partition has a model.
func instance(index *policy.Index, part *policy.Partition, model string) *policy.Instance {
	for _, in := range part.GetInstances() {
		if in.GetModel() == model {
			return proto.CloneOf(in)
		}
	}
	return policy.ModelInstance(model, index.Model(model).GetMaxBatchSize())
}

// missing are the models that have to come: the one that is ordered, those that it
// calls, and those that call it, as far as they have no place.
func (p Single) missing(index *policy.Index, next *policy.Plan) []string {
	want := map[string]bool{p.Model: true}
	for _, m := range index.Requires(p.Model) {
		want[m.GetName()] = true
	}
	for _, m := range index.Snapshot().GetModels() {
		if slices.Contains(m.GetDependsOn(), p.Model) {
			want[m.GetName()] = true
		}
	}
	maps.DeleteFunc(want, func(model string, _ bool) bool { return len(next.PartitionsOf(model)) > 0 })
	return slices.Sorted(maps.Keys(want))
}

// room is the partition of a plan in which an instance can be that another plan has
// in part: the one of the same id, or a new one where its GPU has none yet.
func room(next *policy.Plan, part *policy.Partition) *policy.Partition {
	for _, q := range next.GetPartitions() {
		if q.GetId() == part.GetId() && q.On(part.GetNode(), part.GPU()) && q.GetThreadPercentage() == part.GetThreadPercentage() && q.GetMemoryLimitBytes() == part.GetMemoryLimitBytes() {
			return q
		}
		if q.GetId() == part.GetId() || q.On(part.GetNode(), part.GPU()) {
			return nil
		}
	}
	fresh := proto.CloneOf(part)
	fresh.Instances, fresh.Rank = nil, uint32(len(next.GetPartitions()))
	next.Partitions = append(next.Partitions, fresh)
	return fresh
}

// adopt takes over what a plan says of models besides their places.
func adopt(next, answer *policy.Plan, models []string) {
	for _, model := range models {
		next.Dispatch = slices.DeleteFunc(next.Dispatch, func(d *policy.Dispatch) bool { return d.GetModel() == model })
		for _, d := range answer.GetDispatch() {
			if d.GetModel() == model {
				next.Dispatch = append(next.Dispatch, proto.CloneOf(d))
			}
		}
		if len(next.PartitionsOf(model)) > 0 {
			next.Unplaced = slices.DeleteFunc(next.Unplaced, func(u *policy.Unplaced) bool { return u.GetModel() == model })
		}
	}
}

// withoutDemanded takes out the models that load on demand and that the policy takes
// out too.
func withoutDemanded(index *policy.Index, next, answer *policy.Plan, keep []string) {
	for _, part := range next.GetPartitions() {
		part.Instances = slices.DeleteFunc(part.Instances, func(in *policy.Instance) bool {
			m := index.Model(in.GetModel())
			return m.GetOnDemand() && m.GetRequestsUnderWay() == 0 && !slices.Contains(keep, in.GetModel()) && len(answer.PartitionsOf(in.GetModel())) == 0
		})
	}
	for _, m := range index.Snapshot().GetModels() {
		gone := len(next.PartitionsOf(m.GetName())) == 0
		known := slices.ContainsFunc(next.Unplaced, func(u *policy.Unplaced) bool { return u.GetModel() == m.GetName() })
		if gone && !known {
			next.Unplaced = append(next.Unplaced, &policy.Unplaced{Model: m.GetName(), Text: "it made room for a model that was ordered"})
		}
		if gone {
			next.Dispatch = slices.DeleteFunc(next.Dispatch, func(d *policy.Dispatch) bool { return d.GetModel() == m.GetName() })
		}
	}
}

// clampBatches keeps batches within what the models, whose files may be others now,
// allow.
func clampBatches(index *policy.Index, p *policy.Plan) {
	for _, part := range p.GetPartitions() {
		for _, in := range part.GetInstances() {
			if m := index.Model(in.GetModel()); m != nil {
				in.MaxBatch = min(in.GetMaxBatch(), max(1, m.GetMaxBatchSize()))
			}
		}
	}
}

func fits(s *policy.Snapshot, p *policy.Plan) bool { return len(plan.Validate(s, p)) == 0 }

func placed(p *policy.Plan, models []string) bool {
	return !slices.ContainsFunc(models, func(model string) bool { return len(p.PartitionsOf(model)) == 0 })
}
