// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control/events"
)

// NodesChanged is called when Options.Nodes returns others than before: the next plan is made for those.
func (c *Control) NodesChanged(reason string) {
	c.event(api.Event{Kind: events.NodesChanged, Message: reason})
	c.mu.Lock()
	files, settings := c.files, c.config
	c.mu.Unlock()
	if files != nil {
		c.estimates.Want(files.Models, c.places(settings))
	}
	c.promptly(reason)
}
