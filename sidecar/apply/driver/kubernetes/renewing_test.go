// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// renewals are two conches' ways to one lease.
func renewals(t *testing.T, lost func(string)) (a, b renewing) {
	t.Helper()
	client := fake.NewClientset()
	of := func(identity string) renewing {
		l := &Lease{o: LeaseOptions{Connection: Connection{Client: client, Namespace: "n"}, Release: "r", Identity: identity, Lost: lost}, times: timesOf(0), wall: time.Now, led: make(chan struct{}), executing: execution{changed: make(chan struct{})}}
		return renewing{&resourcelock.LeaseLock{
			LeaseMeta: meta.ObjectMeta{Name: l.name(), Namespace: "n"}, Client: client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		}, l}
	}
	return of("a"), of("b")
}

func held(by string, turn int) resourcelock.LeaderElectionRecord {
	return resourcelock.LeaderElectionRecord{HolderIdentity: by, LeaseDurationSeconds: 5, LeaderTransitions: turn}
}

// A conch that was cut off gives back no lease but its own: what the API server says of it is read just before, and may be another's.
func TestALeaseOfAnotherIsNotGivenBack(t *testing.T) {
	a, b := renewals(t, func(string) {})
	require.NoError(t, a.Create(t.Context(), held("a", 0)))
	close(a.l.led)
	_, _, err := b.Get(t.Context())
	require.NoError(t, err)
	require.NoError(t, b.Update(t.Context(), held("b", 1))) // it has waited for the end of a's

	_, _, err = a.Get(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, a.Update(t.Context(), held("", 1)), errAnothers)
	record, _, err := b.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, "b", record.HolderIdentity)
	require.NoError(t, b.Update(t.Context(), held("", 1)))
}

// A conch that leads again learns that another has led since, though that one has given the lease back, and never looks like the holder.
func TestAnotherHasLedInBetween(t *testing.T) {
	for name, c := range map[string]struct {
		turns []int
		lost  int
	}{
		"renewals":                      {[]int{3, 3, 3}, 0},
		"given back and taken again":    {[]int{3, 4, 4, 5}, 0},
		"another in between":            {[]int{3, 5}, 1},
		"another, and renewals":         {[]int{3, 5, 5}, 2},
		"another after a pause of both": {[]int{3, 4, 6}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			lost := 0
			a, _ := renewals(t, func(by string) { require.Empty(t, by); lost++ })
			require.NoError(t, a.Create(t.Context(), held("a", c.turns[0])))
			close(a.l.led)
			for _, turn := range c.turns[1:] {
				a.l.renewed.Store(nil) // or it has just been renewed
				require.NoError(t, a.Update(t.Context(), held("a", turn)))
			}
			require.Equal(t, c.lost, lost)
			require.Equal(t, c.lost == 0, a.l.Held() == nil, "who knows only what was before changes nothing")
		})
	}
}

// A machine that was suspended for a minute comes back to a lease that may be another's, though its own clock did not run meanwhile. A clock that is set back says nothing.
func TestAMachineIsSuspended(t *testing.T) {
	a, _ := renewals(t, func(string) {})
	require.NoError(t, a.Create(t.Context(), held("a", 0)))
	require.NoError(t, a.l.Held())
	a.l.wall = func() time.Time { return time.Now().Add(-time.Hour) }
	require.NoError(t, a.l.Held())
	a.l.wall = func() time.Time { return time.Now().Add(time.Minute) }
	require.ErrorIs(t, a.l.Held(), ErrNotLeading)
	require.NoError(t, a.Update(t.Context(), held("a", 0)), "it is asked for at once")
	require.NoError(t, a.l.Held())
}

// What the watch saw of the conch before is not taken for the lease of one that leads.
func TestTheWatchLagsBehindTheLease(t *testing.T) {
	a, _ := renewals(t, func(string) {})
	require.NoError(t, a.Create(t.Context(), held("a", 1)))
	other := "b"
	a.l.others, a.l.heard = &coordination.Lease{Spec: coordination.LeaseSpec{HolderIdentity: &other}}, time.Now()
	record, _, err := a.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, "b", record.HolderIdentity, "who waits asks nobody")
	close(a.l.led)
	record, _, err = a.Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, "a", record.HolderIdentity)
}
