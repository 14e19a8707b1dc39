// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/sidecar/config"
)

const (
	stateBucket = "control.state"
	stateKey    = "state"
)

// state is what the loop itself keeps across restarts; the plan in force is in
// the desired state of apply, profiles with observe, what clients loaded and unloaded is in
// the repository's revisions.
type state struct {
	Plan     uint64 `json:"plan"`
	Snapshot uint64 `json:"snapshot"`
	// Policy is the one that was in use, with its parameters.
	Policy string `json:"policy,omitempty"`
}

// restore reads the state of an earlier conch, so that numbers go on.
func (c *Control) restore() error {
	text, err := c.store.Get(stateBucket, stateKey)
	if err != nil || text == nil {
		return err
	}
	var s state
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("state of the plan loop: %w; remove the state directory to start over", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before, c.snapshot, c.policyBefore = s.Plan, s.Snapshot, s.Policy
	return nil
}

// TakeOver reads again what another conch may have written to the store since New. It is called before Run, by a conch that has waited until the store was its own.
func (c *Control) TakeOver() error {
	return errors.Join(c.events.Reload(), c.orders.Reload(), c.restore())
}

func (c *Control) save() {
	used := c.policyUsed()
	c.mu.Lock()
	s := state{Plan: max(c.serving.Revision, c.before), Snapshot: c.snapshot, Policy: used}
	c.mu.Unlock()
	text, err := json.Marshal(s)
	if err == nil {
		err = c.store.Later(store.Change{Bucket: stateBucket, Key: stateKey, Value: text})
	}
	if err != nil {
		c.log.Warn("the state of the plan loop could not be saved", "error", err)
	}
}

// policyUsed is the policy in use with its parameters, as a text to compare.
func (c *Control) policyUsed() string {
	s := c.policies.Status()
	return policyText(config.Policy{Name: s.Name, Parameters: s.Parameters})
}
