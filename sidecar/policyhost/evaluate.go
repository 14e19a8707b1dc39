// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
)

// Evaluator says what would become of plans: what a policy asks with
// policy.Host.EvaluateDraw ends here. It answers for the traffic that the snapshot
// names (draw 0) or for other arrivals like it, in the order of the plans,
// deterministically. It may be called by one goroutine at a time per snapshot.
type Evaluator interface {
	EvaluateDraw(ctx context.Context, s *policy.Snapshot, draw uint32, plans []*policy.Plan) ([]*policy.Outcome, error)
}

// evaluating is the policy.Host of one call.
type evaluating struct {
	evaluator Evaluator
	snapshot  *policy.Snapshot
	clock     *clock
	// limit is what all questions of the call may take, left what remains of it.
	limit, left time.Duration
}

// Evaluate implements policy.Host.
func (e *evaluating) Evaluate(ctx context.Context, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	return e.EvaluateDraw(ctx, 0, plans...)
}

// EvaluateDraw implements policy.Host.
func (e *evaluating) EvaluateDraw(ctx context.Context, draw uint32, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	e.clock.pause()
	defer e.clock.resume()
	within, cancel := context.WithTimeout(ctx, e.left)
	defer cancel()
	began := time.Now()
	outcomes, err := e.evaluator.EvaluateDraw(within, e.snapshot, draw, plans)
	e.left -= time.Since(began)
	if err != nil && ctx.Err() != nil { // the policy's own time was over as it asked: no fault of the evaluator
		return nil, ctx.Err()
	}
	if err != nil && within.Err() != nil {
		err = fmt.Errorf("the evaluations for one plan took longer than %s; lower policy.evaluations or policy.traffic: %w", e.limit, err)
	}
	if err != nil {
		return nil, &evaluationError{err}
	}
	return outcomes, nil
}

// evaluationError tells a failure of the host's own evaluator from one of the
// policy.
type evaluationError struct{ err error }

// Error is the evaluator's.
func (e *evaluationError) Error() string { return e.err.Error() }

// clock ends a call after so much time of the policy's own.
type clock struct {
	mu    sync.Mutex
	timer *time.Timer
	left  time.Duration
	since time.Time
}

func startClock(limit time.Duration, end func()) *clock {
	return &clock{timer: time.AfterFunc(limit, end), left: limit, since: time.Now()}
}

func (c *clock) pause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer.Stop() {
		c.left -= time.Since(c.since)
	} else {
		c.left = 0
	}
}

func (c *clock) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = time.Now()
	c.timer.Reset(max(0, c.left))
}

func (c *clock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer.Stop()
}
