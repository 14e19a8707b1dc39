// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// watch reads the state of one server until it has ended or is left.
type watch struct {
	stop context.CancelFunc
	// again makes it read the state at once.
	again chan struct{}

	mu sync.Mutex
	// looks counts the reads: it is the number of the one that began last.
	looks uint64
	// revisions of models, as the server reported them; they change by a load only.
	revisions map[string]string
}

// touch notes that conch changes a model, and returns the number of the last read
// that is out of date by that.
func (w *watch) touch(model string) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.revisions, model)
	return w.looks
}

// anew has the watch look at once, and returns the number of the last look that began
// before.
func (w *watch) anew() uint64 {
	select {
	case w.again <- struct{}{}:
	default:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.looks
}

// lookEvery is how often the models of a server are read, at least: a change that
// conch did not make is repaired within a second.
const lookEvery = 500 * time.Millisecond

// startWatch begins to look at a server that is up.
func (l *loop) startWatch(v *server) {
	ctx, cancel := context.WithCancel(l.r.life)
	v.watch = &watch{stop: cancel, again: make(chan struct{}, 1), revisions: map[string]string{}}
	r, s, w := l.r, v.process, v.watch
	r.tasks.Go(func() {
		defer cancel()
		select {
		case <-ctx.Done():
		case <-s.Done():
			r.box.put(func(l *loop) { l.died(v) })
		}
	})
	r.tasks.Go(func() {
		pause := time.NewTimer(0)
		defer pause.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.again:
			case <-pause.C:
			}
			r.look(ctx, v, s, w)
			pause.Reset(min(lookEvery, r.o.Health.Period))
		}
	})
}

// revisionsAtOnce bounds the questions to a server that was just found.
const revisionsAtOnce = 16

// look asks a server whether it lives and what it has loaded.
func (r *Reconciler) look(ctx context.Context, v *server, s driver.Server, w *watch) {
	w.mu.Lock()
	w.looks++
	number := w.looks
	w.mu.Unlock()
	if err := r.o.Health.Ask(ctx, s); err != nil {
		if ctx.Err() == nil {
			r.box.put(func(*loop) { v.Broken = err.Error() })
		}
		return
	}
	asking, cancel := context.WithTimeout(ctx, r.o.Health.Deadline)
	defer cancel()
	models, err := s.Models(asking)
	if err != nil {
		r.box.put(func(l *loop) { l.unseen(v, number) })
		return // its health is asked again
	}
	group, each := errgroup.WithContext(asking)
	group.SetLimit(revisionsAtOnce)
	for _, model := range models {
		w.mu.Lock()
		_, known := w.revisions[model]
		w.mu.Unlock()
		if known {
			continue
		}
		group.Go(func() error {
			revision, err := s.Parameter(each, model, repo.RevisionParameter)
			if err != nil {
				return err // it was unloaded meanwhile
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.revisions[model] = revision
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		r.box.put(func(l *loop) { l.unseen(v, number) })
		return
	}
	found := make(map[string]string, len(models))
	w.mu.Lock()
	for _, model := range models {
		found[model] = w.revisions[model]
	}
	for model := range w.revisions {
		if _, still := found[model]; !still {
			delete(w.revisions, model)
		}
	}
	w.mu.Unlock()
	r.box.put(func(l *loop) { l.looked(v, number, found) })
}
