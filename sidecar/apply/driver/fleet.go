// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"log/slog"
	"sync"
)

// fleet is what a driver has running. Its zero value is usable.
type fleet struct {
	mu      sync.Mutex
	running map[*supervised]bool
	closed  bool
}

// start supervises a new server. Stopped, if not nil, is called when it has been
// stopped for good; not where start fails.
func (f *fleet) start(ctx context.Context, spec Spec, launch launcher, backoff Backoff, limits limits, log *slog.Logger, stopped func()) (Process, error) {
	if f.over() {
		return nil, ErrStopped
	}
	p, err := supervise(ctx, spec, launch, backoff, limits, log, func(p *supervised) {
		f.mu.Lock()
		delete(f.running, p)
		f.mu.Unlock()
		if stopped != nil {
			stopped()
		}
	})
	if err != nil {
		return nil, err
	}
	if !f.add(p) {
		// Closed meanwhile: its stop is the last that is heard of it.
		p.onStop = nil
		return nil, errors.Join(ErrStopped, p.Stop(ctx))
	}
	return p, nil
}

func (f *fleet) over() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

func (f *fleet) add(p *supervised) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	if f.running == nil {
		f.running = make(map[*supervised]bool)
	}
	f.running[p] = true
	return true
}

// close ends all that runs, without letting it finish, and whatever is started
// from now on. It returns false if it was called before.
func (f *fleet) close() bool {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return false
	}
	f.closed = true
	var left []*supervised
	for p := range f.running {
		left = append(left, p)
	}
	f.mu.Unlock()
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for _, p := range left {
		// Its error would be that requests were cut off, which is what was asked.
		_ = p.Stop(now)
	}
	return true
}
