// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package nexus

import (
	"math"

	"github.com/conch-serving/conch/plugins/policy"
)

// split divides the SLOs of pipelines among their models so that the load takes the fewest GPUs, each kept busy (section 6.2 of Nexus' paper). A model has
// the least of what its pipelines leave it, and at most its own SLO where it is asked for by itself, too. A pipeline whose SLO does not suffice leaves its
// models those that the host derived.
func (p *packer) split() {
	s := p.f.Snapshot()
	p.slos = s.StepSLOs(func(pipe *policy.Pipeline) ([]float64, bool) {
		return pipe.Split(s.Takes, func(step int, us float64) float64 { return p.gpus(pipe, step, us) })
	}, func(pipe *policy.Pipeline, step int, us float64) {
		p.f.Why(pipe.GetSteps()[step].GetModel(), "pipeline %s leaves it %.4g of %.4g ms", pipe.GetName(), us/1e3, float64(pipe.GetSloUs())/1e3)
	})
}

// gpus is how many of the GPUs on which it is fastest a step keeps busy that has so many microseconds.
func (p *packer) gpus(pipe *policy.Pipeline, step int, us float64) float64 {
	least, name := math.Inf(1), pipe.GetSteps()[step].GetModel()
	types := make(map[string]bool) // that were looked at
	for _, h := range p.f.Hosts {
		if h.OnCPU() || types[h.Type] || p.f.UsableProfile(name, h.Type) == nil {
			continue
		}
		types[h.Type] = true
		job := p.job(name, h, pipe.RowRate(step))
		job.SLO = us
		if _, most, ok := job.Saturated(); ok {
			least = min(least, job.Rate/most)
		}
	}
	return least
}
