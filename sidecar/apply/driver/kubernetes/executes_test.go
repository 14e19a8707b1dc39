// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/conch-serving/conch/internal/bubble"
)

// leading is a lease that leads, and a conch that waits for it. Nothing of them runs by itself: a test says when.
func leading(t *testing.T) (a, b renewing) {
	a, b = renewals(t, func(string) {})
	require.NoError(t, a.Create(t.Context(), held("a", 0)))
	close(a.l.led)
	a.l.beat()
	return a, b
}

func (l *Lease) executes(t *testing.T, want Execution, why string) {
	t.Helper()
	is, known := l.Executes()
	require.Equal(t, want, is, why)
	require.Equal(t, want == Executes, known == nil)
}

// runs has time pass for a process that runs.
func (l *Lease) runs(d time.Duration) {
	for range d / (250 * time.Millisecond) {
		time.Sleep(250 * time.Millisecond)
		l.beat()
	}
}

// A process that was paused for longer than its lease executes nothing, whatever of it runs first, until it has asked whose the lease is.
func TestAPauseThatOutlastsTheLease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a, b := leading(t)
		a.l.executes(t, Executes, "it leads")
		time.Sleep(4 * time.Second)
		a.l.executes(t, Executes, "the lease lasts")
		time.Sleep(time.Minute)
		a.l.executes(t, Unsure, "before anything else runs")
		a.l.runs(10 * time.Second)
		a.l.executes(t, Unsure, "nothing is known yet")
		a.l.failed(&moment{time.Now().Add(-time.Minute), time.Now().Add(-time.Minute)}, errors.New("the time is over"))
		a.l.executes(t, Unsure, "it was asked before the pause")
		a.l.failed(a.l.now(), apierrors.NewConflict(coordination.Resource("leases"), "r-leader", errors.New("another version")))
		a.l.executes(t, Unsure, "somebody has written it")

		_, known := a.l.Executes()
		_, _, err := b.Get(t.Context())
		require.NoError(t, err)
		require.NoError(t, b.Update(t.Context(), held("b", 1)))
		a.l.isAnothers()
		<-known
		a.l.executes(t, Anothers, "the other one executes")
		a.l.isSure(a.l.now(), time.Hour)
		a.l.runs(10 * time.Second)
		a.l.executes(t, Anothers, "for good")
	})
}

// After a pause without another conch the same one leads on. A renewal that was answered before, or is answered late, does not say so.
func TestAPauseThatNobodyHasUsed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a, _ := leading(t)
		asked := a.l.now()
		time.Sleep(time.Minute)
		a.l.beat()
		a.l.isSure(asked, a.l.duration)
		a.l.runs(time.Second)
		a.l.executes(t, Unsure, "that was before the pause")
		_, known := a.l.Executes()
		_, _, err := a.Get(t.Context())
		require.NoError(t, err)
		require.NoError(t, a.Update(t.Context(), held("a", 0)))
		<-known
		a.l.executes(t, Executes, "it leads")
	})
}

// Who is cut off from the API server, and runs, goes on, as documented. So does who finds after a pause that it is cut off.
func TestWhoIsCutOffExecutes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a, _ := leading(t)
		for range 240 {
			a.l.runs(500 * time.Millisecond)
			a.l.failed(a.l.now(), errors.New("connection refused"))
			a.l.executes(t, Executes, "it runs")
		}
		require.ErrorIs(t, a.l.Held(), ErrNotLeading)
		time.Sleep(time.Minute)
		a.l.executes(t, Unsure, "it was paused besides")
		a.l.beat()
		time.Sleep(time.Millisecond)
		a.l.failed(a.l.now(), errors.New("connection refused"))
		a.l.executes(t, Executes, "it is cut off still")
	})
}

// silent is an API server that does not answer.
type silent struct{ resourcelock.Interface }

func (silent) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

// An API server that neither answers nor refuses is waited for no longer than the lease lasts, also after a pause.
func TestAPauseWithoutAnAnswer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a, _ := leading(t)
		time.Sleep(time.Minute)
		a.l.beat()
		a.l.executes(t, Unsure, "it was paused")
		time.Sleep(time.Millisecond)
		asked := time.Now()
		_, _, err := renewing{silent{a.Interface}, a.l}.Get(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, time.Since(asked), a.l.duration)
		a.l.executes(t, Executes, "it is cut off")
	})
}

// Who gives the lease back executes what it has accepted, however long that takes, unless it may be another's by then.
func TestWhoGivesTheLeaseBackFinishes(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*Lease)
		want   Execution
	}{
		"it leads":      {func(*Lease) {}, Executes},
		"it was paused": {func(*Lease) { time.Sleep(time.Minute) }, Unsure},
		"it has lost":   {(*Lease).isAnothers, Anothers},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				a, _ := leading(t)
				a.l.stop = func() {}
				c.before(a.l)
				a.l.Release()
				time.Sleep(10 * time.Second)
				a.l.executes(t, c.want, "nobody asks any more")
			})
		})
	}
}

// A machine that is suspended has a clock that stands still, and one that does not.
func TestASuspendedMachineExecutesNothing(t *testing.T) {
	a, _ := leading(t)
	a.l.executes(t, Executes, "it leads")
	a.l.wall = func() time.Time { return time.Now().Add(time.Minute) }
	a.l.executes(t, Unsure, "others have had that minute")
	a.l.beat()
	a.l.executes(t, Unsure, "others have had that minute")
	require.NoError(t, a.Update(t.Context(), held("a", 0)))
	a.l.executes(t, Executes, "the lease is its own still")
}
