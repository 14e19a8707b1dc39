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
	"slices"
	"sync"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/mps"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Applier holds the serving state: the target in force and the processes that
// serve it. One apply runs at a time; others wait.
type Applier struct {
	o       Options
	journal journal
	turn    chan struct{} // holds one token: whoever takes it may change the state
	closed  bool          // under turn

	// mu guards the serving state, and makes swaps of the route table one at a
	// time. It is never held while a process is started, loaded or stopped.
	mu      sync.Mutex
	serving *Target
	running map[string]*running // by partition
}

// New makes an applier that serves nothing yet.
func New(o Options) (*Applier, error) {
	if o.WarmUp == nil {
		o.WarmUp = warmup.Run
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 30*time.Second)
	o.StopTimeout = cmp.Or(o.StopTimeout, 30*time.Second)
	o.WarmUpBudget = cmp.Or(o.WarmUpBudget, 5*time.Second)
	o.SettingsTimeout = cmp.Or(o.SettingsTimeout, 5*time.Second)
	o.Parallel = cmp.Or(o.Parallel, 4)
	j, err := newJournal(o.DB)
	if err != nil {
		return nil, err
	}
	a := &Applier{o: o, journal: j, turn: make(chan struct{}, 1), running: map[string]*running{}}
	a.turn <- struct{}{}
	return a, nil
}

// Interrupted is an apply that a crash cut off.
type Interrupted struct {
	Started        time.Time
	Author, Reason string
	// Steps is how many had begun, Last the last of them in a few words.
	Steps int
	Last  string
}

// Resumed is what the journal held.
type Resumed struct {
	// Target is the last that served; nil at the very first start. If its revision
	// is no longer in the store, it is the store's error that Resume returns.
	Target *Target
	// Interrupted is nil after a clean end. An apply that was cut off before its
	// swap is forgotten; one that was cut off after it is the Target.
	Interrupted *Interrupted
}

// Resume reads the journal and removes what a crash left in the applier's
// directory; the driver has ended the processes. Call it once, before the first
// Apply, then apply Resumed.Target or a newer plan with a diff from nothing.
func (a *Applier) Resume(ctx context.Context) (*Resumed, error) {
	if err := a.take(ctx); err != nil {
		return nil, err
	}
	defer a.give()
	if a.Current() != nil {
		return nil, errors.New("resume: a plan serves already")
	}
	t, revision, cut, err := a.journal.read()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(a.o.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("resume: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(a.o.Dir, e.Name())); err != nil {
			return nil, fmt.Errorf("resume: %w", err)
		}
	}
	if err := a.journal.end(); err != nil {
		return nil, err
	}
	if t != nil {
		if t.Revision, err = a.o.Repository.Get(revision); err != nil {
			return nil, fmt.Errorf("resume: the plan that served used repository revision %s: %w", revision, err)
		}
	}
	return &Resumed{Target: t, Interrupted: cut}, nil
}

// Apply takes the serving state to the target. On error the old state still
// serves and the error, usually a *StepError, says which step failed; the
// result holds what was done and undone either way.
func (a *Applier) Apply(ctx context.Context, t Target, d *plan.Diff) (*Result, error) {
	begin := a.o.Now()
	if err := a.take(ctx); err != nil {
		return &Result{}, err
	}
	defer a.give()
	current := a.Current()
	if from := current.snapshotRevision(); d.From != from {
		return &Result{}, fmt.Errorf("%w: it starts from the answer to snapshot %d, and that to %d serves", ErrStale, d.From, from)
	}
	if err := supported(t); err != nil {
		return &Result{}, err
	}
	x := &execution{journal: a.journal, now: a.o.Now, onStep: a.o.OnStep, log: a.o.Logger, parallel: a.o.Parallel, undoTimeout: a.o.StopTimeout + a.o.DrainTimeout}
	if err := a.journal.begin(t, begin); err != nil {
		return &x.result, err
	}
	c := a.change(&t, d)
	if err := x.run(ctx, c.make()); err != nil {
		x.undo(ctx)
		x.result.Duration = a.o.Now().Sub(begin)
		return &x.result, errors.Join(err, a.journal.end())
	}
	// From here on the new state serves: what is left is to end the old one, which
	// the caller's impatience must not stop half-way.
	x.tidy(context.WithoutCancel(ctx), c.end())
	if err := a.journal.end(); err != nil {
		x.result.Warnings = append(x.result.Warnings, err.Error())
	}
	x.result.Duration = a.o.Now().Sub(begin)
	return &x.result, nil
}

// supported refuses what the contract can say and this build cannot do, before
// anything is started for it.
func supported(t Target) error {
	gpus := gpusOf(t.Snapshot)
	for _, p := range t.Plan.GetPartitions() {
		if gpus[p.GPU()] == nil {
			return fmt.Errorf("partition %s is on GPU %q, which the snapshot does not have", p.GetId(), p.GPU())
		}
		for _, in := range p.GetInstances() {
			m := t.Revision.Model(in.GetModel())
			if m == nil {
				return fmt.Errorf("partition %s: model %q of revision %s: %w", p.GetId(), in.GetModel(), t.Revision.ID, repo.ErrNoModel)
			}
			if err := m.Err(); err != nil {
				return fmt.Errorf("partition %s: model %q: %w", p.GetId(), in.GetModel(), err)
			}
		}
	}
	return nil
}

func gpusOf(s *policy.Snapshot) map[string]*policy.GPU {
	gpus := map[string]*policy.GPU{}
	for _, n := range s.GetNodes() {
		for _, g := range n.GetGpus() {
			gpus[g.GetId()] = g
		}
	}
	return gpus
}

func (t *Target) snapshotRevision() uint64 {
	if t == nil {
		return 0
	}
	return t.Plan.GetSnapshotRevision()
}

// Current is what serves; nil before the first Apply.
func (a *Applier) Current() *Target {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.serving
}

// Partitions are those that serve, sorted by id.
func (a *Applier) Partitions() []PartitionState {
	a.mu.Lock()
	defer a.mu.Unlock()
	states := make([]PartitionState, 0, len(a.running))
	for id, r := range a.running {
		share := mps.Of(r.partition, r.gpu, a.o.MPS)
		states = append(states, PartitionState{
			ID: id, Endpoint: r.endpoint, Up: r.up, Reason: r.reason, Restarts: r.restarts,
			Models: r.loaded(), Missing: slices.Clone(r.missing), SharesEnforced: share.Enforced, ShareReason: share.Reason,
		})
	}
	slices.SortFunc(states, func(x, y PartitionState) int { return cmp.Compare(x.ID, y.ID) })
	return states
}

// Restart kills the server of a partition that has broken in a way that it does
// not notice itself, such as a python process of a model that died: Triton
// answers INTERNAL "Stub process ... is not healthy" from then on and never
// starts another. The server comes back with its models.
func (a *Applier) Restart(partition, reason string) error {
	a.mu.Lock()
	r := a.running[partition]
	a.mu.Unlock()
	if r == nil {
		return fmt.Errorf("restart: no partition %q serves", partition)
	}
	return r.process.Restart(reason)
}

// Close stops every process, letting each finish its requests as long as ctx
// allows. The route table still names them: drain the request path first. What
// served is applied again after the next Resume.
func (a *Applier) Close(ctx context.Context) error {
	if err := a.take(context.WithoutCancel(ctx)); err != nil {
		return nil // closed before
	}
	defer a.give()
	a.closed = true
	a.mu.Lock()
	all := make([]*running, 0, len(a.running))
	for _, r := range a.running {
		all = append(all, r)
	}
	a.running, a.serving = map[string]*running{}, nil
	a.mu.Unlock()
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for i, r := range all {
		group.Go(func() { errs[i] = a.end(ctx, r) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// end stops a process and removes its directory.
func (a *Applier) end(ctx context.Context, r *running) error {
	stopped := r.process.Stop(ctx)
	if r.repository == a.o.Driver.Repository(r.partition.GPU()) {
		return stopped // its server goes on serving from it
	}
	return errors.Join(stopped, a.clear(context.WithoutCancel(ctx), r, nil))
}

// clear removes a process's directory, or from its server's own repository the
// models that were staged for it.
func (a *Applier) clear(ctx context.Context, r *running, models []string) error {
	switch {
	case r.repository != a.o.Driver.Repository(r.partition.GPU()):
		return errors.Join(a.o.Repository.Unstage(ctx, r.repository), os.RemoveAll(filepath.Dir(r.repository)))
	case len(models) > 0:
		return a.o.Repository.Unstage(ctx, r.repository, models...)
	}
	return nil
}

// take waits for the turn.
func (a *Applier) take(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait for another apply to end: %w", context.Cause(ctx))
	case <-a.turn:
	}
	if a.closed {
		a.give()
		return ErrClosed
	}
	return nil
}

func (a *Applier) give() { a.turn <- struct{}{} }
