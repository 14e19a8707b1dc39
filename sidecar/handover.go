// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/reuseport"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
)

// Times of a hand-over to another conch on the same addresses.
const (
	// quiet is how long no connection must have come before a listener is closed.
	// It covers the handshake of a slow network.
	quiet = time.Second
	// elsewhere is how long connections may still come after they were steered
	// away, before it is tried the other way.
	elsewhere = 100 * time.Millisecond
	// idle is how long HTTP connections without a request are kept open, so that
	// their next request is still answered, and sends them elsewhere.
	idle = 10 * time.Second
	// poll is how often conditions are checked for which there is no notification.
	poll = 20 * time.Millisecond
)

// doors adds to the conditions of readiness whether clients can come in, and says
// where requests are served without a queue.
type doors struct {
	admin.API
	s *server
}

// OrderModel implements admin.API: if attached servers give the placement, they load and
// unload the model.
func (d doors) OrderModel(ctx context.Context, r api.ModelRequest) (api.Model, error) {
	if d.s.servers == nil || !d.s.control.Given() {
		return d.API.OrderModel(ctx, r)
	}
	servers := attachedLoader{nil, d.s.control, d.s.servers.driver}
	order := func() error { return servers.Load(ctx, r.Model, nil) }
	if r.Unload {
		order = func() error { return servers.Unload(ctx, r.Model, nil) }
	}
	if err := order(); err != nil {
		return api.Model{}, &api.Error{Code: api.CodeRefused, Message: "the servers: " + status.Convert(err).Message()}
	}
	m, err := d.Model(ctx, r.Model)
	if err != nil && r.Unload {
		return api.Model{Name: r.Model, State: api.ModelUnloaded}, nil // the servers no longer have it
	}
	return m, err
}

// Ready implements admin.API.
func (d doors) Ready(ctx context.Context) (api.Health, error) {
	h, err := d.API.Ready(ctx)
	if err != nil {
		return h, err
	}
	if fault := d.s.dispatcher.Fault(); fault != nil {
		// Requests are answered, as fast as without Conch: no reason to send them
		// nowhere.
		h.Checks = append(h.Checks, api.Check{Name: "queue", OK: true, Reason: "degraded: " + fault.Error() + "; requests are forwarded one by one: restart Conch"})
	}
	if !d.s.config.Listen.ReusePort && !d.s.leaving.Load() {
		return h, nil
	}
	c := api.Check{Name: "doors", OK: true}
	select {
	case <-d.s.opened:
		if d.s.leaving.Load() {
			c.OK, c.Reason = false, "draining: accepted requests are finished, and no more are accepted"
		}
	default:
		c.OK, c.Reason = false, "shared addresses open once everything else is ready"
	}
	h.Checks, h.OK = append(h.Checks, c), h.OK && c.OK
	return h, nil
}

// awaitReady returns true once conch is ready but for its shared doors.
func (s *server) awaitReady(ctx context.Context) bool {
	return await(ctx, func() bool {
		for _, c := range admin.Checks(s.control.Readiness()) {
			if !c.OK {
				return false
			}
		}
		return true
	})
}

// await polls until a condition holds, or reports false when ctx ends first.
func await(ctx context.Context, holds func() bool) bool {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// handOver leaves the shared addresses to the conch that has them, too, within
// ctx: new connections go there, those that came here are accepted to the last
// one, then the listeners close. Every connection is asked to end (GOAWAY,
// Connection: close), and what is asked on it meanwhile is answered.
func (s *server) handOver(ctx context.Context) {
	s.leaving.Store(true)
	var yielding sync.WaitGroup
	s.mu.Lock()
	for key, g := range s.gated {
		if tcp, ok := s.listeners[key].(*net.TCPListener); ok {
			yielding.Go(func() { s.yield(ctx, tcp, g) })
		}
	}
	web := s.gated["http"]
	s.mu.Unlock()
	yielding.Wait()
	streams := make(chan struct{})
	go func() {
		defer close(streams)
		s.grpc.GracefulStop()
	}()
	if web != nil {
		idling, cancel := context.WithTimeout(ctx, min(idle, s.config.Limits.Drain.Std()/2))
		await(idling, func() bool { return web.Open() == 0 })
		cancel()
	}
	select {
	case <-streams:
	case <-ctx.Done():
		s.grpc.Stop()
		<-streams
	}
}

// yield steers connections away from a listener and closes it once none comes
// any more. Which of two listeners is the other cannot be asked; what arrives
// tells.
func (s *server) yield(ctx context.Context, l *net.TCPListener, g *gate.Listener) {
	other := uint32(1)
	steered := time.Now()
	steer := func() {
		steered = time.Now()
		if err := reuseport.Yield(l, other); err != nil {
			s.log.Warn("new connections cannot be steered away; some may be lost", "error", err)
		}
	}
	steer()
	await(ctx, func() bool {
		last := g.LastAccepted()
		if last.Sub(steered) > elsewhere {
			other = 1 - other
			steer()
			return false
		}
		return time.Since(steered) >= quiet && time.Since(last) >= quiet && g.Shaken()
	})
	if err := l.Close(); err != nil {
		s.log.Debug("a listener did not close cleanly", "error", err)
	}
}
