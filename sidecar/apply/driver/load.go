// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// parallelLoads bounds the models that a server loads at a time. Each instance of
// the python backend is a process that must come up within a time that the
// server sets; on a busy machine, of many that start together one is late, and
// the server may abort as it cleans up after it.
const parallelLoads = 3

// Load loads a model, within the driver's time for a load. If the server dies
// meanwhile, it is tried once more in the server's next life: what killed it may
// have been another load.
func (p *supervised) Load(ctx context.Context, model string) error {
	select {
	case p.loading <- struct{}{}:
		defer func() { <-p.loading }()
	case <-ctx.Done():
		return fmt.Errorf("partition %s: load %q: other loads do not end: %w", p.spec.Partition.GetId(), model, context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, p.limits.load)
	defer cancel()
	s, err := p.living(ctx)
	if err != nil {
		return fmt.Errorf("partition %s: load %q: %w", p.spec.Partition.GetId(), model, err)
	}
	p.mu.Lock()
	hung := p.hung[model]
	p.mu.Unlock()
	if hung && !p.limits.foreign {
		if s, err = p.recycle(ctx, s); err != nil {
			return fmt.Errorf("partition %s: load %q: %w", p.spec.Partition.GetId(), model, err)
		}
	}
	died, err := p.loadInto(ctx, s, model)
	if !died || ctx.Err() != nil {
		return err
	}
	p.log.Warn("the partition's server died in a load, which is tried once more", "model", model, "error", err)
	next, again := p.after(ctx, s)
	if again != nil {
		return errors.Join(err, again)
	}
	_, err = p.loadInto(ctx, next, model)
	return err
}

// loadInto loads a model into a life and reports whether that was over before
// the load was.
func (p *supervised) loadInto(ctx context.Context, s server, model string) (died bool, err error) {
	// Wanted before it is there: if the server dies just after the load, the next
	// life must have the model.
	p.mu.Lock()
	had := p.models[model]
	p.models[model] = true
	p.mu.Unlock()
	within, release := whileAlive(ctx, s)
	defer release()
	err = s.load(within, model)
	if err == nil {
		p.mu.Lock()
		delete(p.adopted, model)
		p.mu.Unlock()
		return false, nil
	}
	// gRPC may notice the deadline before the context does.
	timedOut := errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
	p.mu.Lock()
	if !had {
		delete(p.models, model)
	}
	if timedOut {
		p.hung[model] = true
	}
	p.mu.Unlock()
	return !timedOut && over(s, err), fmt.Errorf("partition %s: %w", p.spec.Partition.GetId(), &LoadError{Model: model, Hung: timedOut, Err: err})
}

// over reports whether a call failed because a life is over. A connection ends a
// moment before its server is known to be dead.
func over(s server, err error) bool {
	wait := time.Duration(0)
	if status.Code(err) == codes.Unavailable {
		wait = time.Second
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-s.done():
		return true
	default:
	}
	select {
	case <-s.done():
		return true
	case <-timer.C:
		return false
	}
}

// recycle kills a life that will never finish a load and waits for the next.
func (p *supervised) recycle(ctx context.Context, s server) (server, error) {
	p.log.Warn("restarting the partition's server: a load in it hangs")
	if err := s.kill(); err != nil {
		p.log.Warn("a killed server left something behind", "error", err)
	}
	return p.after(ctx, s)
}

// after waits for the life that follows one that is over.
func (p *supervised) after(ctx context.Context, s server) (server, error) {
	for {
		next, err := p.living(ctx)
		if err != nil {
			return nil, err
		}
		if next != s {
			return next, nil
		}
		// Dead, and the supervision has not noticed yet.
		p.mu.Lock()
		changed, same := p.changed, p.current == s
		p.mu.Unlock()
		if !same {
			continue
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrDown, context.Cause(ctx))
		case <-changed:
		}
	}
}
