// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observers

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch"
)

// enoughTraffic is how long conch observes before it points at what it could say.
const enoughTraffic = time.Minute

// Hint logs once, after a while of traffic in mode observe, where to read what
// conch would gain: a new user does not know yet that conch estimates it.
type Hint struct {
	dispatch.Observer
	observing func() bool
	admin     string
	log       *slog.Logger

	traffic atomic.Bool
	mu      sync.Mutex
	timer   *time.Timer
	closed  bool
}

// PointAtAdvice wraps the listener of the request path. Observing says, when the
// time comes, whether conch still only observes.
func PointAtAdvice(next dispatch.Observer, observing func() bool, admin string, log *slog.Logger) *Hint {
	return &Hint{Observer: next, observing: observing, admin: admin, log: log}
}

// Arrived implements dispatch.Observer.
func (h *Hint) Arrived(model string, rows int, at time.Time) {
	if !h.traffic.Load() && h.traffic.CompareAndSwap(false, true) {
		h.start()
	}
	h.Observer.Arrived(model, rows, at)
}

func (h *Hint) start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.timer = time.AfterFunc(enoughTraffic, h.say)
	}
}

func (h *Hint) say() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed && h.observing() {
		h.log.Info("a minute of traffic was observed: `tritonctl advise` says what Conch would gain with it", "admin", h.admin)
	}
}

// Run implements component.Component: after ctx has ended no hint is written.
func (h *Hint) Run(ctx context.Context) error {
	<-ctx.Done()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.timer != nil {
		h.timer.Stop()
	}
	return nil
}
