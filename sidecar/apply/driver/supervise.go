// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// server is one life of a partition's server.
type server interface {
	endpoint() Endpoint
	// done is closed when the server is dead; death says why then.
	done() <-chan struct{}
	death() string
	load(ctx context.Context, model string) error
	unload(ctx context.Context, model string) error
	// shutdown lets the server finish, as long as ctx allows. It is always
	// followed by kill.
	shutdown(ctx context.Context) error
	// kill returns when nothing is left of the server.
	kill() error
}

// keeper is a server whose models others load: asked whether one is there.
type keeper interface {
	ready(ctx context.Context, model string) error
}

// launcher begins a life. A server that is not ready when it returns an error
// has been killed.
type launcher func(ctx context.Context) (server, error)

// maxReviveLoads is how many restarts in a row a model may spoil by not loading
// before the server comes up without it.
const maxReviveLoads = 3

// limits bound what a server may take: load one load, drain the end of the
// requests that it has accepted, health the answer that it lives. A foreign
// server is not ours to end.
type limits struct {
	load, drain time.Duration
	health      Health
	foreign     bool
}

// supervised is a Process made of lives.
type supervised struct {
	spec    Spec
	launch  launcher
	backoff Backoff
	limits  limits
	log     *slog.Logger
	loading chan struct{} // holds one for every load that is under way

	stop   context.CancelFunc // ends the supervision
	ended  chan struct{}      // closed when it has ended
	onStop func(*supervised)

	mu       sync.Mutex
	current  server        // nil while down
	last     Endpoint      // of the current or the last life
	changed  chan struct{} // closed and replaced whenever current changes
	models   map[string]bool
	adopted  map[string]bool // those that others loaded
	hung     map[string]bool
	failed   map[string]int // loads that failed in restarts, in a row
	restarts int
	stopped  bool
}

// supervise starts the first life and watches it and all that follow.
func supervise(ctx context.Context, spec Spec, launch launcher, backoff Backoff, limits limits, log *slog.Logger, onStop func(*supervised)) (*supervised, error) {
	if spec.Notify == nil {
		spec.Notify = func(Event) {}
	}
	first, err := launch(ctx)
	if err != nil {
		return nil, fmt.Errorf("partition %s: %w", spec.Partition.GetId(), err)
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	limits.health = limits.health.withDefaults()
	p := &supervised{
		spec: spec, launch: launch, backoff: backoff.withDefaults(), limits: limits, log: log.With("partition", spec.Partition.GetId()),
		loading: make(chan struct{}, parallelLoads), stop: stop, ended: make(chan struct{}), onStop: onStop,
		current: first, last: first.endpoint(), changed: make(chan struct{}), models: map[string]bool{}, adopted: map[string]bool{}, hung: map[string]bool{}, failed: map[string]int{},
	}
	go p.watch(life, first)
	return p, nil
}

// watch is the supervision: wait for death, tell, start again, tell.
func (p *supervised) watch(ctx context.Context, s server) {
	defer close(p.ended)
	failures := 0
	for {
		born := time.Now()
		reason, ended := p.await(ctx, s)
		if !ended {
			return
		}
		if time.Since(born) >= p.backoff.Stable {
			failures = 0
		}
		p.set(nil)
		p.log.Warn("the partition's server died", "reason", reason)
		p.notify(false, reason, nil)
		if err := s.kill(); err != nil { // its children may live on
			p.log.Warn("a dead server left something behind", "error", err)
		}
		for s = nil; s == nil; failures++ {
			if !sleep(ctx, p.backoff.delay(failures)) {
				return
			}
			revived, missing, err := p.revive(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				p.log.Warn("the partition's server did not come back", "error", err, "next_try_in", p.backoff.delay(failures+1))
				p.notify(false, err.Error(), nil)
			default:
				s = revived
				p.log.Info("the partition's server is back", "restarts", p.count(), "missing", missing)
				p.notify(true, reason, missing)
			}
		}
	}
}

// await waits until a life is over or hangs, and says why; false when ctx ended
// first.
func (p *supervised) await(ctx context.Context, s server) (reason string, ended bool) {
	probing, stop := context.WithCancel(ctx)
	defer stop()
	var hung <-chan string
	if asked, ok := s.(prober); ok {
		hung = p.limits.health.watch(probing, asked)
	}
	select {
	case <-ctx.Done():
		return "", false
	case <-s.done():
		return s.death(), true
	case reason = <-hung:
		return reason, true
	}
}

// revive begins another life and gives it the models back.
func (p *supervised) revive(ctx context.Context) (s server, missing []string, err error) {
	p.mu.Lock()
	p.restarts++
	p.mu.Unlock()
	s, err = p.launch(ctx)
	if err != nil {
		return nil, nil, err
	}
	// The life is not current before it has its models: nobody else loads into
	// it or stops it meanwhile.
	p.mu.Lock()
	models := slices.Sorted(maps.Keys(p.models))
	clear(p.hung)
	p.mu.Unlock()
	ctx, cancel := whileAlive(ctx, s)
	defer cancel()
	var mu sync.Mutex
	group, loading := errgroup.WithContext(ctx)
	group.SetLimit(parallelLoads)
	for _, model := range models {
		group.Go(func() error {
			within, cancel := context.WithTimeout(loading, p.limits.load)
			defer cancel()
			again, tries := s.load, maxReviveLoads
			if present, ok := s.(keeper); ok && p.isAdopted(model) {
				again, tries = present.ready, 1
			}
			err := again(within, model)
			mu.Lock()
			defer mu.Unlock()
			p.mu.Lock()
			defer p.mu.Unlock()
			if err == nil {
				p.failed[model] = 0
				return nil
			}
			if loading.Err() == nil {
				p.failed[model]++
			}
			if p.failed[model] < tries {
				return fmt.Errorf("load model %q again: %w", model, err)
			}
			missing = append(missing, model)
			delete(p.models, model)
			delete(p.adopted, model)
			return nil
		})
	}
	err = group.Wait()
	select {
	case <-s.done():
		err = errors.Join(errors.New(s.death()), err)
	default:
	}
	if err != nil {
		return nil, nil, errors.Join(err, s.kill())
	}
	slices.Sort(missing)
	p.set(s)
	return s, missing, nil
}

func (p *supervised) set(s server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current = s
	if s != nil {
		p.last = s.endpoint()
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *supervised) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.restarts
}

func (p *supervised) notify(up bool, reason string, missing []string) {
	p.spec.Notify(Event{
		Partition: p.spec.Partition.GetId(), Up: up, Reason: reason, Restarts: p.count(), Endpoint: p.Endpoint(), Missing: missing,
	})
}

// Endpoint is where the server is reached, or was before it died.
func (p *supervised) Endpoint() Endpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// living waits for a life.
func (p *supervised) living(ctx context.Context) (server, error) {
	for {
		p.mu.Lock()
		s, changed, stopped := p.current, p.changed, p.stopped
		p.mu.Unlock()
		switch {
		case stopped:
			return nil, ErrStopped
		case s != nil:
			return s, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrDown, context.Cause(ctx))
		case <-changed:
		}
	}
}

// Adopt takes a model that others loaded as one to serve.
func (p *supervised) Adopt(model string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.models[model], p.adopted[model] = true, true
}

// Abandon is Adopt's opposite: the model stays where it is.
func (p *supervised) Abandon(model string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.models, model)
	delete(p.adopted, model)
}

func (p *supervised) isAdopted(model string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.adopted[model]
}

// Unload unloads a model. In a server that is down there is nothing to unload.
func (p *supervised) Unload(ctx context.Context, model string) error {
	p.mu.Lock()
	s, stopped := p.current, p.stopped
	delete(p.models, model)
	delete(p.adopted, model)
	hung := p.hung[model]
	p.mu.Unlock()
	if stopped {
		return ErrStopped
	}
	if s == nil || hung {
		return nil
	}
	within, release := whileAlive(ctx, s)
	defer release()
	if err := s.unload(within, model); err != nil {
		select {
		case <-s.done():
			return nil
		default:
			return fmt.Errorf("partition %s: unload %q: %w", p.spec.Partition.GetId(), model, err)
		}
	}
	return nil
}

// Stop ends the server and its supervision.
func (p *supervised) Stop(ctx context.Context) error {
	p.mu.Lock()
	if p.stopped {
		p.mu.Unlock()
		<-p.ended
		return nil
	}
	p.stopped = true
	p.mu.Unlock()
	p.stop()
	<-p.ended
	p.mu.Lock()
	s, hangs := p.current, len(p.hung) > 0
	models := slices.Sorted(maps.Keys(p.models))
	p.current = nil
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	if p.onStop != nil {
		defer p.onStop(p)
	}
	if s == nil {
		return nil
	}
	var unclean error
	if !hangs && !p.limits.foreign { // a server that hangs in a load ignores SIGTERM
		unclean = p.release(ctx, s, models)
	}
	return errors.Join(unclean, s.kill())
}

// Restart kills the server; the supervision starts it again and gives it its
// models back. Of a server that is down nothing is asked.
func (p *supervised) Restart(reason string) error {
	if p.limits.foreign {
		return fmt.Errorf("restart partition %s: %w; whoever runs it has to", p.spec.Partition.GetId(), ErrForeign)
	}
	p.mu.Lock()
	s := p.current
	p.mu.Unlock()
	if s == nil {
		return nil
	}
	p.log.Warn("restarting the partition's server", "reason", reason)
	return s.kill()
}

// release unloads everything, so that accepted requests are answered, and asks
// the server to end.
func (p *supervised) release(ctx context.Context, s server, models []string) error {
	// The unload of a model whose python process is dead never ends.
	bounded, cancel := context.WithTimeout(ctx, p.limits.drain)
	defer cancel()
	within, release := whileAlive(bounded, s)
	defer release()
	group, unloading := errgroup.WithContext(within)
	for _, model := range models {
		group.Go(func() error { return s.unload(unloading, model) })
	}
	err := group.Wait()
	select {
	case <-s.done():
		return fmt.Errorf("partition %s: died while it was stopped: %s", p.spec.Partition.GetId(), s.death())
	default:
	}
	if err == nil {
		err = s.shutdown(ctx)
	}
	if err != nil {
		return fmt.Errorf("partition %s: killed, requests may have been cut off: %w", p.spec.Partition.GetId(), err)
	}
	return nil
}

// whileAlive is ctx until the server dies.
func whileAlive(ctx context.Context, s server) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	gone := make(chan struct{})
	go func() {
		select {
		case <-s.done():
			cancel(fmt.Errorf("%w: %s", ErrDown, s.death()))
		case <-gone:
		}
	}()
	return ctx, sync.OnceFunc(func() { close(gone); cancel(nil) })
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
