// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"cmp"
	"context"
	"maps"
	"slices"
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
	// unread counts the reads in a row that a model's revision was not to be had in.
	unread map[string]int
}

// touch notes that conch changes a model, and returns the number of the last read
// that is out of date by that.
func (w *watch) touch(model string) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.revisions, model)
	delete(w.unread, model)
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
	v.watch = &watch{stop: cancel, again: make(chan struct{}, 1), revisions: map[string]string{}, unread: map[string]int{}}
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

// readsThatFail in a row are enough to take a model whose configuration cannot be read for one that is not there.
const readsThatFail = 3

// look asks a server whether it lives and what it has loaded.
func (r *Reconciler) look(ctx context.Context, v *server, s driver.Server, w *watch) {
	w.mu.Lock()
	w.looks++
	number := w.looks
	w.mu.Unlock()
	asked := time.Now()
	if err := r.o.Health.Ask(ctx, s); err != nil {
		if !ends(ctx, s) {
			r.box.put(func(l *loop) { l.mute(v, asked, err.Error()) })
		}
		return
	}
	asking, cancel := context.WithTimeout(ctx, r.o.Health.Deadline)
	defer cancel()
	models, err := s.Models(asking)
	if err != nil || !w.read(asking, s, models, r.o.Health.Deadline/4) {
		r.box.put(func(l *loop) { l.unseen(v, number); l.answered(v, asked) })
		return // its health is asked again
	}
	found := w.found(models)
	r.box.put(func(l *loop) { l.looked(v, number, found); l.answered(v, asked) })
}

// endWithin is how long after its last refusal of a probe the end of a server's process may become known.
const endWithin = time.Second

// ends reports whether a server that failed a health probe has ended, or ends within a moment: its connection closes before
// its process is reaped, and how the process ended says more than the probe. It reports true as well where ctx has ended.
func ends(ctx context.Context, s driver.Server) bool {
	wait := time.NewTimer(endWithin)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return true
	case <-s.Done():
		return true
	case <-wait.C:
		return false
	}
}

// read asks for the revisions of the models that are not known yet, each for so long at the most, those that were not to be
// had before last. It reports whether all are known but those that a server does not tell: a sick model must not hide the
// others.
func (w *watch) read(ctx context.Context, s driver.Server, models []string, limit time.Duration) (complete bool) {
	w.mu.Lock()
	unknown := slices.DeleteFunc(slices.Clone(models), func(m string) bool { _, known := w.revisions[m]; return known })
	slices.SortStableFunc(unknown, func(a, b string) int { return cmp.Compare(w.unread[a], w.unread[b]) })
	w.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(revisionsAtOnce)
	for _, model := range unknown {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			within, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			revision, err := s.Parameter(within, model, repo.RevisionParameter)
			w.mu.Lock()
			defer w.mu.Unlock()
			switch {
			case err == nil:
				w.revisions[model] = revision
				delete(w.unread, model)
			case ctx.Err() == nil: // or it was unloaded meanwhile, as the next look says
				w.unread[model]++
			}
			return nil
		})
	}
	_ = group.Wait() // what failed is counted
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(models, func(m string) bool {
		_, known := w.revisions[m]
		return !known && w.unread[m] < readsThatFail
	})
}

// found are the known revisions of the models that a server has; what it no longer has is forgotten.
func (w *watch) found(models []string) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := make(map[string]string, len(models))
	unread := make(map[string]int, len(w.unread))
	for _, model := range models {
		if revision, known := w.revisions[model]; known {
			found[model] = revision
		} else {
			unread[model] = w.unread[model]
		}
	}
	w.revisions, w.unread = maps.Clone(found), unread
	return found
}
