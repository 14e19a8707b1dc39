// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package fronts

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/conch-serving/conch/internal/reuseport"
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
func (f *Fronts) handOver(ctx context.Context) {
	f.leaving.Store(true)
	var yielding sync.WaitGroup
	for _, key := range keys {
		d, _ := f.at(key)
		if tcp, ok := d.Listener.(*net.TCPListener); ok {
			yielding.Go(func() { f.yield(ctx, tcp, d.gated) })
		}
	}
	web, open := f.at("http")
	yielding.Wait()
	streams := make(chan struct{})
	go func() {
		defer close(streams)
		f.grpc.GracefulStop()
	}()
	if open {
		idling, cancel := context.WithTimeout(ctx, min(idle, f.o.Config.Limits.Drain.Std()/2))
		await(idling, func() bool { return web.gated.Open() == 0 })
		cancel()
	}
	select {
	case <-streams:
	case <-ctx.Done():
		f.grpc.Stop()
		<-streams
	}
}

// yield steers connections away from a listener and closes it once none comes
// any more. Which of two listeners is the other cannot be asked; what arrives
// tells.
func (f *Fronts) yield(ctx context.Context, l *net.TCPListener, g *gate.Listener) {
	other := uint32(1)
	steered := time.Now()
	steer := func() {
		steered = time.Now()
		if err := reuseport.Yield(l, other); err != nil {
			f.o.Log.Warn("new connections cannot be steered away; some may be lost", "error", err)
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
		f.o.Log.Debug("a listener did not close cleanly", "error", err)
	}
}
