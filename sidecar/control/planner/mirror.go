// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"cmp"
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
)

// Mirror proposes what servers of others serve already: which model is where is up
// to them, how requests get there is up to Disciplines.
type Mirror struct {
	// Placement are the servers as partitions, with the models that each has.
	Placement func() []*policy.Partition
	// Disciplines is whose dispatch entries are taken over; nil has none.
	Disciplines Planner
}

// Plan implements Planner.
func (m Mirror) Plan(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
	var answer *policy.Plan
	if m.Disciplines != nil {
		var err error
		if answer, err = m.Disciplines.Plan(ctx, s); err != nil {
			return nil, err
		}
	}
	dispatch := map[string]*policy.Dispatch{}
	for _, d := range answer.GetDispatch() {
		dispatch[d.GetModel()] = d
	}
	p := &policy.Plan{SnapshotRevision: s.GetRevision(), Policy: cmp.Or(answer.GetPolicy(), "attach"), Partitions: m.Placement()}
	for _, model := range s.GetModels() {
		d := dispatch[model.GetName()]
		if d == nil {
			d = &policy.Dispatch{Model: model.GetName(), Discipline: usual}
		}
		p.Dispatch = append(p.Dispatch, proto.CloneOf(d))
		p.Reasons = append(p.Reasons, &policy.Reason{Model: model.GetName(), Text: "where the servers have it loaded"})
	}
	return p, nil
}

// PassingThrough is a plan under which every request is forwarded alone and at
// once.
func PassingThrough(p *policy.Plan) *policy.Plan {
	for _, d := range p.GetDispatch() {
		d.Discipline, d.DropPolicy, d.Parameters = "eager", "none", nil
	}
	return p
}
