// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"
)

// DividedBatch is the batch in proportion to whose latencies a pipeline's SLO is divided, where nothing better is known.
const DividedBatch = 8

// Check reports what no policy can plan with: a step of a model that there is not, or after a step that is not before it.
func (p *Pipeline) Check(models map[string]bool) error {
	if p.GetSloUs() <= 0 || len(p.GetSteps()) == 0 {
		return fmt.Errorf("%w: pipeline %s has %d steps and an SLO of %d us; it needs both", ErrNumber, p.GetName(), len(p.GetSteps()), p.GetSloUs())
	}
	if rows := p.GetRows(); !(rows >= 0) || math.IsInf(rows, 1) {
		return fmt.Errorf("%w: a request of pipeline %s has %v rows", ErrNumber, p.GetName(), rows)
	}
	for i, step := range p.GetSteps() {
		if !models[step.GetModel()] {
			return fmt.Errorf("%w: step %d of pipeline %s is of model %q, which there is not", ErrNumber, i, p.GetName(), step.GetModel())
		}
		if rows := step.GetRows(); !(rows >= 0) || math.IsInf(rows, 1) {
			return fmt.Errorf("%w: step %d of pipeline %s has %v rows for each of the request", ErrNumber, i, p.GetName(), rows)
		}
		if n := len(step.GetTakenBytes()); n > 0 && n != len(step.GetAfter()) {
			return fmt.Errorf("%w: step %d of pipeline %s takes bytes of %d steps, and comes after %d", ErrNumber, i, p.GetName(), n, len(step.GetAfter()))
		}
		for _, before := range step.GetAfter() {
			if int(before) >= i {
				return fmt.Errorf("%w: step %d of pipeline %s comes after step %d, which is not before it", ErrNumber, i, p.GetName(), before)
			}
		}
	}
	return nil
}

// RowRate is the rows per second that the pipeline asks of a step.
func (p *Pipeline) RowRate(step int) float64 {
	return p.GetRate() * cmp.Or(p.GetRows(), 1) * cmp.Or(p.GetSteps()[step].GetRows(), 1)
}

// requestRate is the requests per second that the pipeline sends to the model of a step. None of them is without rows.
func (p *Pipeline) requestRate(step int) float64 { return min(p.GetRate(), p.RowRate(step)) }

// Pipeline of a name; nil where there is none.
func (s *Snapshot) Pipeline(name string) *Pipeline {
	for _, p := range s.GetPipelines() {
		if p.GetName() == name {
			return p
		}
	}
	return nil
}

// Load adds what the pipeline asks of its steps' models to their rates.
func (p *Pipeline) Load(models map[string]*Model) {
	for i, step := range p.GetSteps() {
		if m := models[step.GetModel()]; m != nil {
			m.RowRate = max(m.GetRowRate(), m.GetRate()) // where it is not said, each of its requests has one row
			m.Rate += p.requestRate(i)
			m.RowRate += p.RowRate(i)
		}
	}
}

// Unload takes what pipelines ask of their steps' models out of the models' rates, where Load has put it.
func (s *Snapshot) Unload() {
	for _, m := range s.GetModels() {
		rate, rows := m.GetRate(), m.GetRowRate()
		for _, p := range s.GetPipelines() {
			for i, step := range p.GetSteps() {
				if step.GetModel() == m.GetName() {
					m.Rate -= p.requestRate(i)
					m.RowRate -= p.RowRate(i)
				}
			}
		}
		if m.Rate <= 1e-6*rate || m.RowRate <= 1e-6*rows { // what is left of equal sums is a rounding
			m.Rate, m.RowRate = 0, 0
		}
	}
}

// PipedRate is what pipelines ask of a model, in requests per second.
func (s *Snapshot) PipedRate(model string) (rate float64) {
	for _, p := range s.GetPipelines() {
		for i, step := range p.GetSteps() {
			if step.GetModel() == model {
				rate += p.requestRate(i)
			}
		}
	}
	return rate
}

// DirectRate is what clients ask of a model by its own name, in requests per second: its rate without what pipelines ask of it, and what came by the
// names of apps.
func (s *Snapshot) DirectRate(m *Model) float64 {
	own := m.OwnRate()
	direct := own - s.PipedRate(m.GetName())
	if direct <= 1e-6*own { // what is left of equal sums is a rounding
		return 0
	}
	return direct
}

// Divide divides the SLO among the steps in proportion to what they take, in whatever unit: part is each step's own, over the part that has passed when it
// is over. Along the longest path the parts sum up to 1.
func (p *Pipeline) Divide(takes func(model string) float64) (part, over []float64) {
	part, over = make([]float64, len(p.GetSteps())), make([]float64, len(p.GetSteps()))
	longest := 0.
	for i, s := range p.GetSteps() {
		part[i] = takes(s.GetModel())
		for _, before := range s.GetAfter() {
			over[i] = max(over[i], over[before])
		}
		over[i] += part[i]
		longest = max(longest, over[i])
	}
	for i := range part {
		part[i] /= longest
		over[i] /= longest
	}
	return part, over
}

// Phases divides the SLO among the phases of the pipeline, as gpulet's artifact does for its applications: a step is in the phase after the last of those
// that it takes results of, and has all the time of its phase. Shares say how the SLO is divided, phase by phase; nil: in proportion to the
// longest step of each, by takes. The result is each step's microseconds; false where shares are not one for each phase.
func (p *Pipeline) Phases(takes func(model string) float64, shares []float64) (us []float64, ok bool) {
	phase, longest := make([]int, len(p.GetSteps())), []float64(nil)
	for i, s := range p.GetSteps() {
		for _, before := range s.GetAfter() {
			phase[i] = max(phase[i], phase[before]+1)
		}
		if phase[i] == len(longest) {
			longest = append(longest, 0)
		}
		longest[phase[i]] = max(longest[phase[i]], takes(s.GetModel()))
	}
	if shares == nil {
		shares = longest
	}
	if len(shares) != len(longest) {
		return nil, false
	}
	whole := 0.
	for _, share := range shares {
		whole += share
	}
	us = make([]float64, len(phase))
	for i := range us {
		us[i] = float64(p.GetSloUs()) * shares[phase[i]] / whole
	}
	return us, true
}

// StepSLOs are the SLOs in microseconds of the models that pipelines with load ask for, if each step of them may take what split says: the least of what
// a model's pipelines leave it, and at most its own SLO where clients ask for it by its name, too. A pipeline for which split returns false leaves its
// models what they have. Each is called for what each step of a pipeline has; nil: for nothing.
func (s *Snapshot) StepSLOs(split func(p *Pipeline) (us []float64, ok bool), each func(p *Pipeline, step int, us float64)) map[string]float64 {
	slos, own := make(map[string]float64), make(map[string]float64)
	for _, m := range s.GetModels() {
		if m.GetSloUs() > 0 && s.DirectRate(m) > 0 {
			own[m.GetName()] = float64(m.GetSloUs())
		}
	}
	for _, p := range s.GetPipelines() {
		if p.GetRate() == 0 {
			continue // every division costs nothing
		}
		us, ok := split(p)
		if !ok {
			continue
		}
		for i, step := range p.GetSteps() {
			name, slo := step.GetModel(), us[i]
			if was, known := slos[name]; known {
				slo = min(slo, was)
			}
			if direct, asked := own[name]; asked {
				slo = min(slo, direct)
			}
			slos[name] = slo
			if each != nil {
				each(p, i, us[i])
			}
		}
	}
	return slos
}

// WithSLOs is a copy of the snapshot whose models have these SLOs, in microseconds; the others keep theirs.
func (s *Snapshot) WithSLOs(slos map[string]float64) *Snapshot {
	divided := &Snapshot{}
	proto.Merge(divided, s)
	for _, m := range divided.GetModels() {
		if us, ok := slos[m.GetName()]; ok {
			m.SloUs = int64(math.Ceil(us))
		}
	}
	return divided
}

// Takes is the time in microseconds of a batch of [DividedBatch] rows on a whole GPU of the type on which the model is fastest; 1 where no profile has it.
func (s *Snapshot) Takes(model string) float64 {
	least := math.Inf(1)
	for _, p := range s.GetProfiles() {
		if p.GetModel() == model {
			if us, ok := p.Latency(DividedBatch, 100); ok {
				least = min(least, us)
			}
		}
	}
	if math.IsInf(least, 1) {
		return 1
	}
	return least
}

// splitTicks is into how many pieces an SLO is cut to be split.
const splitTicks = 100

// Split divides the SLO among the steps so that their costs together are least: the dynamic programme over a query tree of Nexus (section 6.2 of its paper).
// cost is what a step costs with so many microseconds, infinite where they do not suffice; it must not grow with them. Nexus' queries are trees. A step
// that needs the results of several counts as the child of the one that ends last when the SLO is divided by Divide with the given times; the others are
// cut off at its start. The result is each step's microseconds; false where the SLO does not suffice.
func (p *Pipeline) Split(takes func(model string) float64, cost func(step int, us float64) float64) (us []float64, ok bool) {
	n := len(p.GetSteps())
	_, over := p.Divide(takes)
	children, roots := make([][]int, n), []int(nil)
	parent := make([]int, n)
	for i, s := range p.GetSteps() {
		parent[i] = -1
		for _, before := range s.GetAfter() {
			if b := int(before); parent[i] < 0 || over[b] > over[parent[i]] {
				parent[i] = b
			}
		}
		if parent[i] < 0 {
			roots = append(roots, i)
		} else {
			children[parent[i]] = append(children[parent[i]], i)
		}
	}
	tick := float64(p.GetSloUs()) / splitTicks
	// least[i][t] is what step i and all below it cost with t ticks, own[i][t] how many of them are its own.
	least, own := make([][]float64, n), make([][]int, n)
	for i := n - 1; i >= 0; i-- {
		costs := make([]float64, splitTicks+1)
		for t := range costs {
			costs[t] = cost(i, float64(t)*tick)
		}
		least[i], own[i] = make([]float64, splitTicks+1), make([]int, splitTicks+1)
		for t := range least[i] {
			least[i][t] = math.Inf(1)
			for k := 0; k <= t; k++ {
				sum := costs[k]
				for _, c := range children[i] {
					sum += least[c][t-k]
				}
				if sum < least[i][t] {
					least[i][t], own[i][t] = sum, k
				}
			}
		}
	}
	us = make([]float64, n)
	ends := make([]int, n)
	var give func(i, start, ticks int)
	give = func(i, start, ticks int) {
		k := own[i][ticks]
		ends[i], us[i] = start+k, float64(k)*tick
		for _, c := range children[i] {
			give(c, ends[i], ticks-k)
		}
	}
	for _, i := range roots {
		if math.IsInf(least[i][splitTicks], 1) {
			return nil, false
		}
		give(i, 0, splitTicks)
	}
	for i, s := range p.GetSteps() {
		for _, before := range s.GetAfter() {
			if late := ends[before] - ends[parent[i]]; late > 0 {
				us[before] -= float64(late) * tick
				if us[before] <= 0 || math.IsInf(cost(int(before), us[before]), 1) {
					return nil, false
				}
			}
		}
	}
	return us, true
}
