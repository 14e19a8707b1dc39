// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import "github.com/conch-serving/conch/plugins/policy"

// capacitySlack is what a planned rate may exceed the profile by before it is a
// violation: rates and profiles are measured, and rounding is no lie.
const capacitySlack = 1.02

// capacity checks planned rates against what profiles allow: a partition runs
// one batch at a time, or as many as its GPU's executions, so that the time of all
// its planned rows, each at the cheapest batch that its SLO allows, has to fit.
func (v *validator) capacity() {
	slos := longestSLOs(v.x.Snapshot())
	for _, part := range v.p.GetPartitions() {
		busy, known := 0.0, false
		for _, in := range part.GetInstances() {
			if in.GetRate() <= 0 {
				continue
			}
			if per, ok := v.perRow(part, in, slos[in.GetModel()]); ok {
				busy += in.GetRate() * per / 1e6
				known = true
			}
		}
		busy /= float64(v.x.AtOnce(part))
		if known && busy > capacitySlack {
			v.add(CodeCapacity, part.GetId(), "its planned rates need %.2f of its time, by the profiles at %d%% of a %s", busy, part.GetThreadPercentage(), v.x.TypeOf(part))
		}
	}
}

// perRow is the least microseconds that a row of the instance takes there, with
// a batch that meets the SLO in microseconds; false where no usable profile says so.
func (v *validator) perRow(part *policy.Partition, in *policy.Instance, slo int64) (us float64, ok bool) {
	name := in.GetModel()
	m := v.x.Model(name)
	profile := v.x.UsableProfile(name, v.x.TypeOf(part))
	if m == nil || profile == nil {
		return 0, false
	}
	share := shareOf(part, in)
	limit := max(1, m.GetMaxBatchSize())
	if own := in.GetMaxBatch(); own > 0 {
		limit = min(limit, own)
	}
	if slo > 0 {
		limit = max(1, profile.MaxBatch(share, limit, float64(slo)))
	}
	// Between two batches of the grid l is linear in b, so that l/b is least at one of them. A model may allow millions of rows: not all sizes
	// are tried.
	best := 0.0
	consider := func(b uint32) {
		if l, known := profile.Latency(b, share); known && b <= limit {
			if per := l / float64(b); best == 0 || per < best {
				best = per
			}
		}
	}
	consider(1)
	consider(limit)
	for _, point := range profile.GetPoints() {
		consider(point.GetBatch())
	}
	return best, best > 0
}

// longestSLOs are the longest that a request of each model may take, in microseconds: a step of a pipeline may take all that its pipeline leaves it, which can be more
// than the SLO of those who ask for the model by its name. Models without an SLO are left out.
func longestSLOs(s *policy.Snapshot) map[string]int64 {
	longest := make(map[string]int64, len(s.GetModels()))
	for _, m := range s.GetModels() {
		if m.GetSloUs() > 0 {
			longest[m.GetName()] = m.GetSloUs()
		}
	}
	for _, p := range s.GetPipelines() {
		if p.GetRate() <= 0 {
			continue
		}
		for _, step := range p.GetSteps() {
			if own, has := longest[step.GetModel()]; has {
				longest[step.GetModel()] = max(own, p.GetSloUs())
			}
		}
	}
	return longest
}
