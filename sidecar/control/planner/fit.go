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

// tidy takes out what a plan says of partitions and places that it no longer has, and of apps that the snapshot does not
// have.
func tidy(s *policy.Snapshot, p *policy.Plan) {
	gone := func(partition string) bool {
		return !slices.ContainsFunc(p.GetPartitions(), func(part *policy.Partition) bool { return part.GetId() == partition })
	}
	p.Reasons = slices.DeleteFunc(p.Reasons, func(r *policy.Reason) bool { return r.GetPartition() != "" && gone(r.GetPartition()) })
	for _, c := range p.GetSubClusters() {
		c.Partitions = slices.DeleteFunc(c.Partitions, gone)
	}
	p.AppRoutes = slices.DeleteFunc(p.AppRoutes, func(r *policy.AppRoute) bool {
		i := slices.IndexFunc(s.GetApps(), func(a *policy.App) bool { return a.GetName() == r.GetApp() })
		if i < 0 {
			return true
		}
		r.Variants = slices.DeleteFunc(r.Variants, func(w *policy.WeightedVariant) bool {
			is := slices.ContainsFunc(s.GetApps()[i].GetVariants(), func(v *policy.Variant) bool { return v.GetModel() == w.GetModel() })
			return !is || len(p.PartitionsOf(w.GetModel())) == 0
		})
		return len(r.Variants) == 0
	})
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
	p.Reasons = slices.DeleteFunc(p.Reasons, func(r *policy.Reason) bool { return r.GetModel() != "" && gone(r.GetModel()) })
	for _, c := range p.GetSubClusters() {
		c.Models = slices.DeleteFunc(c.Models, gone)
	}
	clampBatches(index, p)
	tidy(s, p)
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
