// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"fmt"

	"github.com/conch-serving/conch/plugins/policy"
)

// judgement sorts what was asked for into what can be simulated and what cannot.
type judgement struct {
	*Advice
	*world
	snapshot *policy.Snapshot   // with what clients ask of models by their own names
	counts   map[string]float64 // requests by name
	keep     map[string]bool
	total    float64 // requests of those to keep
	left     []reason
	unknown  float64 // requests of those that are left out
	learnt   map[string]string
}

// reason says why a model cannot be judged.
type reason struct{ model, text string }

func (j *judgement) leave(model, format string, args ...any) {
	j.left = append(j.left, reason{model, fmt.Sprintf(format, args...)})
	j.unknown += j.counts[model]
}

func (j *judgement) take(name string) {
	j.keep[name] = true
	j.total += j.counts[name]
}

// learn says why l(b) of a model is not known; it is looked up once.
func (j *judgement) learn(m *policy.Model) string {
	text, known := j.learnt[m.GetName()]
	if !known {
		text = j.Advice.learn(&j.in, policy.NewIndex(j.snapshot), j.snapshot, m, j.world)
		j.learnt[m.GetName()] = text
	}
	return text
}

// models judges those that clients ask for by their names.
func (j *judgement) models() {
	for _, m := range j.snapshot.GetModels() {
		name, n := m.GetName(), j.counts[m.GetName()]
		if n == 0 || j.snapshot.Pipeline(name) != nil {
			continue
		}
		if !m.GetBatchable() {
			j.note("what %s costs the others: its requests pass through (%s), and are left out here.", name, m.GetPassThroughReason())
			continue
		}
		switch {
		case n < fewestRequests:
			j.leave(name, "%.0f requests; %d are the least. Look for longer: tritonctl advise --for 5m", n, fewestRequests)
		case len(j.snapshot.GetCurrent().PartitionsOf(name)) == 0:
			j.leave(name, "it is on no GPU.")
		case m.GetSloUs() == 0:
			j.leave(name, "it has no SLO: set models.NAME.slo in conch.yaml.")
		default:
			if text := j.learn(m); text != "" {
				j.leave(name, "%s", text)
				continue
			}
			j.take(name)
		}
	}
}

// pipelines judges ensembles.
func (j *judgement) pipelines() {
	models := map[string]*policy.Model{}
	for _, m := range j.snapshot.GetModels() {
		models[m.GetName()] = m
	}
	for _, p := range j.snapshot.GetPipelines() {
		name, n := p.GetName(), j.counts[p.GetName()]
		switch {
		case n == 0:
			continue
		case n < fewestRequests:
			j.leave(name, "%.0f requests; %d are the least. Look for longer: tritonctl advise --for 5m", n, fewestRequests)
			continue
		case !j.together(p):
			j.leave(name, "no GPU has the models of all its steps.")
			continue
		}
		text := ""
		for _, step := range p.GetSteps() {
			m := models[step.GetModel()]
			if m == nil {
				text = fmt.Sprintf("its step %s is in no snapshot.", step.GetModel())
			} else if why := j.learn(m); why != "" {
				text = fmt.Sprintf("of its step %s, %s", step.GetModel(), why)
			}
			if text != "" {
				break
			}
		}
		if text != "" {
			j.leave(name, "%s", text)
			continue
		}
		j.take(name)
	}
}

// together reports whether a partition has the models of all steps: Triton runs an ensemble on one server.
func (j *judgement) together(p *policy.Pipeline) bool {
	for _, part := range j.snapshot.GetCurrent().GetPartitions() {
		all := true
		for _, step := range p.GetSteps() {
			all = all && serves(part, step.GetModel())
		}
		if all {
			return true
		}
	}
	return false
}
