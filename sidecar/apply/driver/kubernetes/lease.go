// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// DefaultLease is how long a lease lasts unless LeaseOptions says otherwise.
const DefaultLease = 5 * time.Second

// ShortestLease is the shortest that is safe. client-go compares renewals by the second: those of a shorter one, which come twice in some seconds, look like one to who
// waits, and would have it lead before the owner stops.
const ShortestLease = 4 * time.Second

// times of a lease, of how long it lasts. A leader that has not renewed it for deadline writes nothing any more, before another may lead. A leader renews it each
// renew: only that is a request at rest. Each look, in memory, it is asked whether that is due, and whether another's lease is free.
type times struct{ duration, deadline, renew, look time.Duration }

func timesOf(duration time.Duration) times {
	d := max(cmp.Or(duration, DefaultLease).Truncate(time.Second), ShortestLease) // a Lease counts seconds
	return times{duration: d, deadline: d * 8 / 10, renew: d * 3 / 10, look: min(d/10, 500*time.Millisecond)}
}

// ErrNotLeading: this conch does not hold the release's lease at the moment, and changes nothing of the cluster.
var ErrNotLeading = errors.New("another conch may lead this release: the lease is not held, so that nothing of the cluster is changed")

// LeaseOptions of Lead.
type LeaseOptions struct {
	Connection
	Release string
	// Identity is this conch's alone, over restarts.
	Identity string
	// Duration is how long the lease lasts, in whole seconds, ShortestLease at least; 0: DefaultLease.
	Duration time.Duration
	// Leads is called with the identity of whoever leads, this conch or another, each time that it is another one than before. It must not wait, and may be nil.
	Leads func(identity string)
	// Lost is called once another conch leads, or has led in between: then its name is not known, and empty. Only afterwards Executes says that the other one does. It must not
	// wait.
	Lost   func(leader string)
	Logger *slog.Logger
}

// Lease is the right to change the servers of a release.
type Lease struct {
	o LeaseOptions
	times
	// renewed is when the last renewal that succeeded was asked for; nil: none is in force.
	renewed atomic.Pointer[moment]
	wall    func() time.Time
	// unanswered is the first of the attempts to renew it in a row that failed; nil: the last one did not.
	unanswered atomic.Pointer[Silence]
	// aside ends this conch's turn; yields: that is about to be called.
	aside  atomic.Pointer[context.CancelFunc]
	yields atomic.Bool
	// executing is whether requests are.
	executing execution
	led       chan struct{}
	first     sync.Once
	stop      context.CancelFunc
	ended     sync.WaitGroup

	watching sync.Mutex
	others   *coordination.Lease // as the watch saw it last, at heard; nil: it is to be asked for
	heard    time.Time
	holder   string // whose it was when the API server was asked last
	// turn counts whose turn it is, as the Lease does: each time that one takes it who did not hold it. It is that of this conch's last renewal.
	turn int

	reporting sync.Mutex // held while Leads is called
	reported  string
}

// Lead waits until this conch, which Check has found to be allowed that, leads its release. Afterwards it keeps the lease: where the API server does not answer, the lease is lost and taken again,
// and Held says meanwhile that nothing may be written. Where another conch took it, Lost is called.
func Lead(ctx context.Context, o LeaseOptions) (*Lease, error) {
	follows := o.permitted(ctx, toFollow()) == nil
	if !follows {
		o.Logger.Warn("conch may not list and watch leases: while another conch leads, the API server is asked for the lease again and again. docs/kubernetes.md has the role")
	}
	life, stop := context.WithCancel(context.Background())
	l := &Lease{o: o, times: timesOf(o.Duration), wall: time.Now, led: make(chan struct{}), stop: stop, executing: execution{changed: make(chan struct{})}}
	lock := renewing{&resourcelock.LeaseLock{
		LeaseMeta: meta.ObjectMeta{Name: l.name(), Namespace: o.Namespace}, Client: o.Client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
	}, l}
	var elector *leaderelection.LeaderElector
	var err error
	elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: l.duration, RenewDeadline: l.deadline, RetryPeriod: l.look, ReleaseOnCancel: true, Name: o.Release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { l.first.Do(func() { close(l.led) }) },
			OnStoppedLeading: func() {
				if life.Err() == nil {
					o.Logger.Warn("the lease of the release is lost; requests go on, plans wait", "release", o.Release)
				}
			},
			OnNewLeader: func(string) { l.report(elector) },
		},
	})
	if err != nil {
		stop()
		return nil, fmt.Errorf("driver kubernetes: lease: %w", err)
	}
	if follows {
		if err := l.follow(life); err != nil {
			stop()
			return nil, fmt.Errorf("driver kubernetes: lease: %w", err)
		}
	}
	l.ended.Go(func() { l.beats(life) })
	l.ended.Go(func() {
		for life.Err() == nil {
			turn, end := context.WithCancel(life)
			l.aside.Store(&end)
			l.yields.Store(false)
			elector.Run(turn)
			aside := turn.Err() != nil
			end()
			if !aside {
				continue
			}
			select {
			case <-life.Done():
			case <-time.After(l.duration):
			}
		}
	})
	select {
	case <-l.led:
		return l, nil
	case <-ctx.Done():
		l.Release()
		return nil, context.Cause(ctx)
	}
}

// report says who leads now. The elector's calls come in goroutines of their own, late and in any order: what they name may be the conch from which this one has the
// lease by now.
func (l *Lease) report(elector *leaderelection.LeaderElector) {
	l.reporting.Lock()
	defer l.reporting.Unlock()
	led := l.hasLed() // before who leads is looked at: who has led and sees another has lost the lease
	leader := elector.GetLeader()
	if leader == "" {
		return
	}
	if leader != l.reported && l.o.Leads != nil {
		l.reported = leader
		l.o.Leads(leader) // before requests are handed on to it
	}
	switch {
	case leader == l.o.Identity:
	case led:
		l.o.Lost(leader)
		l.isAnothers()
	default:
		l.o.Logger.Info("another conch leads this release, until it ends", "leader", ParseReplica(leader).Name)
	}
}

// hasLed reports that this conch leads, or did.
func (l *Lease) hasLed() bool {
	select {
	case <-l.led:
		return true
	default:
		return false
	}
}

// Held is nil while no other conch can lead.
func (l *Lease) Held() error {
	if l.yields.Load() || l.age() > l.deadline {
		return ErrNotLeading
	}
	return nil
}

// Silence is that the API server does not confirm the lease of a conch that leads.
type Silence struct {
	// Since is when it was asked first without that answer, Cause how that failed the last time.
	Since time.Time
	Cause error
}

// Silence is why nothing of the cluster may be changed, where that is for want of an answer of the API server's; nil otherwise, as while it lacks one for too short a
// time, or this conch has given the lease back.
func (l *Lease) Silence() *Silence {
	if l.yields.Load() || l.Held() == nil {
		return nil
	}
	return l.unanswered.Load()
}

// failed notes how an attempt to renew the lease ended that was made at a time.
func (l *Lease) failed(asked *moment, err error) {
	l.isCutOff(asked, err)
	if !l.hasLed() || err == nil {
		return
	}
	since := asked.wall
	if before := l.unanswered.Load(); before != nil {
		since = before.Since
	}
	l.unanswered.Store(&Silence{since, err})
}

// moment is a time by both clocks of a machine: the one that people set, and the one that stands still while the machine is suspended.
type moment struct{ wall, running time.Time }

func (l *Lease) now() *moment { return &moment{l.wall().Round(0), time.Now()} }

// age is how long ago this conch renewed the lease, by the clock that says longer: for others time has gone on while this machine was suspended.
func (l *Lease) age() time.Duration {
	renewed := l.renewed.Load()
	if renewed == nil {
		return math.MaxInt64
	}
	return l.now().since(renewed)
}

// follow watches the lease until this conch leads, so that nobody need ask for it again and again.
func (l *Lease) follow(life context.Context) error {
	name := l.name()
	leases := informer(l.o.Client, l.o.Logger, "Leases", l.o.Client.CoordinationV1().Leases(l.o.Namespace), &coordination.Lease{}, "", "metadata.name="+name)
	see := func(object any) {
		if seen, is := object.(*coordination.Lease); is && seen.Name == name {
			l.watching.Lock()
			defer l.watching.Unlock()
			l.others, l.heard = seen, time.Now()
		}
	}
	_, err := leases.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, now any) { see(now) }, DeleteFunc: func(any) { l.forget() },
	})
	if err != nil {
		return err
	}
	within, end := context.WithCancel(life)
	l.ended.Go(func() {
		defer end()
		select {
		case <-life.Done():
		case <-l.led:
		}
	})
	l.ended.Go(func() { leases.RunWithContext(within) })
	return nil
}

func (l *Lease) forget() {
	l.watching.Lock()
	defer l.watching.Unlock()
	l.others = nil
}

// seen is the lease of another conch that has renewed it lately. Any other is asked for: one that is free, or whose holder or watch may be gone.
func (l *Lease) seen() (*resourcelock.LeaderElectionRecord, bool) {
	l.watching.Lock()
	defer l.watching.Unlock()
	if l.others == nil || time.Since(l.heard) > 2*l.renew {
		return nil, false
	}
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&l.others.Spec)
	return record, record.HolderIdentity != "" && record.HolderIdentity != l.o.Identity
}

func (l *Lease) name() string { return l.o.Release + "-leader" }

// Release gives the lease back, so that the next conch need not wait for its end.
func (l *Lease) Release() {
	l.stop()
	l.ended.Wait()
	l.renewed.Store(nil)
	l.finishes()
}

// StepAside gives the lease back, and asks for it again only after the time for which it lasts: another conch that waits has it by then, and Lost is called. Where none does,
// this one leads on. It changes nothing for as long before as where the lease is lost: what was asked for is done when another one looks at the cluster.
func (l *Lease) StepAside() {
	l.yields.Store(true)
	time.Sleep(l.duration - l.deadline)
	if end := l.aside.Load(); end != nil {
		(*end)()
	}
}

// renewing notes when the lease was renewed: when that was asked for, since the answer may be late. It asks the API server only where there is need to.
type renewing struct {
	resourcelock.Interface
	l *Lease
}

// Get implements resourcelock.Interface.
func (r renewing) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, lately := r.l.seen()
	if !lately || r.l.hasLed() { // the watch may lag behind what this conch has written itself
		ctx, end := context.WithTimeout(ctx, r.l.deadline) // client-go bounds only renewals: who has lost the lease might wait for a minute to know that nobody answers
		defer end()
		asked := r.l.now()
		record, raw, err := r.Interface.Get(ctx)
		if !apierrors.IsNotFound(err) {
			r.l.failed(asked, err)
		}
		if err == nil {
			r.l.watching.Lock()
			r.l.holder = record.HolderIdentity
			r.l.watching.Unlock()
		}
		return record, raw, err
	}
	raw, err := json.Marshal(record)
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (r renewing) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return r.noting(record, func() error { return r.Interface.Create(ctx, record) })
}

// errAnothers: client-go gives back a lease that it takes for its own, and reads it anew before, so that the API server would accept that.
var errAnothers = errors.New("the lease is another conch's by now, and not this one's to give back")

// Update implements resourcelock.Interface.
func (r renewing) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && r.l.holderOf() != r.l.o.Identity {
		return errAnothers
	}
	if record.HolderIdentity == "" {
		r.l.renewed.Store(nil) // before another may have it
		err := r.noting(record, func() error { return r.Interface.Update(ctx, record) })
		if err == nil {
			r.l.unanswered.Store(nil)
		}
		return err
	}
	if record.HolderIdentity == r.l.o.Identity && r.l.age() < r.l.renew-r.l.look/2 {
		return nil // it has just been renewed
	}
	return r.noting(record, func() error { return r.Interface.Update(ctx, record) })
}

func (r renewing) noting(record resourcelock.LeaderElectionRecord, write func() error) error {
	asked := r.l.now()
	err := write()
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) { // of these it knows more when it has asked whose the lease is
		r.l.failed(asked, err)
	}
	if err == nil && record.HolderIdentity == r.l.o.Identity {
		if r.l.anotherLed(record.LeaderTransitions) {
			r.l.o.Lost("")
			r.l.isSure(asked, r.l.duration) // nobody else executes
			return nil                      // not Held: what this conch knows is of before
		}
		r.l.renewed.Store(asked)
		r.l.unanswered.Store(nil)
		r.l.isSure(asked, r.l.duration)
		r.l.forget()
	}
	return err
}

func (l *Lease) holderOf() string {
	l.watching.Lock()
	defer l.watching.Unlock()
	return l.holder
}

// anotherLed reports that this conch has led before and another one since, which has given the lease back and was never seen. Else it notes this conch's turn.
// Where this conch itself has given the lease back and taken it again, one turn has gone by.
func (l *Lease) anotherLed(turn int) bool {
	l.watching.Lock()
	defer l.watching.Unlock()
	if l.hasLed() && turn > l.turn+1 {
		return true
	}
	l.turn, l.holder = turn, l.o.Identity
	return false
}
