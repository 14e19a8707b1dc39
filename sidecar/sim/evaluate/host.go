// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package evaluate

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
)

// InProcess evaluates in this process, with recorded traffic where there is some, else with what the snapshot promises. It is a
// policyhost.Evaluator, and with [InProcess.Host] the host of a policy that runs in this process too.
type InProcess struct {
	// Recorded traffic for every snapshot; nil generates.
	Recorded *Traffic

	mu   sync.Mutex
	of   *policy.Snapshot
	last *Evaluator
}

// Evaluate simulates plans under the snapshot's traffic and returns their outcomes in the same order.
func (p *InProcess) Evaluate(ctx context.Context, s *policy.Snapshot, plans []*policy.Plan) ([]*policy.Outcome, error) {
	return p.EvaluateDraw(ctx, s, 0, plans)
}

// EvaluateDraw implements policyhost.Evaluator.
func (p *InProcess) EvaluateDraw(ctx context.Context, s *policy.Snapshot, draw uint32, plans []*policy.Plan) ([]*policy.Outcome, error) {
	e, err := p.evaluator(s)
	if err != nil {
		return nil, err
	}
	return e.EvaluateDraw(ctx, draw, plans...)
}

func (p *InProcess) evaluator(s *policy.Snapshot) (*Evaluator, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != nil && p.of == s {
		return p.last, nil
	}
	traffic := p.Recorded
	if traffic == nil {
		var err error
		if traffic, err = Generate(s, time.Duration(s.GetTraffic().GetSeconds()*float64(time.Second))); err != nil {
			return nil, err
		}
	}
	p.of, p.last = s, New(s, traffic)
	return p.last, nil
}

// Host is what a policy in this process may ask while it answers the snapshot: as much as the snapshot allows.
func (p *InProcess) Host(s *policy.Snapshot) policy.Host {
	if s.GetEvaluations() == 0 {
		return policy.NoEvaluation{}
	}
	return &counted{p: p, s: s, left: s.GetEvaluations()}
}

type counted struct {
	p    *InProcess
	s    *policy.Snapshot
	mu   sync.Mutex
	left uint32
}

// Evaluate implements policy.Host.
func (c *counted) Evaluate(ctx context.Context, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	return c.EvaluateDraw(ctx, 0, plans...)
}

// EvaluateDraw implements policy.Host.
func (c *counted) EvaluateDraw(ctx context.Context, draw uint32, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	c.mu.Lock()
	left, err := policy.Spend(c.left, plans)
	c.left = left
	c.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("evaluate: %w", err)
	}
	return c.p.EvaluateDraw(ctx, c.s, draw, plans)
}
