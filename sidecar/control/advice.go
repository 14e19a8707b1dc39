// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/advice"
	"github.com/conch-serving/conch/sidecar/observe"
)

// GPUAdvice is how many GPUs the load wants, and what that rests on.
type GPUAdvice struct {
	// Advice is nil while there is nothing to judge by.
	*policy.Advice
	// Serving are the GPUs of the last window, by rank, Spare those that have no
	// partition.
	Serving []advice.GPU
	Spare   []string
}

// GPUAdvice is what the last windows say.
func (c *Control) GPUAdvice() GPUAdvice {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.advice
}

// weigh judges one more window of the load, once in a window's length. A window in
// which another plan came to serve is left out: partitions that start and drain are
// idle for no want of load.
func (c *Control) weigh(t *triggers, now time.Time) {
	if now.Sub(t.weighed) < observe.Window {
		return
	}
	t.weighed = now
	s := c.current()
	if s.Revision != t.weighedPlan {
		t.weighedPlan = s.Revision
		return
	}
	w := advice.Window{Seconds: observe.Window.Seconds()}
	for _, name := range c.Names() {
		all, bad := c.recorder.Judged(name, now)
		w.Requests, w.Bad = w.Requests+all, w.Bad+bad
	}
	up := map[string]bool{}
	for _, p := range c.applier.Partitions() {
		up[p.ID] = p.Up
	}
	measured := make([]*policy.PartitionStatistics, 0, len(s.GetPartitions()))
	for _, p := range s.GetPartitions() {
		one := c.recorder.PartitionStatistics(p.GetId(), now)
		one.Up = up[p.GetId()]
		measured = append(measured, one)
	}
	w.GPUs, w.Spare = advice.GPUs(c.nodes, s.Plan.Plan, measured)
	rule := advice.Rule{BadRate: c.settings().Triggers.BadRate}
	var next *policy.Advice
	t.size, next = rule.Next(t.size, w)
	c.metrics.Advice(next)
	slices.SortStableFunc(w.GPUs, advice.ByRank)
	c.mu.Lock()
	c.advice = GPUAdvice{Advice: next, Serving: w.GPUs, Spare: w.Spare}
	c.mu.Unlock()
}
