// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// step is one thing to do, and how to take it back. A step that fails has taken
// itself back.
type step struct {
	StepEvent
	// do returns a remark for the event.
	do func(context.Context) (string, error)
	// undo is nil for a step that leaves nothing to take back.
	undo func(context.Context) error
}

// phase is steps that may run at the same time; serial ones run one after the
// other.
type phase struct {
	steps  []step
	serial bool
}

// execution runs phases and remembers what it did.
type execution struct {
	journal  journal
	now      func() time.Time
	onStep   func(StepEvent)
	log      *slog.Logger
	parallel int
	// undoTimeout bounds the taking back of one step.
	undoTimeout time.Duration

	mu     sync.Mutex
	done   []step
	result Result
}

// run runs the phases in their order up to the first failure, which is a
// *StepError.
func (x *execution) run(ctx context.Context, phases []phase) error {
	for _, p := range phases {
		group, within := errgroup.WithContext(ctx)
		group.SetLimit(x.parallel)
		if p.serial {
			group.SetLimit(1)
		}
		for _, s := range p.steps {
			group.Go(func() error {
				if err := within.Err(); err != nil {
					return notBegun(ctx, s)
				}
				return x.step(within, s)
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// notBegun is for steps that are not begun: because another failed, or because
// the caller gave up.
func notBegun(ctx context.Context, s step) error {
	if ctx.Err() == nil {
		return nil // the other's error is the news
	}
	e := s.StepEvent
	e.Err = context.Cause(ctx)
	return &StepError{e}
}

func (x *execution) step(ctx context.Context, s step) error {
	e := s.StepEvent
	e.Start = x.now()
	if e.Err = x.journal.step(e); e.Err == nil {
		e.Text, e.Err = s.do(ctx)
	}
	x.end(e)
	if e.Err != nil {
		return &StepError{e}
	}
	x.mu.Lock()
	x.done = append(x.done, s)
	x.mu.Unlock()
	return nil
}

func (x *execution) end(e StepEvent) {
	e.Duration = x.now().Sub(e.Start)
	x.mu.Lock()
	x.result.Steps = append(x.result.Steps, e)
	x.mu.Unlock()
	x.log.Debug("step", "name", e.name(), "undo", e.Undo, "seconds", e.Duration.Seconds(), "remark", e.Text, "error", e.Err)
	if x.onStep != nil {
		x.onStep(e)
	}
}

// undo takes back what was done, the last first. It goes on after errors: they
// are warnings about what could not be cleaned up.
func (x *execution) undo(ctx context.Context) {
	ctx = context.WithoutCancel(ctx) // the caller may have given up; the world must still be put right
	for i := len(x.done) - 1; i >= 0; i-- {
		s := x.done[i]
		if s.undo == nil {
			continue
		}
		e := s.StepEvent
		e.Undo, e.Start = true, x.now()
		within, cancel := context.WithTimeout(ctx, x.undoTimeout)
		e.Err = errors.Join(x.journal.step(e), s.undo(within))
		cancel()
		if e.Err != nil {
			x.result.Warnings = append(x.result.Warnings, fmt.Sprintf("undo %s: %v", e.name(), e.Err))
		}
		x.end(e)
	}
	x.done = nil
}

// tidy runs phases whose failures are warnings: the new state serves already.
func (x *execution) tidy(ctx context.Context, phases []phase) {
	for _, p := range phases {
		var group errgroup.Group
		group.SetLimit(x.parallel)
		for _, s := range p.steps {
			group.Go(func() error {
				if err := x.step(ctx, s); err != nil {
					x.mu.Lock()
					x.result.Warnings = append(x.result.Warnings, err.Error())
					x.mu.Unlock()
				}
				return nil
			})
		}
		_ = group.Wait() // no step returns an error
	}
}
