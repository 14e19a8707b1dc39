// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"github.com/conch-serving/conch/sidecar/dispatch/ensemble"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// LeaveEnsembles sets which ensembles are left to Triton, as one request each, although Conch could execute their steps.
func (d *Dispatcher) LeaveEnsembles(names []string) {
	all := make(map[string]bool, len(names))
	for _, name := range names {
		all[name] = true
	}
	d.toTriton.Store(&all)
}

// leaves reports whether an ensemble is left to Triton.
func (d *Dispatcher) leaves(name string) bool {
	all := d.toTriton.Load()
	return all != nil && (*all)[name]
}

// Ensemble says how the requests of an ensemble are executed: in how many steps by Conch, or, if steps is 0, why they pass through whole. Ok is false
// for what is no ensemble of the table in force.
func (d *Dispatcher) Ensemble(name string) (steps int, reason string, ok bool) {
	r, err := d.route(name)
	switch {
	case err != nil || r.spec.Config.GetEnsembleScheduling() == nil:
		return 0, "", false
	case r.graph == nil:
		return 0, r.unsplit, true
	case d.leaves(name):
		return 0, "conch.yaml leaves it to Triton (ensemble: pass)", true
	}
	return len(r.graph.Steps), "", true
}

// Step is a step of an ensemble: the model that it calls, and the steps whose results it takes, by their positions.
type Step struct {
	Model string
	After []int
}

// Pipeline returns the steps of an ensemble that Conch executes, each after those whose results it takes; none for any other name.
func (d *Dispatcher) Pipeline(name string) []Step {
	r, err := d.route(name)
	if err != nil || r.graph == nil || d.leaves(name) {
		return nil
	}
	all, position := make([]Step, 0, len(r.graph.Steps)), make([]int, len(r.graph.Steps))
	for at, i := range r.graph.Order() {
		step := Step{Model: r.graph.Steps[i].Model}
		position[i] = at
		for _, before := range r.graph.After(i) {
			step.After = append(step.After, position[before])
		}
		all = append(all, step)
	}
	return all
}

// stepsOf finds the models of a table that steps call.
func stepsOf(t *router.Table) func(name string) (ensemble.Model, bool) {
	return func(name string) (ensemble.Model, bool) {
		m := t.Models[name]
		if m == nil || m.Internal {
			return ensemble.Model{}, false
		}
		of := ensemble.Model{Config: m.Config, Versions: m.Versions}
		if !m.Batchable {
			of.Unbatched = m.PassThroughReason
			if of.Unbatched == "" {
				of.Unbatched = "its requests share no executions"
			}
		}
		return of, true
	}
}
