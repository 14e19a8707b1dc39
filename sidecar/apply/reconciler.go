// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
)

// Reconciler keeps what is there as it is desired. Its methods may be called at
// the same time; none waits for a server but Settle and Close.
type Reconciler struct {
	o Options
	// setting makes Set one at a time: each writes to disk.
	setting sync.Mutex
	// closed is guarded by setting.
	closed  bool
	started atomic.Bool
	desired atomic.Pointer[Desired]
	// published is what the loop saw last.
	published atomic.Pointer[picture]
	// cut is CutOff; nil: it is not.
	cut atomic.Pointer[time.Time]

	box  *mailbox
	stop context.CancelFunc
	// life ends with Close: what is under way is cancelled by it.
	life  context.Context
	tasks sync.WaitGroup // actions and watches
	ended chan struct{}  // closed when the loop has ended
}

// executions are the batches that a server executes at once.
func (r *Reconciler) executions(s driver.Server) driver.Executions {
	if several, says := s.(driver.Several); says {
		return several.Executions()
	}
	return driver.Executions{AtOnce: r.o.Executions}
}

// picture is what others may see of the loop's state; immutable.
type picture struct {
	observed Observed
	warmed   map[string]map[string][]*tritonpb.ModelStatistics // by route, model
}

// New makes a reconciler that does nothing yet.
func New(o Options) (*Reconciler, error) {
	if o.WarmUp == nil {
		o.WarmUp = warmup.Run
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Fence == nil {
		o.Fence = func() error { return nil }
	}
	o.LoadTimeout = cmp.Or(o.LoadTimeout, 5*time.Minute)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 30*time.Second)
	o.StopTimeout = cmp.Or(o.StopTimeout, 30*time.Second)
	o.SettingsTimeout = cmp.Or(o.SettingsTimeout, 5*time.Second)
	o.WarmUpBudget = cmp.Or(o.WarmUpBudget, 5*time.Second)
	o.ParallelLoads = cmp.Or(o.ParallelLoads, 3)
	o.Health = o.Health.WithDefaults()
	o.Backoff = o.Backoff.withDefaults()
	if o.Driver == nil || o.Repository == nil || o.Router == nil || o.Store == nil {
		return nil, errors.New("apply: driver, repository, router and store have to be given")
	}
	r := &Reconciler{o: o, box: newMailbox(), ended: make(chan struct{})}
	r.life, r.stop = context.WithCancel(context.Background())
	r.published.Store(&picture{})
	return r, nil
}

// Start reads the desired state (nil at the very first start), finds the servers
// of an earlier conch, and begins to reconcile: what still runs as it is desired
// serves without a load. It is called once, before Set. Where the repository
// revision of the desired state is gone, the error wraps repo.ErrNoRevision, and
// servers are left as they are until the first Set.
func (r *Reconciler) Start(ctx context.Context) (*Desired, error) {
	d, kept, err := load(r.o.Store)
	if err != nil {
		return nil, err
	}
	found, err := r.o.Driver.Find(ctx)
	if err != nil {
		r.o.Logger.Warn("what an earlier conch left could not be removed altogether", "error", err)
	}
	if err := r.clean(directories(found)); err != nil {
		r.o.Logger.Warn("directories of servers that are gone could not be removed", "error", err)
	}
	l := newLoop(r)
	for _, s := range found {
		l.find(s)
	}
	var gone error
	if d != nil {
		for _, id := range append(kept.Before, kept.Revision) {
			revision, err := r.o.Repository.Get(id)
			if err == nil {
				l.remember(revision)
			} else if id == kept.Revision {
				gone = fmt.Errorf("the plan that served used repository revision %s: %w", id, err)
			}
			d.Revision = revision
		}
	}
	if d != nil && gone == nil && !d.Given {
		r.desired.Store(d)
		l.set(d)
	} else if d != nil {
		// Only its number goes on.
		r.desired.Store(&Desired{Generation: d.Generation})
		d = nil
	}
	r.started.Store(true)
	if len(found) > 0 && r.o.OnTakeOver != nil {
		r.o.OnTakeOver(l.takeOver())
	}
	go l.run()
	if r.o.Faulted != nil {
		r.tasks.Go(func() { r.watchFaults(r.life) })
	}
	return d, gone
}

// clean removes the directories in Dir that no server uses.
func (r *Reconciler) clean(used map[string]bool) error {
	entries, err := os.ReadDir(r.o.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if dir := filepath.Join(r.o.Dir, e.Name()); !used[dir] {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// Set makes a state the desired one: it is written to disk, and what is under way
// and not part of it is cancelled. It does not wait for servers. IfGeneration is
// the generation that the caller knows; 0 is any.
func (r *Reconciler) Set(ctx context.Context, d Desired, ifGeneration uint64) (uint64, error) {
	if err := supported(&d, r.o.Driver); err != nil {
		return 0, err
	}
	r.setting.Lock()
	defer r.setting.Unlock()
	if r.closed {
		return 0, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	present := r.desired.Load()
	last := uint64(0)
	if present != nil {
		last = present.Generation
	}
	if ifGeneration != 0 && ifGeneration != last {
		return 0, fmt.Errorf("%w: generation %d, not %d", ErrConflict, last, ifGeneration)
	}
	d.Generation = last + 1
	if d.Time.IsZero() {
		d.Time = time.Now()
	}
	if err := save(r.o.Store, &d, r.before(present, &d)); err != nil {
		return 0, err
	}
	r.desired.Store(&d)
	r.box.put(func(l *loop) { l.set(&d) })
	return d.Generation, nil
}

// before are the revisions of which servers may still have models: the last one
// is enough while Set is called faster than servers follow, for what is older is
// loaded anew.
func (r *Reconciler) before(present, next *Desired) []string {
	if present == nil || present.Revision == nil || present.Revision.ID == next.Revision.ID {
		return nil
	}
	return []string{present.Revision.ID}
}

// Desired is the present desired state; nil before the first.
func (r *Reconciler) Desired() *Desired {
	if d := r.desired.Load(); d != nil && d.Plan != nil {
		return d
	}
	return nil
}

// Observed is what was seen last.
func (r *Reconciler) Observed() Observed { return r.published.Load().observed }

// WarmedUp is what the server behind a route had counted of a model before
// clients were let in: its statistics hold that much too much.
func (r *Reconciler) WarmedUp(route, model string) []*tritonpb.ModelStatistics {
	return r.published.Load().warmed[route][model]
}

// Settle waits until every wanted instance, of the named models if there are any,
// is routed to or has failed. It returns the first failure: a *driver.LoadError,
// or a *StartError. A newer generation ends it with ErrSuperseded; generation 0 is
// whatever is desired. What failed is tried again nevertheless.
func (r *Reconciler) Settle(ctx context.Context, generation uint64, models ...string) error {
	result := make(chan error, 1)
	r.box.put(func(l *loop) { l.await(waiter{generation: generation, models: models, result: result, ctx: ctx}) })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.ended:
		return ErrClosed
	}
}

// Retry forgets what failed, of the named models if there are any: it is tried
// again at once.
func (r *Reconciler) Retry(models ...string) {
	r.box.put(func(l *loop) { l.retry(models) })
}

// Restart kills the server of a partition that has broken in a way that it does
// not notice itself, such as a python process of a model that died: Triton
// answers INTERNAL "Stub process ... is not healthy" from then on and never
// starts another. The server comes back with its models.
func (r *Reconciler) Restart(partition, reason string) error {
	return r.order(func(l *loop) error { return l.broken(partition, reason) })
}

// StartAnew has another process take the place of the server of a partition, for a
// reason. Requests go to the other places of its models from now on, or wait where
// there are none; the process ends once it has answered what it has, or after
// Options.DrainTimeout. ErrNotOurs where others run the server.
func (r *Reconciler) StartAnew(partition, reason string) error {
	return r.order(func(l *loop) error { return l.anew(partition, reason) })
}

// order has the loop do something, and returns how that went.
func (r *Reconciler) order(do func(*loop) error) error {
	result := make(chan error, 1)
	r.box.put(func(l *loop) { result <- do(l) })
	select {
	case err := <-result:
		return err
	case <-r.ended:
		return ErrClosed
	}
}

// Close ends the reconciler and, unless leave is set, every server of conch's
// own, letting each finish its requests as long as ctx allows. The route table
// still names them: drain the request path first. Servers that are left go on for
// the next conch to find.
func (r *Reconciler) Close(ctx context.Context, leave bool) error {
	r.setting.Lock()
	already := r.closed
	r.closed = true
	r.setting.Unlock()
	if already {
		return nil
	}
	if !r.started.Load() {
		r.stop()
		close(r.ended)
		return nil
	}
	servers := make(chan []*server, 1)
	r.box.put(func(l *loop) { servers <- l.close() })
	r.stop()
	r.tasks.Wait()
	var group errgroup.Group
	for _, s := range <-servers {
		group.Go(func() error {
			if leave || r.o.Driver.Lasting() {
				return s.process.Leave()
			}
			err := s.process.Stop(ctx)
			return errors.Join(err, r.removeDirectory(context.WithoutCancel(ctx), s))
		})
	}
	return group.Wait()
}

// removeDirectory removes the repository directory of a server that is gone.
func (r *Reconciler) removeDirectory(ctx context.Context, s *server) error {
	dir := s.process.Spec().RepositoryDir
	if dir == r.o.Driver.Repository(s.process.Spec().GPU.GetId()) {
		return nil // its server goes on serving from it
	}
	return errors.Join(r.o.Repository.Unstage(ctx, dir), os.RemoveAll(filepath.Dir(dir)))
}

// files is what is known of the files of models that may be loaded.
type files map[string]*repo.Model // by model and staged revision

func fileKey(model, revision string) string { return model + "\x00" + revision }
