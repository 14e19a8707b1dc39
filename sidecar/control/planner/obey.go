// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/config"
)

// usual is the discipline of a model for which none is set.
const usual = "adaptive"

// Operator is what conch.yaml says of disciplines and drop policies.
type Operator struct {
	Config *config.Config
	// Attached: others run the servers.
	Attached bool
}

// Obeying proposes what p proposes, with the operator's disciplines.
func (o Operator) Obeying(p Planner) Planner {
	return Func(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
		answer, err := p.Plan(ctx, s)
		if err != nil {
			return nil, err
		}
		return o.Obey(answer), nil
	})
}

// Obey is a copy of a plan in which the operator's own disciplines hold, whatever
// the plan says of a model that it places, or leaves out.
func (o Operator) Obey(answer *policy.Plan) *policy.Plan {
	p := proto.CloneOf(answer)
	dispatched := map[string]bool{}
	for _, d := range p.GetDispatch() {
		dispatched[d.GetModel()] = true
		o.dispatch(d)
	}
	for _, part := range p.GetPartitions() {
		for _, in := range part.GetInstances() {
			for _, model := range p.ModelsOf(in) {
				if dispatched[model] {
					continue
				}
				dispatched[model] = true
				if d := (&policy.Dispatch{Model: model, Discipline: usual}); o.dispatch(d) {
					p.Dispatch = append(p.Dispatch, d)
				}
			}
		}
	}
	return p
}

// dispatch writes what the operator says into one entry, and reports whether that
// is anything.
func (o Operator) dispatch(d *policy.Dispatch) bool {
	own, def := o.Config.Models[d.GetModel()], o.Config.Defaults
	if o.Config.Mode == config.ModeObserve && !o.Attached {
		// In mode observe the scheduler makes no request wait and drops none.
		d.Discipline, d.DropPolicy, d.Parameters = "eager", "none", nil
		return true
	}
	changed := true
	switch {
	case own.Discipline != "":
		d.Discipline, d.Parameters = own.Discipline, own.Parameters
	case def.Discipline != "":
		d.Discipline, d.Parameters = def.Discipline, def.Parameters
	default:
		changed = false
	}
	switch {
	case own.DropPolicy != "":
		d.DropPolicy, changed = own.DropPolicy, true
	case def.DropPolicy != "":
		d.DropPolicy, changed = def.DropPolicy, true
	}
	return changed
}
