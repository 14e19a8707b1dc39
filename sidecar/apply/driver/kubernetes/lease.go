// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Times of the lease. A leader that has not renewed it for renewDeadline writes nothing any more, a second before another may lead. These were measured to
// be short enough for 4.3 s without a leader after a kill, and long enough to pass over a slow API server.
const (
	leaseDuration = 4 * time.Second
	renewDeadline = 3 * time.Second
	retryPeriod   = 500 * time.Millisecond
)

// ErrNotLeading: this conch does not hold the release's lease at the moment, and changes nothing of the cluster.
var ErrNotLeading = errors.New("another conch may lead this release: the lease is not held, so that nothing of the cluster is changed")

// LeaseOptions of Lead.
type LeaseOptions struct {
	Connection
	Release string
	// Identity is this conch's alone, over restarts.
	Identity string
	// Lost is called once another conch leads. It must not wait.
	Lost   func(leader string)
	Logger *slog.Logger
}

// Lease is the right to change the servers of a release.
type Lease struct {
	o LeaseOptions
	// began is the clock of renewed, which is when the last renewal that succeeded was asked for.
	began   time.Time
	renewed atomic.Int64
	led     chan struct{}
	first   sync.Once
	stop    context.CancelFunc
	ended   sync.WaitGroup
}

// Lead waits until this conch leads its release. Afterwards it keeps the lease: where the API server does not answer, the lease is lost and taken again,
// and Held says meanwhile that nothing may be written. Where another conch took it, Lost is called.
func Lead(ctx context.Context, o LeaseOptions) (*Lease, error) {
	if err := o.permitted(ctx, toLead()); err != nil {
		return nil, fmt.Errorf("driver kubernetes: %w", err)
	}
	life, stop := context.WithCancel(context.Background())
	l := &Lease{o: o, began: time.Now(), led: make(chan struct{}), stop: stop}
	l.renewed.Store(-int64(time.Hour))
	lock := renewing{&resourcelock.LeaseLock{
		LeaseMeta: meta.ObjectMeta{Name: o.Release + "-leader", Namespace: o.Namespace}, Client: o.Client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
	}, l}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true, Name: o.Release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { l.first.Do(func() { close(l.led) }) },
			OnStoppedLeading: func() {
				if life.Err() == nil {
					o.Logger.Warn("the lease of the release is lost; requests go on, plans wait", "release", o.Release)
				}
			},
			OnNewLeader: func(leader string) {
				select {
				case <-l.led:
					if leader != "" && leader != o.Identity {
						o.Lost(leader)
					}
				default:
					if leader != "" && leader != o.Identity {
						o.Logger.Info("another conch leads this release; this one waits until it ends", "leader", leader)
					}
				}
			},
		},
	})
	if err != nil {
		stop()
		return nil, fmt.Errorf("driver kubernetes: lease: %w", err)
	}
	l.ended.Go(func() {
		for life.Err() == nil {
			elector.Run(life)
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

// Held is nil while no other conch can lead.
func (l *Lease) Held() error {
	if time.Since(l.began)-time.Duration(l.renewed.Load()) > renewDeadline {
		return ErrNotLeading
	}
	return nil
}

// Release gives the lease back, so that the next conch need not wait for its end.
func (l *Lease) Release() {
	l.stop()
	l.ended.Wait()
	l.renewed.Store(-int64(time.Hour))
}

// renewing notes when the lease was renewed: when that was asked for, since the answer may be late.
type renewing struct {
	resourcelock.Interface
	l *Lease
}

// Create implements resourcelock.Interface.
func (r renewing) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return r.noting(record, func() error { return r.Interface.Create(ctx, record) })
}

// Update implements resourcelock.Interface.
func (r renewing) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return r.noting(record, func() error { return r.Interface.Update(ctx, record) })
}

func (r renewing) noting(record resourcelock.LeaderElectionRecord, write func() error) error {
	asked := time.Since(r.l.began)
	err := write()
	if err == nil && record.HolderIdentity == r.l.o.Identity {
		r.l.renewed.Store(int64(asked))
	}
	return err
}
