// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch

import (
	"context"
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
)

// divided are further beginnings, at most so many, for pipelines: the search is over the divisions of their SLOs, too. What is begun with under the
// host's division, in proportion to the steps' times, is begun with under others: by the GPUs that steps take (Nexus), by phases (gpulet), and with all of the
// SLO for every step. Evaluations know no division: the deadlines of steps follow from the present, as they do when requests are served.
func (w *world) divided(ctx context.Context, others []policy.Policy, known []*candidate, most int) (all []*candidate) {
	for _, way := range []struct {
		name  string
		split func(*policy.Pipeline) ([]float64, bool)
	}{
		{"by the GPUs that steps take", func(p *policy.Pipeline) ([]float64, bool) {
			return p.Split(w.s.Takes, func(step int, us float64) float64 { return w.keepsBusy(p, step, us) })
		}},
		{"by phases", func(p *policy.Pipeline) ([]float64, bool) { return p.Phases(w.s.Takes, nil) }},
		{"not at all", func(p *policy.Pipeline) ([]float64, bool) {
			return slices.Repeat([]float64{float64(p.GetSloUs())}, len(p.GetSteps())), true
		}},
	} {
		slos := w.s.StepSLOs(way.split, nil)
		if len(slos) == 0 || most <= 0 {
			continue
		}
		other := w.s.WithSLOs(slos)
		in := newWorld(other, w.budget)
		in.smaller = w.smaller
		for _, c := range in.beginnings(ctx, others) {
			again := func(k *candidate) bool { return same(k.plan, c.plan) }
			if !c.built || len(all) == most || slices.ContainsFunc(known, again) || slices.ContainsFunc(all, again) {
				continue
			}
			c.from += ", with SLOs divided " + way.name
			all = append(all, c)
		}
	}
	return all
}

// keepsBusy is how many GPUs of the type on which it is fastest a step of a pipeline keeps busy that has so much time: as long for a batch as for the wait for it.
func (w *world) keepsBusy(p *policy.Pipeline, step int, us float64) float64 {
	least := math.Inf(1)
	m := w.x.Model(p.GetSteps()[step].GetModel())
	for _, g := range w.x.GPUs() {
		profile := w.x.UsableProfile(m.GetName(), g.GetType())
		if g.GetUnavailable() || profile == nil {
			continue
		}
		if batch := profile.MaxBatch(100, max(1, m.GetMaxBatchSize()), us/2); batch > 0 {
			l, _ := profile.Latency(batch, 100)
			least = min(least, p.RowRate(step)*l/float64(batch)/1e6)
		}
	}
	return least
}
