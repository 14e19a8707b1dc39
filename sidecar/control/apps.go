// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"time"

	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/snapshot"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
)

// wantedPause is how long a variant that was asked for is not asked for again: a
// plan that has it, and its load, take their time.
const wantedPause = 5 * time.Second

// Wanted notes that a client asked for a variant of an app that does not run: it
// is an order of that client's, and a plan follows. It does not wait.
func (c *Control) Wanted(e names.InactiveError) {
	now := c.clock.Now()
	key := e.Name + "\x00" + e.Model
	c.mu.Lock()
	last, asked := c.wanted[key]
	again := asked && now.Sub(last) < wantedPause
	if !again {
		c.wanted[key] = now
	}
	mode := c.config.Mode
	c.mu.Unlock()
	if again {
		return
	}
	message := fmt.Sprintf("%s is asked for %v, and nothing that runs is such; %s would be", e.Name, e.Wish, e.Model)
	if mode != config.ModeControl {
		c.event(api.Event{Kind: events.VariantWanted, Message: message + "; in mode " + string(mode) + " no plan follows", Fields: map[string]string{"app": e.Name, "model": e.Model}})
		return
	}
	c.event(api.Event{Kind: events.VariantWanted, Message: message, Fields: map[string]string{"app": e.Name, "model": e.Model}})
	c.ordered(message)
}

// misfits writes down which variants of apps are none, because clients could not
// ask them what they ask the others.
func (c *Control) misfits(files *repo.Revision, settings *config.Config) snapshot.Misfits {
	all := snapshot.FindMisfits(settings, files)
	for _, m := range all {
		c.log.Warn("a variant is left out of its app", "app", m.App, "model", m.Model, "reason", m.Reason)
	}
	return all
}
