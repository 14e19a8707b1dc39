// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	authorization "k8s.io/api/authorization/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	discovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes/configmaps"
	"github.com/conch-serving/conch/sidecar/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const namespace = "serving"

// api is an API server that lets conch do everything but what is denied, as "verb resource".
type api struct {
	*fake.Clientset
	t      *testing.T
	denied map[string]bool
	// cut is the replica whose renewals do not arrive; empty: all do.
	cut atomic.Value
}

func newAPI(t *testing.T, objects ...runtime.Object) *api {
	a := &api{Clientset: fake.NewClientset(objects...), t: t, denied: map[string]bool{}}
	a.Discovery().(*discovery.FakeDiscovery).FakedServerVersion = &version.Info{Major: "1", Minor: "37"}
	a.cut.Store("")
	a.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		r := action.(clienttesting.CreateAction).GetObject().(*authorization.SelfSubjectAccessReview).DeepCopy()
		r.Status.Allowed = !a.denied[r.Spec.ResourceAttributes.Verb+" "+r.Spec.ResourceAttributes.Resource]
		return true, r, nil
	})
	a.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		holder, cut := action.(clienttesting.UpdateAction).GetObject().(*coordination.Lease).Spec.HolderIdentity, a.cut.Load().(string)
		return cut != "" && (holder == nil || *holder == "" || strings.HasPrefix(*holder, cut+"/")), nil, errors.New("the API server does not answer")
	})
	return a
}

// PrependReactor is the fake's own, which does not lock what replicas that run already read.
func (a *api) PrependReactor(verb, resource string, react clienttesting.ReactionFunc) {
	a.Lock()
	defer a.Unlock()
	a.Fake.PrependReactor(verb, resource, react)
}

// replica is a conch of the release.
type replica struct {
	*Cluster
	// led has how Lead ended.
	led  chan error
	stop context.CancelFunc
	// then are the calls of what makes the state its own; refuse is how they end.
	then   atomic.Int32
	refuse error
}

// replica begins to follow, without doors: those are package handon's, and tested there.
func (a *api) replica(name, owner string) *replica {
	a.t.Helper()
	c := &config.Config{}
	c.Listen.ReusePort = true
	c.Driver.Kubernetes.Release, c.Driver.Kubernetes.Owner = "conch", owner
	all, err := follow(a.t.Context(), c, kubernetes.Connection{Client: a.Clientset, Namespace: namespace}, name, 10, slog.New(slog.DiscardHandler))
	require.NoError(a.t, err)
	return &replica{Cluster: all, led: make(chan error, 1)}
}

// A conch that may not do all that it has to says at once what is missing: to read the state, to lead, and to start servers.
func TestAllThatIsMissingIsSaid(t *testing.T) {
	a := newAPI(t)
	a.denied["get configmaps"], a.denied["update leases"], a.denied["create pods"] = true, true, true
	a.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(core.Resource("configmaps"), "release", errors.New("no role"))
	})
	c := &config.Config{}
	c.Listen.ReusePort = true
	c.Driver.Kubernetes.Release, c.Driver.Kubernetes.Owner = "conch", "release"
	_, err := follow(t.Context(), c, kubernetes.Connection{Client: a.Clientset, Namespace: namespace}, "first", 10, slog.New(slog.DiscardHandler))
	require.EqualError(t, err, "driver kubernetes: conch may not: create pods in namespace serving; get configmaps in namespace serving; "+
		"update leases.coordination.k8s.io in namespace serving. docs/kubernetes.md has the role that allows it")
}

// lead has it lead as soon as it can.
func (r *replica) lead(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() {
		r.led <- r.Lead(ctx, func() error {
			r.then.Add(1)
			if !r.Follows() {
				return errors.New("others take it for the owner before it has all")
			}
			if r.Owns() == nil {
				return errors.New("it may change the cluster before it knows what is there")
			}
			return r.refuse
		})
	}()
}

// end is the end of a replica that was asked to stop.
func (r *replica) end(t *testing.T) {
	t.Helper()
	r.stop()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, r.Run(ended))
}

func plan(text string) store.Change {
	return store.Change{Bucket: "b", Key: "plan", Value: []byte(text)}
}

func (r *replica) plan(t *testing.T) string {
	t.Helper()
	v, err := r.Store.Get("b", "plan")
	require.NoError(t, err)
	return string(v)
}

// asked are the requests to the API server since they were cleared, less those that renew the lease or watch it.
func (a *api) asked() (all []string) {
	for _, action := range a.Actions() {
		if r := action.GetResource().Resource; r != "leases" {
			all = append(all, action.GetVerb()+" "+r)
		}
	}
	return all
}

// One replica leads; the other one follows what it writes, changes nothing, and is ready to lead a second after the first has ended, with three requests.
func TestAReplicaFollowsUntilItLeads(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAPI(t)
		first := a.replica("first", "")
		require.True(t, first.Follows())
		require.Empty(t, first.Owner())
		require.ErrorIs(t, first.Held(), kubernetes.ErrNotLeading)
		first.lead(t)
		require.NoError(t, <-first.led)
		require.False(t, first.Follows())
		require.NoError(t, first.Held())
		require.NoError(t, first.Owns())
		require.NoError(t, first.Store.Write(plan("1")))

		second := a.replica("second", "")
		second.lead(t)
		time.Sleep(time.Minute)
		require.NoError(t, first.Store.Write(plan("2")))
		a.ClearActions()
		time.Sleep(time.Minute)
		require.Empty(t, a.asked(), "a follower asks for nothing")
		require.True(t, second.Follows())
		require.ErrorIs(t, second.Held(), kubernetes.ErrNotLeading)
		require.Equal(t, "2", second.plan(t))
		require.ErrorIs(t, second.Store.Write(plan("second's")), configmaps.ErrFollowing)
		require.Zero(t, second.then.Load())
		require.Equal(t, "first", second.Owner())

		a.ClearActions()
		begin := time.Now()
		first.end(t)
		<-second.Leading()
		require.Less(t, time.Since(begin), 1500*time.Millisecond)
		require.Equal(t, []string{"get configmaps", "update configmaps", "list configmaps"}, a.asked())
		require.NoError(t, <-second.led)
		require.EqualValues(t, 1, second.then.Load())
		require.NoError(t, second.Held())
		require.ErrorIs(t, first.Held(), kubernetes.ErrNotLeading)
		require.NoError(t, second.Store.Write(plan("3")))
		second.end(t)
	})
}

// While the API server does not answer, the owner says that plans wait, and since when. A replica that follows has nothing to say.
func TestTheAPIServerIsSilent(t *testing.T) {
	release, _, _ := (*Cluster)(nil).Silence()
	require.Empty(t, release, "there is no cluster")
	bubble.Test(t, func(t *testing.T) {
		a := newAPI(t)
		r := a.replica("first", "")
		silent := func() (time.Time, string) {
			release, since, cause := r.Silence()
			require.Equal(t, "conch", release)
			return since, cause
		}
		since, _ := silent()
		require.Zero(t, since)
		r.lead(t)
		require.NoError(t, <-r.led)
		time.Sleep(time.Minute)
		since, _ = silent()
		require.Zero(t, since)
		begin := time.Now()
		a.cut.Store("first")
		time.Sleep(10 * time.Minute)
		require.Error(t, r.Owns())
		since, cause := silent()
		require.WithinDuration(t, begin, since, 2*time.Second)
		require.Equal(t, "the API server does not answer", cause)
		a.cut.Store("")
		time.Sleep(10 * time.Second)
		since, _ = silent()
		require.Zero(t, since)
		r.end(t)
	})
}

// A replica that is stopped while it follows does not lead any more, whatever else of it has still to end.
func TestAFollowerIsStopped(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAPI(t)
		first, second := a.replica("first", ""), a.replica("second", "")
		first.lead(t)
		require.NoError(t, <-first.led)
		second.lead(t)
		time.Sleep(10 * time.Second)
		second.stop()
		require.ErrorIs(t, <-second.led, context.Canceled)
		first.end(t)
		time.Sleep(time.Minute)
		require.True(t, second.Follows())
		lease, err := a.CoordinationV1().Leases(namespace).Get(t.Context(), "conch-leader", meta.GetOptions{})
		require.NoError(t, err)
		require.Empty(t, *lease.Spec.HolderIdentity, "nobody leads")
		second.end(t)
	})
}

// A replica that was paused for longer than its lease ends when it finds another in its place, and writes nothing.
func TestAnotherLeads(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAPI(t)
		first, second := a.replica("first", ""), a.replica("second", "")
		first.lead(t)
		require.NoError(t, <-first.led)
		life, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- first.Run(life) }()
		second.lead(t)
		time.Sleep(10 * time.Second)
		a.cut.Store("first")
		require.NoError(t, <-second.led)
		require.ErrorIs(t, first.Held(), kubernetes.ErrNotLeading)
		require.ErrorContains(t, <-ended, "another conch, second, leads release conch by now: this one ends")
		require.ErrorIs(t, first.Store.Write(plan("first's")), kubernetes.ErrNotLeading)
		second.end(t)
	})
}

// A replica that reaches no server steps aside, for another one that may. Where that one does not, either, it does so later, and later the next time.
func TestAReplicaThatReachesNoServer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAPI(t)
		var reaches atomic.Bool
		cut := time.Now()
		var leaders []string
		run := func(name string) *replica {
			r := a.replica(name, "")
			r.Reaching(func() time.Time {
				if reaches.Load() {
					return time.Time{}
				}
				return cut
			})
			r.lead(t)
			return r
		}
		began := time.Now()
		now, next := run("first"), (*replica)(nil)
		require.NoError(t, <-now.led)
		for i := range 3 {
			next = run(fmt.Sprint("next-", i))
			require.ErrorContains(t, now.Run(t.Context()), "this one ends")
			require.NoError(t, <-next.led)
			leaders = append(leaders, time.Since(began).Round(time.Minute).String())
			now = next
		}
		require.Equal(t, []string{"1m0s", "5m0s", "13m0s"}, leaders)
		ended := make(chan error, 1)
		life, stop := context.WithCancel(t.Context())
		go func() { ended <- now.Run(life) }()
		time.Sleep(15 * time.Minute)
		reaches.Store(true)
		time.Sleep(2 * time.Minute)
		require.NoError(t, now.Owns())
		stop()
		require.NoError(t, <-ended)
		now.stop()
	})
}

// A replica that reaches no server and is alone leads on.
func TestTheOnlyReplicaReachesNoServer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAPI(t)
		r := a.replica("first", "")
		cut := time.Now()
		r.Reaching(func() time.Time { return cut })
		r.lead(t)
		require.NoError(t, <-r.led)
		life, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(life) }()
		aside := 0
		for began := time.Now(); time.Since(began) < 20*time.Minute; time.Sleep(time.Second) {
			if r.Owns() != nil {
				aside++
				time.Sleep(10 * time.Second)
				require.NoError(t, r.Owns())
			}
		}
		require.Equal(t, 3, aside, "after 1, 5 and 13 minutes")
		require.NoError(t, r.Store.Write(plan("1")))
		stop()
		require.NoError(t, <-ended)
		r.stop()
	})
}

// A replica whose state somebody deletes ends at its next write: as it is, it could keep no plan any more.
func TestTheStateIsDeletedUnderALeader(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAPI(t)
		r := a.replica("first", "")
		r.lead(t)
		require.NoError(t, <-r.led)
		require.NoError(t, r.Store.Write(plan("1")))
		ended := make(chan error, 1)
		go func() { ended <- r.Run(t.Context()) }()
		require.NoError(t, a.CoreV1().ConfigMaps(namespace).Delete(t.Context(), "conch-state", meta.DeleteOptions{}))
		require.ErrorIs(t, r.Store.Write(plan("2")), configmaps.ErrFenced)
		err := <-ended
		require.ErrorIs(t, err, configmaps.ErrFenced)
		require.ErrorContains(t, err, "the ConfigMap was deleted; a conch that starts makes it anew: this conch ends")
		require.ErrorIs(t, r.Held(), kubernetes.ErrNotLeading)
	})
}

// An API server that fails in the middle of a take-over costs no replica.
func TestTheAPIServerFailsDuringATakeOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAPI(t)
		r := a.replica("first", "")
		until := time.Now().Add(20 * time.Second)
		a.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return time.Now().Before(until), nil, apierrors.NewInternalError(errors.New("etcd has no leader"))
		})
		r.lead(t)
		require.NoError(t, <-r.led)
		require.False(t, time.Now().Before(until))
		require.NoError(t, r.Owns())
		r.end(t)
	})
}

// Whoever cannot take over gives the lease back.
func TestATakeOverFails(t *testing.T) {
	owner := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "release", Namespace: namespace, UID: "1"}}
	for name, c := range map[string]struct {
		change func(t *testing.T, a *api, r *replica)
		want   string
	}{
		"the release's owner was made anew": {func(t *testing.T, a *api, _ *replica) {
			anew := owner.DeepCopy()
			anew.UID = types.UID("2")
			_, err := a.CoreV1().ConfigMaps(namespace).Update(t.Context(), anew, meta.UpdateOptions{})
			require.NoError(t, err)
		}, "driver.kubernetes.owner: ConfigMap release was made anew while this conch followed, which has to start anew, too"},
		"the release's owner is gone": {func(t *testing.T, a *api, _ *replica) {
			require.NoError(t, a.CoreV1().ConfigMaps(namespace).Delete(t.Context(), "release", meta.DeleteOptions{}))
		}, `driver.kubernetes.owner: configmaps "release" not found`},
		"its state is not usable": {func(_ *testing.T, _ *api, r *replica) { r.refuse = errors.New("event 7: no JSON") }, "event 7: no JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				a := newAPI(t, owner.DeepCopy())
				r := a.replica("first", "release")
				c.change(t, a, r)
				r.lead(t)
				require.ErrorContains(t, <-r.led, c.want)
				require.True(t, r.Follows())
				require.ErrorIs(t, r.Held(), kubernetes.ErrNotLeading)
				r.end(t)
			})
		})
	}
}
