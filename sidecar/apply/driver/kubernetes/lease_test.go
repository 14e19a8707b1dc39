// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorization "k8s.io/api/authorization/v1"
	coordination "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
)

// One conch at a time leads a release. The next one leads as soon as the first gives the lease back.
func TestOneConchLeads(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t)
		lost := make(chan string, 4)
		var mu sync.Mutex
		known := map[string][]string{}
		lead := func(identity string) *kubernetes.Lease {
			l, err := kubernetes.Lead(t.Context(), kubernetes.LeaseOptions{
				Connection: kubernetes.Connection{Client: c.Clientset, Namespace: namespace}, Release: "conch", Identity: identity, Logger: slog.New(slog.DiscardHandler),
				Lost: func(leader string) { lost <- leader },
				Leads: func(leader string) {
					mu.Lock()
					defer mu.Unlock()
					known[identity] = append(known[identity], leader)
				},
			})
			require.NoError(t, err)
			return l
		}
		first := lead("first")
		require.NoError(t, first.Held())
		second := make(chan *kubernetes.Lease)
		go func() { second <- lead("second") }()
		select {
		case <-second:
			t.Fatal("two lead")
		case <-time.After(time.Minute):
		}
		first.Release()
		require.ErrorIs(t, first.Held(), kubernetes.ErrNotLeading)
		next := <-second
		require.NoError(t, next.Held())
		synctest.Wait()
		next.Release()
		require.Empty(t, lost, "a lease that is given back is not lost")
		require.Equal(t, []string{"first", "second"}, known["second"], "who waits knows who leads")
	})
}

// A conch that leads is not told of the one before as of one that took the lease from it, however late that news comes.
func TestLateNewsOfTheLeaderBefore(t *testing.T) {
	c := newCluster(t)
	o := kubernetes.LeaseOptions{
		Connection: kubernetes.Connection{Client: c.Clientset, Namespace: namespace}, Release: "conch", Identity: "first", Logger: slog.New(slog.DiscardHandler),
		Lost: func(leader string) { t.Error("lost to " + leader) },
	}
	first, err := kubernetes.Lead(t.Context(), o)
	require.NoError(t, err)
	o.Identity = "second"
	heard, goOn, knows := make(chan struct{}), make(chan struct{}), make(chan struct{})
	o.Leads = func(leader string) {
		if leader == "second" {
			close(knows)
			return
		}
		close(heard)
		<-goOn // a machine that does other things first
	}
	next := make(chan *kubernetes.Lease)
	go func() {
		l, err := kubernetes.Lead(t.Context(), o)
		assert.NoError(t, err)
		next <- l
	}()
	<-heard
	first.Release()
	second := <-next
	close(goOn)
	<-knows
	require.Eventually(t, func() bool { return second.Held() == nil }, 30*time.Second, time.Millisecond)
	second.Release()
}

// While the API server does not answer, nothing may be changed, before another could lead. Afterwards the same conch leads on.
func TestALeaseThatCannotBeRenewed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var down atomic.Bool
		c.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down.Load(), nil, errors.New("the API server does not answer")
		})
		l, err := kubernetes.Lead(t.Context(), kubernetes.LeaseOptions{
			Connection: kubernetes.Connection{Client: c.Clientset, Namespace: namespace}, Release: "conch", Identity: "a", Logger: slog.New(slog.DiscardHandler),
			Lost: func(leader string) { t.Error("lost to " + leader) },
		})
		require.NoError(t, err)
		require.Nil(t, l.Silence())
		down.Store(true)
		begin := time.Now()
		time.Sleep(3 * time.Second)
		require.Nil(t, l.Silence(), "nothing waits yet")
		eventually(t, "the right to change anything ends", func() bool { return l.Held() != nil })
		require.Less(t, time.Since(begin), kubernetes.DefaultLease, "before the lease does")
		time.Sleep(10 * time.Minute)
		silence := l.Silence()
		require.WithinDuration(t, begin, silence.Since, 2*time.Second, "it is known since when")
		require.EqualError(t, silence.Cause, "the API server does not answer")
		down.Store(false)
		eventually(t, "it leads again", func() bool { return l.Held() == nil })
		require.Nil(t, l.Silence())
		l.Release()
	})
}

// From its start until it leads a conch asks once for each permission.
func TestPermissionsAreAskedForOnce(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	open(t, options(c))
	l, err := kubernetes.Lead(t.Context(), kubernetes.LeaseOptions{
		Connection: kubernetes.Connection{Client: c.Clientset, Namespace: namespace}, Release: "conch", Identity: "a", Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	defer l.Release()
	asked := map[authorization.ResourceAttributes]int{}
	for _, a := range c.Actions() {
		if a.Matches("create", "selfsubjectaccessreviews") {
			asked[*a.(clienttesting.CreateAction).GetObject().(*authorization.SelfSubjectAccessReview).Spec.ResourceAttributes]++
		}
	}
	require.Contains(t, asked, authorization.ResourceAttributes{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace})
	for what, n := range asked {
		require.Equal(t, 1, n, what)
	}
}

// TestRequestsAtRest: a release that is left alone costs the API server the owner's renewals, however many replicas wait, and nothing else.
func TestRequestsAtRest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, node("node-1"), slice("node-1"))
		lead := func(ctx context.Context, identity string) (*kubernetes.Lease, error) {
			return kubernetes.Lead(ctx, kubernetes.LeaseOptions{
				Connection: kubernetes.Connection{Client: c.Clientset, Namespace: namespace}, Release: "conch", Identity: identity, Logger: slog.New(slog.DiscardHandler),
			})
		}
		owner, err := lead(t.Context(), "owner")
		require.NoError(t, err)
		o := options(c)
		o.Fence = owner.Held
		open(t, o)
		waiting, stop := context.WithCancel(t.Context())
		var others sync.WaitGroup
		for _, identity := range []string{"second", "third"} {
			o.Fence = func() error { return kubernetes.ErrNotLeading }
			open(t, o)
			others.Go(func() {
				_, err := lead(waiting, identity)
				assert.ErrorIs(t, err, context.Canceled)
			})
		}
		time.Sleep(time.Minute)
		c.ClearActions()
		const rest = 2 * time.Minute
		time.Sleep(rest)
		asked := map[string]int{}
		for _, a := range c.Actions() {
			asked[a.GetVerb()+" "+a.GetResource().Resource]++
		}
		renewals := asked["update leases"]
		delete(asked, "update leases")
		require.Empty(t, asked)
		require.LessOrEqual(t, renewals, int(rest.Seconds()), "once a second at most")
		require.NoError(t, owner.Held())
		stop()
		others.Wait()
		owner.Release()
	})
}

// TestALeaseIsTakenSoon: from an owner that ends within a second or so, from one that is gone once the lease is over, with and without the right to watch it.
func TestALeaseIsTakenSoon(t *testing.T) {
	for name, denied := range map[string]bool{"watched": false, "asked for": true} {
		for _, duration := range []time.Duration{time.Second, kubernetes.ShortestLease, kubernetes.DefaultLease, 15 * time.Second} {
			t.Run(name+" "+duration.String(), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					c := newCluster(t)
					c.denied["watch leases"] = denied
					var gone atomic.Bool // the first one's requests do not arrive
					c.PrependReactor("update", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
						holder := a.(clienttesting.UpdateAction).GetObject().(*coordination.Lease).Spec.HolderIdentity
						return gone.Load() && (holder == nil || *holder != "second" && *holder != "third"), nil, errors.New("cut off")
					})
					lead := func(identity string) *kubernetes.Lease {
						l, err := kubernetes.Lead(t.Context(), kubernetes.LeaseOptions{
							Connection: kubernetes.Connection{Client: c.Clientset, Namespace: namespace}, Release: "conch", Identity: identity, Duration: duration,
							Logger: slog.New(slog.DiscardHandler), Lost: func(string) {},
						})
						assert.NoError(t, err)
						return l
					}
					first, next := lead("first"), make(chan *kubernetes.Lease, 1)
					go func() { next <- lead("second") }()
					time.Sleep(20 * time.Second)
					begin := time.Now()
					gone.Store(true)
					second := <-next
					require.ErrorIs(t, first.Held(), kubernetes.ErrNotLeading, "never two")
					require.LessOrEqual(t, time.Since(begin), max(duration, kubernetes.ShortestLease)+2*time.Second)
					first.Release()
					gone.Store(false)
					go func() { next <- lead("third") }()
					time.Sleep(20 * time.Second)
					begin = time.Now()
					second.Release()
					third := <-next
					require.LessOrEqual(t, time.Since(begin), 1500*time.Millisecond)
					third.Release()
				})
			})
		}
	}
}

// TestALeaseThatIsGivenBackIsNotHeld: not from the moment on in which another may have it.
func TestALeaseThatIsGivenBackIsNotHeld(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var l *kubernetes.Lease
		given := false
		c.PrependReactor("update", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if holder := a.(clienttesting.UpdateAction).GetObject().(*coordination.Lease).Spec.HolderIdentity; holder == nil || *holder == "" {
				given = true
				assert.ErrorIs(t, l.Held(), kubernetes.ErrNotLeading)
			}
			return false, nil, nil
		})
		var err error
		l, err = kubernetes.Lead(t.Context(), kubernetes.LeaseOptions{
			Connection: kubernetes.Connection{Client: c.Clientset, Namespace: namespace}, Release: "conch", Identity: "first",
			Logger: slog.New(slog.DiscardHandler), Lost: func(string) {},
		})
		require.NoError(t, err)
		require.NoError(t, l.Held())
		l.Release()
		require.True(t, given)
	})
}

// TestWhoStepsAsideChangesNothingBefore: changes that are under way are made before another may look at the cluster. Where none leads, this one does again.
func TestWhoStepsAsideChangesNothingBefore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var given atomic.Bool
		c.PrependReactor("update", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if holder := a.(clienttesting.UpdateAction).GetObject().(*coordination.Lease).Spec.HolderIdentity; holder == nil || *holder == "" {
				given.Store(true)
			}
			return false, nil, nil
		})
		l, err := kubernetes.Lead(t.Context(), kubernetes.LeaseOptions{
			Connection: kubernetes.Connection{Client: c.Clientset, Namespace: namespace}, Release: "conch", Identity: "first",
			Logger: slog.New(slog.DiscardHandler), Lost: func(string) {},
		})
		require.NoError(t, err)
		aside := make(chan struct{})
		go func() {
			l.StepAside()
			close(aside)
		}()
		synctest.Wait()
		require.ErrorIs(t, l.Held(), kubernetes.ErrNotLeading)
		time.Sleep(900 * time.Millisecond)
		require.ErrorIs(t, l.Held(), kubernetes.ErrNotLeading)
		require.False(t, given.Load())
		<-aside
		time.Sleep(time.Second)
		require.True(t, given.Load())
		require.ErrorIs(t, l.Held(), kubernetes.ErrNotLeading)
		time.Sleep(10 * time.Second)
		require.NoError(t, l.Held())
		l.Release()
	})
}
