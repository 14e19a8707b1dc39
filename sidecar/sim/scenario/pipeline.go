// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
)

// Pipeline is what clients ask for as one: steps of models under one SLO, end to end (policy.Pipeline). Models that only pipelines ask for have neither a rate
// nor a weight; without an SLO of their own they have, for policies, their part of the shortest pipeline's.
type Pipeline struct {
	Name string   `yaml:"name" json:"name"`
	SLO  Duration `yaml:"slo" json:"slo"`
	// Rate in requests per second; or Weight, its part of the scenario's rate (0 means 1).
	Rate     float64        `yaml:"rate,omitempty" json:"rate,omitempty"`
	Weight   float64        `yaml:"weight,omitempty" json:"weight,omitempty"`
	Arrivals *Arrivals      `yaml:"arrivals,omitempty" json:"arrivals,omitempty"`
	Steps    []PipelineStep `yaml:"steps" json:"steps"`
}

// PipelineStep is one model of a pipeline.
type PipelineStep struct {
	// Name of the step; empty: the model's.
	Name  string `yaml:"name,omitempty" json:"name,omitempty"`
	Model string `yaml:"model" json:"model"`
	// After are the names of the steps whose results it takes, all of them before it.
	After []string `yaml:"after,omitempty" json:"after,omitempty"`
	// Rows for each row of the request, on average; 0: as many.
	Rows float64 `yaml:"rows,omitempty" json:"rows,omitempty"`
}

// stepDeadlines by name.
func stepDeadlines(name string) (sim.StepDeadlines, bool) {
	rule, known := map[string]sim.StepDeadlines{
		"": sim.StepsByLoss, "loss": sim.StepsByLoss, "present": sim.StepsByPresent, "left": sim.StepsLeft, "waiting": sim.StepsWaiting, "share": sim.StepsByShare, "end": sim.StepsAtEnd,
	}[name]
	return rule, known
}

func (s PipelineStep) name() string {
	if s.Name != "" {
		return s.Name
	}
	return s.Model
}

func (s *Scenario) checkPipelines() error {
	if len(s.Pipelines) > 0 && (s.Trace != nil || s.Zipf != nil || s.Dispatch.Discipline == segmented) {
		return at("pipelines", "pipelines: not with a trace, zipf or discipline %s", segmented)
	}
	if _, known := stepDeadlines(s.StepDeadlines); !known {
		return at("stepDeadlines", "stepDeadlines is %q, must be loss, present, left, waiting, share or end", s.StepDeadlines)
	}
	names := map[string]bool{}
	for _, m := range s.Models {
		for _, name := range m.names() {
			names[name] = true
		}
	}
	for i, p := range s.Pipelines {
		path := fmt.Sprintf("pipelines[%d]", i)
		if p.Name == "" || names[p.Name] {
			return at(path+".name", "%s: %q is no name of its own", path, p.Name)
		}
		names[p.Name] = true
		if err := under(path, p.check()); err != nil {
			return wrapped(err, path+" "+p.Name)
		}
	}
	return nil
}

func (p Pipeline) check() error {
	switch {
	case p.SLO <= 0:
		return at("slo", "it needs an slo")
	case len(p.Steps) == 0:
		return at("steps", "it needs steps")
	case !(p.Rate >= 0 && p.Rate <= maxRate) || !(p.Weight >= 0 && p.Weight <= maxRate):
		return at("", "rate %g and weight %g must be numbers from 0 to %g", p.Rate, p.Weight, maxRate)
	}
	if a := p.Arrivals; a != nil {
		if err := under("arrivals", a.check()); err != nil {
			return err
		}
		if a.Rows > maxRows {
			return at("arrivals.rows", "arrivals: requests of %d rows are above %d", a.Rows, maxRows)
		}
	}
	var before []string
	for i, step := range p.Steps {
		path := fmt.Sprintf("steps[%d]", i)
		if slices.Contains(before, step.name()) {
			return at(path, "two steps are called %s: give one a name", step.name())
		}
		for _, after := range step.After {
			if !slices.Contains(before, after) {
				return at(path+".after", "step %s comes after %s, which is no step before it", step.name(), after)
			}
		}
		if !(step.Rows >= 0 && step.Rows <= maxRows) {
			return at(path+".rows", "step %s: rows %g is no number from 0 to %d", step.name(), step.Rows, maxRows)
		}
		before = append(before, step.name())
	}
	return nil
}

// addPipelines puts the scenario's pipelines into the snapshot, with what arrives for each; their models have their rates and SLOs then.
func (s *Scenario) addPipelines(snapshot *policy.Snapshot, loads []load) error {
	models := map[string]*policy.Model{}
	for _, m := range snapshot.GetModels() {
		models[m.GetName()] = m
	}
	given := map[string]bool{} // models whose SLO the file says
	for _, m := range s.Models {
		for _, name := range m.names() {
			given[name] = m.SLO > 0
		}
	}
	derived := map[string]float64{}
	for n, p := range s.Pipelines {
		out := &policy.Pipeline{Name: p.Name, SloUs: p.SLO.std().Microseconds(), Rate: loads[n].rate}
		position := map[string]uint32{}
		for i, step := range p.Steps {
			if models[step.Model] == nil {
				return fmt.Errorf("pipeline %s: there is no model %s", p.Name, step.Model)
			}
			added := &policy.PipelineStep{Model: step.Model, Rows: cmp.Or(step.Rows, 1)}
			for _, after := range step.After {
				added.After = append(added.After, position[after])
			}
			position[step.name()] = uint32(i) //nolint:gosec // few
			out.Steps = append(out.Steps, added)
		}
		if p.Arrivals != nil {
			out.Rows = float64(p.Arrivals.Rows)
		}
		out.Load(models)
		part, _ := out.Divide(snapshot.Takes)
		for i, step := range out.Steps {
			slo, name := float64(out.SloUs)*part[i], step.GetModel()
			if was, known := derived[name]; !given[name] && (!known || slo < was) {
				derived[name] = slo
			}
		}
		snapshot.Pipelines = append(snapshot.Pipelines, out)
	}
	for name, slo := range derived {
		models[name].SloUs = int64(math.Ceil(slo))
	}
	return nil
}
