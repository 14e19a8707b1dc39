// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
)

// Staying proposes a plan of before for the world as it is now: without what is gone,
// and with nothing added. Models that have no place in it come with the reason.
type Staying struct {
	Before *policy.Plan
	Why    string
}

// Plan implements Planner.
func (p Staying) Plan(_ context.Context, s *policy.Snapshot) (*policy.Plan, error) {
	return Fit(p.Before, s, p.Why), nil
}

// Fit is a copy of a plan without the models and GPUs that a snapshot does not have.
// Models that have no place in it are unplaced, for the given reason.
func Fit(before *policy.Plan, s *policy.Snapshot, why string) *policy.Plan {
	index := policy.NewIndex(s)
	p := proto.CloneOf(before)
	if p == nil {
		p = &policy.Plan{}
	}
	p.SnapshotRevision = s.GetRevision()
	gone := func(model string) bool { return index.Model(model) == nil && p.Recipe(model) == nil }
	p.Partitions = slices.DeleteFunc(p.Partitions, func(part *policy.Partition) bool {
		if gpu := index.GPUOf(part); !part.OnCPU() && (gpu == nil || gpu.GetUnavailable()) {
			return true
		}
		had := len(part.Instances)
		part.Instances = slices.DeleteFunc(part.Instances, func(in *policy.Instance) bool {
			return slices.ContainsFunc(p.ModelsOf(in), func(m string) bool { return index.Model(m) == nil })
		})
		return had > 0 && len(part.Instances) == 0
	})
	p.Dispatch = slices.DeleteFunc(p.Dispatch, func(d *policy.Dispatch) bool { return gone(d.GetModel()) })
	p.Predictions = slices.DeleteFunc(p.Predictions, func(d *policy.Prediction) bool { return gone(d.GetModel()) })
	p.Reasons = slices.DeleteFunc(p.Reasons, func(r *policy.Reason) bool { return gone(r.GetModel()) })
	explained := map[string]bool{}
	p.Unplaced = slices.DeleteFunc(p.Unplaced, func(u *policy.Unplaced) bool {
		explained[u.GetModel()] = true
		return gone(u.GetModel()) || len(p.PartitionsOf(u.GetModel())) > 0
	})
	for _, m := range s.GetModels() {
		if !explained[m.GetName()] && len(p.PartitionsOf(m.GetName())) == 0 {
			p.Unplaced = append(p.Unplaced, &policy.Unplaced{Model: m.GetName(), Text: why})
		}
	}
	return p
}
