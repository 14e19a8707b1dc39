// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"

	"github.com/conch-serving/conch/sidecar/plan"
)

// atDepth puts the step that loads a model behind those of what the model calls.
// A server loads what an ensemble calls together with the ensemble, all of it at
// once, and refuses where files are not there yet.
func (c *change) atDepth(levels [][]step, model string, s step) [][]step {
	depth := c.depth(model)
	for len(levels) <= depth {
		levels = append(levels, nil)
	}
	levels[depth] = append(levels[depth], s)
	return levels
}

// depth is how many ensembles lie between a model and models that call nothing.
// Ensembles that call each other in a circle are left to the server to refuse.
func (c *change) depth(model string) int {
	if known, ok := c.depths[model]; ok {
		return known
	}
	c.depths[model] = 0
	m := c.next.Revision.Model(model)
	if m == nil {
		return 0
	}
	depth := 0
	for _, step := range m.Config.GetEnsembleScheduling().GetStep() {
		depth = max(depth, 1+c.depth(step.GetModelName()))
	}
	c.depths[model] = depth
	return depth
}

func (c *change) load(l plan.Load) step {
	id, model := l.Partition.GetId(), l.Instance.GetModel()
	take := func(ctx context.Context, r *running) error {
		if c.next.Given {
			r.process.Abandon(model)
			c.a.mu.Lock()
			delete(r.models, model)
			c.a.mu.Unlock()
			return nil
		}
		err := r.process.Unload(ctx, model)
		c.a.mu.Lock()
		delete(r.models, model)
		c.a.mu.Unlock()
		return errors.Join(err, c.a.o.Repository.Unstage(ctx, r.repository, model))
	}
	r, isNew := c.started[id]
	if !isNew {
		r = c.before[id]
	}
	s := step{
		StepEvent: StepEvent{Kind: StepLoad, Partition: id, Model: model},
		do: func(ctx context.Context) (string, error) {
			if c.next.Given {
				r.process.Adopt(model)
				c.a.mu.Lock()
				r.models[model] = true
				c.a.mu.Unlock()
				return "it is there already", nil
			}
			if !isNew {
				if err := c.a.o.Repository.Stage(ctx, c.next.Revision.ID, []string{model}, r.repository); err != nil {
					return "", err
				}
			}
			err := r.process.Load(ctx, model)
			if err == nil {
				c.a.mu.Lock()
				r.models[model] = true
				c.a.mu.Unlock()
				return "", nil
			}
			if !isNew { // a load that was cut off may still come to its end
				within, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.a.o.DrainTimeout)
				defer cancel()
				err = errors.Join(err, take(within, r))
			}
			return "", err
		},
	}
	if !isNew { // a new process ends as a whole
		s.undo = func(ctx context.Context) error { return take(ctx, r) }
	}
	return s
}

// reload gives a running model its new files. Triton itself changes over at
// once, and keeps the old version if the new one does not load.
func (c *change) reload(id, model string) step {
	r := c.before[id]
	to := func(ctx context.Context, revision string) error {
		if err := c.a.o.Repository.Stage(ctx, revision, []string{model}, r.repository); err != nil {
			return err
		}
		c.a.warmedUp(r, model, nil) // a reload begins its statistics anew
		return r.process.Load(ctx, model)
	}
	back := func(ctx context.Context) error {
		if c.old.Given { // its own files are put back in their place
			return errors.Join(c.a.o.Repository.Unstage(ctx, r.repository, model), r.process.Load(ctx, model))
		}
		return to(ctx, c.old.Revision.ID)
	}
	return step{
		StepEvent: StepEvent{Kind: StepReload, Partition: id, Model: model},
		do: func(ctx context.Context) (string, error) {
			err := to(ctx, c.next.Revision.ID)
			if err != nil {
				within, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.a.o.DrainTimeout)
				defer cancel()
				err = errors.Join(err, back(within))
			}
			return "", err
		},
		undo: back,
	}
}
