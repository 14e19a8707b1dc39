// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import "context"

// acquire waits for its turn to plan. A caller that has it and only waits for servers
// gives it up.
func (c *Control) acquire(ctx context.Context) error {
	select {
	case c.planning <- struct{}{}:
		return nil
	default:
	}
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	c.press()
	select {
	case c.planning <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Control) release() { <-c.planning }

// press ends the wait of a caller that waits for servers.
func (c *Control) press() {
	select {
	case c.hurry <- struct{}{}:
	default:
	}
}

// ordered asks the loop for a plan because of an operator's order: the changes of
// the next plan are ordered, and are not weighed against the plan in force.
func (c *Control) ordered(reason string) {
	c.mu.Lock()
	c.byOrder = true
	c.mu.Unlock()
	c.promptly(reason)
}

// promptly asks the loop for a plan that somebody waits for.
func (c *Control) promptly(reason string) {
	c.mu.Lock()
	c.urgent = true
	c.mu.Unlock()
	c.alarm(reason)
}

// takeOrdered reports whether the next plan follows an order, once.
func (c *Control) takeOrdered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ordered := c.byOrder
	c.byOrder = false
	return ordered
}

// alarm asks the loop for a plan, alarmPace after the last one at the earliest.
func (c *Control) alarm(reason string) {
	c.mu.Lock()
	if len(c.alarms) < 16 {
		c.alarms = append(c.alarms, reason)
	}
	c.mu.Unlock()
	c.rouse()
}

// rouse has the loop look at once.
func (c *Control) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
