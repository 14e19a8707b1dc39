// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/orders"
	"github.com/conch-serving/conch/sidecar/control/snapshot"
)

// releaseDelay is the part of a model's SLO that Triton may spend on waiting for
// a batch once conch is gone: the rest is for the batch before and its own.
const releaseDelay = 10

// Release gives attached servers back to their operator: their configurations are
// restored, models that conch loaded stay loaded, and conch only observes from then
// on, over restarts too. It does nothing that is done already.
func (c *Control) Release(ctx context.Context, r api.ReleaseRequest) (api.ReleaseResult, error) {
	if c.attached == nil {
		return api.ReleaseResult{}, fmt.Errorf("%w: driver %s starts servers of conch's own, which end with it; the model repository was never written to: stop conch and start your tritonserver on it", ErrRefused, c.settings().Driver.Kind)
	}
	if err := c.acquire(ctx); err != nil {
		return api.ReleaseResult{}, err
	}
	defer c.release()
	author := cmp.Or(r.Author, "operator")
	if r.Undo {
		return c.retake(author, r)
	}
	done, err := c.attached.HandBack(ctx, r.DryRun, c.releaseDelay)
	result := api.ReleaseResult{DryRun: r.DryRun, Mode: string(c.settings().Mode), Changes: releases(done)}
	if r.DryRun || err != nil {
		return result, err
	}
	c.handovers(done, author)
	already := c.orders.Declared().Released
	if err := c.orders.Declare(func(d *orders.Declared) { d.Released = true }); err != nil {
		return result, err
	}
	c.observeOnly()
	result.Mode = string(config.ModeObserve)
	if already {
		return result, nil
	}
	c.event(api.Event{Kind: events.Released, Author: author, Reason: r.Reason, Message: "the servers were released: mode is observe until conch.yaml is read again (SIGHUP) or tritonctl release --undo"})
	if err := c.mirror(ctx, "release"); err != nil {
		c.ServersChanged("release") // tried again after a tick
		return result, err
	}
	return result, nil
}

// observeOnly is mode observe, whatever conch.yaml says.
func (c *Control) observeOnly() {
	c.mu.Lock()
	defer c.mu.Unlock()
	observing := *c.config
	observing.Mode = config.ModeObserve
	c.config, c.version.Mode = &observing, string(config.ModeObserve)
}

// retake undoes a release; the caller holds the planning turn.
func (c *Control) retake(author string, r api.ReleaseRequest) (api.ReleaseResult, error) {
	c.mu.Lock()
	asRead := c.asRead
	c.mu.Unlock()
	mode := asRead.Mode
	if !c.orders.Declared().Released || r.DryRun {
		return api.ReleaseResult{DryRun: r.DryRun, Mode: string(mode)}, nil
	}
	if err := c.orders.Declare(func(d *orders.Declared) { d.Released = false }); err != nil {
		return api.ReleaseResult{}, err
	}
	c.mu.Lock()
	c.config, c.version.Mode = asRead, string(mode)
	c.mu.Unlock()
	c.event(api.Event{Kind: events.Released, Author: author, Reason: r.Reason, Message: "the release was undone: mode is " + string(mode)})
	c.ServersChanged("the release was undone")
	c.ordered("the release was undone")
	return api.ReleaseResult{Mode: string(mode)}, nil
}

func (c *Control) releaseDelay(model string) time.Duration {
	in := c.intent()
	if in.files != nil {
		if m := in.files.Model(model); m != nil && m.Config != nil {
			return snapshot.SLO(m, in.config) / releaseDelay
		}
	}
	return in.config.Defaults.SLO.Std() / releaseDelay
}

func releases(done []driver.Handover) []api.Released {
	all := make([]api.Released, len(done))
	for i, h := range done {
		all[i] = api.Released{Partition: h.GPU, Endpoint: h.Endpoint, Model: h.Model, Change: h.Change}
		if h.Err != nil {
			all[i].Error = h.Err.Error()
		}
	}
	return all
}
