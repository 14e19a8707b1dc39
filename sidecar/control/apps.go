// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// wantedNews is how long a client may ask for the same variant before that is news
// again: it may ask for weeks, and the log has other things to keep.
const wantedNews = 10 * time.Minute

// wanted is when a variant that does not run was last asked for, and when that was last
// written down.
type wanted struct{ asked, told time.Time }

// Wanted notes that a client asked for a variant of an app that does not run: it
// is an order of that client's, and a plan follows. Where no plan follows without an
// operator's order, the request is refused: the error is a gRPC status error. It
// does not wait.
func (c *Control) Wanted(e names.InactiveError) error {
	now := c.clock.Now()
	key := e.Name + "\x00" + e.Model
	c.mu.Lock()
	w := c.wanted[key]
	again := !w.asked.IsZero() && now.Sub(w.asked) < wantedPause
	news := w.told.IsZero() || now.Sub(w.told) >= wantedNews
	if !again {
		if w.asked = now; news {
			w.told = now
		}
		c.wanted[key] = w
	}
	mode := c.config.Mode
	c.mu.Unlock()
	message := fmt.Sprintf("%s is asked for %v, and nothing that runs is such; %s would be", e.Name, e.Wish, e.Model)
	var refusal error
	if mode != config.ModeControl {
		refusal = status.Errorf(codes.Unavailable, "%v: mode %s applies no plan without an operator's order", &e, mode)
		message += "; in mode " + string(mode) + " no plan follows"
	}
	if again {
		return refusal
	}
	if news {
		c.event(api.Event{Kind: events.VariantWanted, Message: message, Fields: map[string]string{"app": e.Name, "model": e.Model}})
	}
	if refusal == nil {
		c.ordered(message)
	}
	return refusal
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
