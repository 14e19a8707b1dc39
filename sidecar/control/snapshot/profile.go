// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"cmp"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/grid"
)

// Grids are the profiles that files declare, by model.
type Grids map[string][]grid.Profile

// Complete joins what is observed of models on GPU types with what files declare, and with what is estimated where no file declares anything. Where
// nothing usable is observed the grid is the profile. Where something is, the observed points stay; the shares that were not observed come from the grid, corrected by how the two
// differ at the share that was; and creq, mreq, bandwidth and L2, which traffic does not teach, are the grid's, or the estimate's where the grid
// does not have them. The result is sorted by model and GPU type.
func Complete(observed []*policy.Profile, grids, estimated Grids, models []*policy.Model, gpuTypes []string) []*policy.Profile {
	type key struct{ model, gpuType string }
	all := make(map[key]*policy.Profile, len(observed))
	for _, p := range observed {
		all[key{p.GetModel(), p.GetGpuType()}] = p
	}
	for _, m := range models {
		for _, gpuType := range gpuTypes {
			declared, isDeclared := grid.For(grids[m.GetName()], m.GetName(), gpuType)
			guess, isEstimated := grid.For(estimated[m.GetName()], m.GetName(), gpuType)
			k := key{m.GetName(), gpuType}
			var g *policy.Profile
			switch {
			case isDeclared:
				g = declared.Policy(k.model, k.gpuType)
				if isEstimated {
					fill(g, guess.Policy(k.model, k.gpuType))
				}
			case isEstimated:
				g = guess.Policy(k.model, k.gpuType)
			default:
				continue
			}
			if seen := all[k]; seen.GetUsable() && len(seen.GetPoints()) > 0 {
				g = join(seen, g)
			}
			all[k] = g
		}
	}
	list := make([]*policy.Profile, 0, len(all))
	for _, p := range all {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *policy.Profile) int {
		return cmp.Or(cmp.Compare(a.GetModel(), b.GetModel()), cmp.Compare(a.GetGpuType(), b.GetGpuType()))
	})
	return list
}

func join(seen, declared *policy.Profile) *policy.Profile {
	p := &policy.Profile{
		Model: seen.GetModel(), GpuType: seen.GetGpuType(), Source: seen.GetSource(), Usable: true, Interfered: seen.GetInterfered(),
	}
	shares := make(map[uint32]bool)
	// at is the largest share that was observed.
	var at uint32
	for _, q := range seen.GetPoints() {
		shares[q.GetThreadPercentage()] = true
		at = max(at, q.GetThreadPercentage())
		point := &policy.ProfilePoint{
			Batch: q.GetBatch(), ThreadPercentage: q.GetThreadPercentage(), LatencyUs: q.GetLatencyUs(), LatencyUpperUs: q.GetLatencyUpperUs(),
			Observations: q.GetObservations(),
		}
		b, s := q.GetBatch(), q.GetThreadPercentage()
		point.Creq, point.Mreq = estimate(declared.Creq(b, s)), estimate(declared.Mreq(b, s))
		point.BandwidthUtilization, point.L2Utilization = estimate(declared.Bandwidth(b, s)), estimate(declared.L2(b, s))
		p.Points = append(p.Points, point)
	}
	for _, q := range declared.GetPoints() {
		if shares[q.GetThreadPercentage()] {
			continue
		}
		ratio := 1.0
		was, known := declared.Latency(q.GetBatch(), at)
		if is, ok := seen.Latency(q.GetBatch(), at); ok && known && was > 0 {
			ratio = is / was
		}
		p.Points = append(p.Points, &policy.ProfilePoint{
			Batch: q.GetBatch(), ThreadPercentage: q.GetThreadPercentage(),
			LatencyUs:      &policy.Estimate{Value: q.GetLatencyUs().GetValue() * ratio, ErrorBound: q.GetLatencyUs().GetErrorBound() * ratio},
			LatencyUpperUs: q.GetLatencyUpperUs() * ratio,
			Creq:           q.GetCreq(), Mreq: q.GetMreq(), BandwidthUtilization: q.GetBandwidthUtilization(), L2Utilization: q.GetL2Utilization(),
		})
	}
	slices.SortFunc(p.Points, func(a, b *policy.ProfilePoint) int {
		return cmp.Or(cmp.Compare(a.GetThreadPercentage(), b.GetThreadPercentage()), cmp.Compare(a.GetBatch(), b.GetBatch()))
	})
	return p
}

// fill gives a profile the requirements and utilisations that it lacks.
func fill(p, from *policy.Profile) {
	for _, q := range p.GetPoints() {
		b, s := q.GetBatch(), q.GetThreadPercentage()
		for _, field := range []struct {
			into **policy.Estimate
			from func(batch, share uint32) (float64, bool)
		}{{&q.Creq, from.Creq}, {&q.Mreq, from.Mreq}, {&q.BandwidthUtilization, from.Bandwidth}, {&q.L2Utilization, from.L2}} {
			if *field.into == nil {
				*field.into = estimate(field.from(b, s))
			}
		}
	}
}

func estimate(v float64, known bool) *policy.Estimate {
	if !known {
		return nil
	}
	return &policy.Estimate{Value: v}
}
