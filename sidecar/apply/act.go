// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

// task is an action under way.
type task struct {
	decide.Action
	cancel context.CancelFunc
	// final: it has come so far that it cannot be called off.
	final *atomic.Bool
	begin time.Time
}

// outcome is the result that an action passes to the loop when it has ended.
type outcome struct {
	err  error
	text string
	// note changes the loop's state.
	note func(*loop)
}

// do begins an action in a goroutine of its own.
func (l *loop) do(a decide.Action) {
	ctx, cancel := context.WithCancel(l.r.life)
	t := &task{Action: a, cancel: cancel, final: &atomic.Bool{}, begin: time.Now()}
	l.under[a.Slot()] = t
	var work func(context.Context, *task) outcome
	switch v := l.server(a.Server); a.Kind {
	case decide.Start:
		v = l.newServer(a.Key, l.specs[a.Key])
		work = l.starting(v)
	case decide.LoadIt:
		v.touch(a.Model)
		work = l.loading(v, a)
	case decide.WarmUp:
		work = l.warming(v, a)
	case decide.Unload:
		work = l.unloading(v, a)
	case decide.Stop, decide.Kill:
		work = l.ending(v, a.Kind)
	}
	l.r.tasks.Go(func() {
		o := work(ctx, t)
		cancel()
		l.r.box.put(func(l *loop) { l.done(t, o) })
	})
}

// done takes in how an action ended.
func (l *loop) done(t *task, o outcome) {
	if l.under[t.Slot()] == t {
		delete(l.under, t.Slot())
	}
	if v := l.server(t.Server); v != nil && t.Model != "" {
		v.touch(t.Model)
	}
	if o.note != nil {
		o.note(l)
	}
	e := Action{Kind: t.Kind, Partition: t.Partition, Model: t.Model, Start: t.begin, Duration: time.Since(t.begin), Err: o.err, Text: o.text}
	l.r.o.Logger.Debug("action", "kind", e.Kind, "partition", e.Partition, "model", e.Model, "seconds", e.Duration.Seconds(), "remark", e.Text, "error", e.Err)
	if l.r.o.OnAction != nil {
		l.r.o.OnAction(e)
	}
}

// touch notes that conch changes a model: reads that began before are out of date.
func (v *server) touch(model string) {
	if v.watch != nil {
		v.touched[model] = v.watch.touch(model)
	}
}

// starting starts a server.
func (l *loop) starting(v *server) func(context.Context, *task) outcome {
	spec, r := l.specs[v.Key], l.r
	return func(ctx context.Context, _ *task) outcome {
		s, err := r.start(ctx, &spec)
		err = brief(err)
		superseded := ctx.Err() != nil || r.o.Fence() != nil
		return outcome{err: err, note: func(l *loop) {
			if err != nil {
				l.remove(v)
				if !l.wants(v) {
					l.sweep(spec)
				}
				if !superseded {
					f := l.starts[v.Key]
					f.Attempts++
					f.Reason, f.Next = err.Error(), time.Now().Add(l.r.o.Backoff.delay(f.Attempts))
					l.starts[v.Key] = f
					l.reasons[v.Partition] = f.Reason
				}
				return
			}
			v.process, v.Phase = s, decide.Up
			v.Known = !l.r.o.Driver.Lasting() // a server of conch's own is empty
			if v.Known {
				v.reported = true
				if l.restarts[v.Partition] > 0 {
					l.tell(v, true, l.reasons[v.Partition])
				}
			}
			l.startWatch(v)
		}}
	}
}

// start makes the directory of a server and starts it.
func (r *Reconciler) start(ctx context.Context, spec *driver.Spec) (driver.Server, error) {
	if spec.RepositoryDir = r.o.Driver.Repository(spec.GPU.GetId()); spec.RepositoryDir == "" {
		spec.RepositoryDir = filepath.Join(r.directory(*spec), "repository")
		if err := os.MkdirAll(spec.RepositoryDir, 0o755); err != nil {
			return nil, err
		}
	}
	s, err := r.o.Driver.Start(ctx, *spec)
	if err == nil {
		r.settings(ctx, s.Endpoint())
	}
	if err == nil && ctx.Err() != nil {
		return nil, errors.Join(context.Cause(ctx), s.Stop(context.WithoutCancel(ctx)))
	}
	return s, err
}

// directory is what a server has for itself in Dir. The same process has the same
// one: after a restart its files are there.
func (r *Reconciler) directory(spec driver.Spec) string {
	return filepath.Join(r.o.Dir, safe(spec.Partition.GetId())+"-"+spec.Hash)
}

// sweep removes the directory of a server that is gone and not wanted any more. It
// is moved aside at once, so that another server may have its name.
func (l *loop) sweep(spec driver.Spec) {
	if l.r.o.Driver.Repository(spec.GPU.GetId()) != "" {
		return
	}
	l.swept++
	aside := filepath.Join(l.r.o.Dir, fmt.Sprintf(".gone-%d", l.swept))
	if err := os.Rename(l.r.directory(spec), aside); err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			l.r.o.Logger.Warn("the directory of a server that is gone could not be removed", "error", err)
		}
		return
	}
	l.r.tasks.Go(func() {
		if err := os.RemoveAll(aside); err != nil {
			l.r.o.Logger.Warn("the directory of a server that is gone could not be removed", "error", err)
		}
	})
}

// settings passes the settings that clients have made to a server. The server serves
// even if it refuses them.
func (r *Reconciler) settings(ctx context.Context, at driver.Endpoint) {
	if r.o.Settings == nil {
		return
	}
	within, cancel := context.WithTimeout(ctx, r.o.SettingsTimeout)
	defer cancel()
	if err := r.o.Settings(within, at); err != nil && ctx.Err() == nil {
		r.o.Logger.Warn("a server did not take every setting of clients", "endpoint", at.GRPC, "error", err)
	}
}

// safe makes an id fit to begin a directory's name.
func safe(id string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == '*' || r == 0 || r == '.' {
			return '_'
		}
		return r
	}, id[:min(len(id), 64)])
}

// directories are those that servers have in Options.Dir.
func directories(found []driver.Server) map[string]bool {
	used := map[string]bool{}
	for _, s := range found {
		used[filepath.Dir(s.Spec().RepositoryDir)] = true
	}
	return used
}

// loading stages the files of a model and has its server load it.
func (l *loop) loading(v *server, a decide.Action) func(context.Context, *task) outcome {
	s, r, revision, key := v.process, l.r, l.desired.Revision.ID, decide.Load{Key: a.Key, Model: a.Model, Revision: a.Revision}
	_, before := v.Loaded[a.Model]
	return func(ctx context.Context, _ *task) outcome {
		has, err := r.load(ctx, s, revision, a)
		err = brief(err)
		superseded := ctx.Err() != nil || r.o.Fence() != nil
		return outcome{err: err, note: func(l *loop) {
			var refused *driver.LoadError
			switch {
			case err == nil:
				delete(l.loads, key)
				delete(l.errs, key)
				v.Loaded[a.Model] = decide.Loaded{Revision: has, Answers: before, Memory: l.want.Models[a.Model].Memory, Calls: l.calls(a.Model, has), Members: l.members(a.Model, has)}
				k := l.kept[key]
				k.loaded = time.Now()
				l.kept[key] = k
				delete(v.warmed, a.Model) // its statistics begin anew
				return
			case superseded:
				return // the next look says what came of it
			}
			f := l.loads[key]
			f.Attempts++
			f.Reason, f.Next = err.Error(), time.Now().Add(l.r.o.Backoff.delay(f.Attempts))
			if errors.As(err, &refused) {
				f.Hung = refused.Hung
				if refused.Hung {
					v.Hung[a.Model] = true
				}
				if refused.Died {
					f.Deaths++
				}
				if refused.Hung && refused.Died && v.Broken == "" {
					v.Broken = err.Error()
				}
			}
			l.giveUp(&f)
			l.loads[key], l.errs[key] = f, err
		}}
	}
}

// load returns the revision that the server has loaded then.
func (r *Reconciler) load(ctx context.Context, s driver.Server, revision string, a decide.Action) (string, error) {
	if err := r.o.Repository.Stage(ctx, revision, []string{a.Model}, s.Spec().RepositoryDir); err != nil {
		return "", err
	}
	if err := r.o.Fence(); err != nil { // files take a while
		return "", err
	}
	within, cancel := context.WithTimeout(ctx, r.o.LoadTimeout)
	defer cancel()
	if err := s.Load(within, a.Model); err != nil {
		return "", err
	}
	has, err := s.Parameter(within, a.Model, repo.RevisionParameter)
	if err != nil {
		return "", &driver.LoadError{Model: a.Model, Err: fmt.Errorf("it was loaded, and its configuration cannot be read: %w", err)}
	}
	if has != a.Revision {
		return "", &driver.LoadError{Model: a.Model, Err: fmt.Errorf("the server has loaded revision %q of it, and %q was staged", has, a.Revision)}
	}
	r.settings(ctx, s.Endpoint())
	return has, nil
}

// warming sends a model its first requests.
func (l *loop) warming(v *server, a decide.Action) func(context.Context, *task) outcome {
	s, r, spec := v.process, l.r, l.specs[v.Key]
	model := l.desired.Revision.Model(a.Model)
	o := warmup.Options{Budget: r.o.WarmUpBudget, Measure: a.Measure && !r.o.Driver.Lasting() && !l.profiled(a, spec)}
	if m := l.measured[v.GPU]; o.Measure && time.Since(m.last) < measuringPause {
		o.Budget -= m.took // its models are measured one after the other
	}
	o.Enough = time.Duration(policy.NewIndex(l.desired.Snapshot).Model(a.Model).GetSloUs()) * time.Microsecond
	for _, in := range spec.Partition.GetInstances() {
		if in.GetModel() == a.Model {
			o.MaxBatch = int(in.GetMaxBatch())
		}
	}
	gpu := v.GPU
	return func(ctx context.Context, _ *task) outcome {
		begin := time.Now()
		within, release := context.WithTimeout(ctx, r.o.LoadTimeout)
		result, err := r.o.WarmUp(within, s.Endpoint().GRPC, model.Config, o)
		err = brief(err)
		never := within.Err() != nil // it hangs as a load may
		release()
		if ctx.Err() != nil {
			return outcome{err: context.Cause(ctx)}
		}
		if len(result.Samples) > 0 && r.o.Recorder != nil {
			r.o.Recorder.Record(a.Model, spec.GPU.GetType(), spec.Partition.GetThreadPercentage(), result.Samples)
		}
		text := result.Skipped
		if err != nil {
			// Not every model takes zeros. Its clients will show whether it works.
			text = err.Error()
		}
		lost := status.Code(err) == codes.Unavailable || status.Code(err) == codes.NotFound || never
		dead := err != nil && forward.DeadStub(forward.Status(err).Message())
		return outcome{text: text, note: func(l *loop) {
			loaded, has := v.Loaded[a.Model]
			key := decide.Load{Key: a.Key, Model: a.Model, Revision: l.revisionOf(a.Model)}
			switch {
			case !has || loaded.Revision != a.Revision:
			case err != nil && !lost && !dead && l.kept[key].faults > 0 && l.accepts[a.Model]:
				l.takeOut(v, key, err) // a merge group that failed before fails still
			case lost || dead || err != nil && loaded.Answers && l.accepts[a.Model]:
				// The server is not there, or the new files fail where the old ones answered:
				// the other places keep those.
				f := l.loads[key]
				f.Attempts++
				if dead && v.Broken == "" {
					k := l.kept[key]
					k.deaths++
					l.kept[key], f.Deaths = k, k.deaths
					v.Broken = "the process of model " + a.Model + " has died: " + text
				}
				f.Reason, f.Next = "its first request failed: "+text, time.Now().Add(l.r.o.Backoff.delay(f.Attempts))
				l.giveUp(&f)
				l.loads[key], l.errs[key] = f, &driver.LoadError{Model: a.Model, Err: fmt.Errorf("its first request failed: %w", err)}
			default:
				delete(l.loads, key)
				delete(l.errs, key)
				l.accepts[a.Model] = err == nil && result.Skipped == ""
				loaded.Answers, loaded.Tried = true, true
				v.Loaded[a.Model] = loaded
				v.warmed[a.Model] = result.Statistics
				if len(result.Samples) > 0 {
					l.timed[timing{a.Model, a.Revision, spec.GPU.GetType(), spec.Partition.GetThreadPercentage()}] = true
				}
			}
			if o.Measure {
				m := l.measured[gpu]
				if time.Since(m.last) >= measuringPause {
					m.took = 0
				}
				l.measured[gpu] = measuring{m.took + time.Since(begin), time.Now()}
			}
		}}
	}
}

// unloading waits for the leases on a place and unloads the model.
func (l *loop) unloading(v *server, a decide.Action) func(context.Context, *task) outcome {
	s, r, routes := v.process, l.r, keys(v.routes)
	return func(ctx context.Context, t *task) outcome {
		r.drained(ctx, routes, a.Model)
		if !r.finally(ctx, t, func() {
			loaded := v.Loaded[a.Model]
			loaded.Leaving = true
			v.Loaded[a.Model] = loaded
		}) {
			return outcome{err: context.Canceled} // wanted again
		}
		err := r.unload(context.WithoutCancel(ctx), s, a.Model)
		return outcome{err: err, note: func(*loop) {
			if err == nil {
				delete(v.Loaded, a.Model)
				return
			}
			// The next look says what the server has.
			delete(v.Loaded, a.Model)
			l.r.o.Logger.Warn("a model could not be unloaded; it is tried again", "partition", v.Partition, "model", a.Model, "error", err)
		}}
	}
}

func (r *Reconciler) unload(ctx context.Context, s driver.Server, model string) error {
	within, cancel := context.WithTimeout(ctx, r.o.DrainTimeout)
	defer cancel()
	err := r.o.Fence() // requests took a while to end
	if err == nil {
		err = s.Unload(within, model)
	}
	if err != nil {
		sleep(ctx, r.o.Backoff.Min)
		return err
	}
	return r.o.Repository.Unstage(within, s.Spec().RepositoryDir, model)
}

// finally has the loop agree that an action cannot be called off from now on, and
// note that: what it takes down is not routed to again in the same moment. False
// where it was called off.
func (r *Reconciler) finally(ctx context.Context, t *task, note func()) bool {
	agreed := make(chan struct{})
	r.box.put(func(*loop) {
		if ctx.Err() == nil {
			t.final.Store(true)
			note()
			close(agreed)
		}
	})
	select {
	case <-agreed:
		return true
	case <-ctx.Done():
		return t.final.Load()
	}
}

// drained waits until the last lease is back, as long as DrainTimeout.
func (r *Reconciler) drained(ctx context.Context, routes []string, model string) {
	within, cancel := context.WithTimeout(ctx, r.o.DrainTimeout)
	defer cancel()
	for _, id := range routes {
		select {
		case <-r.o.Router.Drained(id, model):
		case <-within.Done():
			if ctx.Err() == nil {
				r.o.Logger.Warn("requests on an old place do not end; it is taken down all the same", "partition", id, "model", model, "after", r.o.DrainTimeout)
			}
			return
		}
	}
}

// ending stops a server once its last lease is back, or kills it.
func (l *loop) ending(v *server, kind decide.Kind) func(context.Context, *task) outcome {
	s, r, routes := v.process, l.r, keys(v.routes)
	var leaving []string
	if r.o.Driver.Lasting() && !l.want.Given {
		leaving = l.leaving(v)
	}
	if kind == decide.Kill {
		v.Phase = decide.Stopping
	}
	return func(ctx context.Context, t *task) outcome {
		if kind == decide.Kill {
			t.final.Store(true)
			err := s.Kill(ctx)
			return outcome{err: err, note: func(l *loop) { l.died(v); v.watch.stop() }}
		}
		r.drained(ctx, routes, "")
		if !r.finally(ctx, t, func() { v.Phase = decide.Stopping }) {
			return outcome{err: context.Canceled} // wanted again
		}
		v.watch.stop()
		var errs []error
		for _, model := range leaving {
			errs = append(errs, r.unload(ctx, s, model))
		}
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.o.StopTimeout)
		defer cancel()
		errs = append(errs, s.Stop(within), r.removeDirectory(context.WithoutCancel(ctx), v))
		return outcome{err: errors.Join(errs...), note: func(l *loop) { l.remove(v); delete(l.mutes, v) }}
	}
}

// leaving are the models of an attached server that conch put there and that are no
// longer desired there.
func (l *loop) leaving(v *server) []string {
	var all []string
	for model, loaded := range v.Loaded {
		stays := loaded.Revision == ""
		for _, p := range l.desired.Plan.GetPartitions() {
			for _, in := range p.GetInstances() {
				stays = stays || in.GetModel() == model && p.GetNode()+"/"+p.GPU() == v.GPU
			}
		}
		if !stays {
			all = append(all, model)
		}
	}
	return all
}

func keys[V any](m map[string]V) []string {
	all := make([]string, 0, len(m))
	for k := range m {
		all = append(all, k)
	}
	return all
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
