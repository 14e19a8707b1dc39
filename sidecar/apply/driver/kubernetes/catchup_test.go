// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"context"
	"errors"
	"net/url"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
)

// lagging is a cluster whose watch of Pods says only what the test lets it say, and whose Pods are no servers.
func lagging(t *testing.T) (*testCluster, *watch.FakeWatcher) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	c.silent = true
	late := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 10})
	c.PrependWatchReactor("pods", func(a clienttesting.Action) (bool, watch.Interface, error) {
		if a.(clienttesting.WatchAction).GetWatchRestrictions().Labels.Matches(labels.Set{"conch.io/release": "conch"}) {
			return true, late, nil
		}
		return true, watch.NewFake(), nil // of stand-ins
	})
	return c, late
}

func ofRelease(name, uid, version string) *core.Pod {
	return &core.Pod{ObjectMeta: meta.ObjectMeta{
		Name: name, Namespace: namespace, UID: types.UID(uid), ResourceVersion: version, Labels: map[string]string{"conch.io/release": "conch", "app.kubernetes.io/managed-by": "conch"},
	}}
}

// A conch that begins to lead waits until it knows what the leader of before has made, changed and removed last.
func TestTheWatchIsBehind(t *testing.T) {
	for name, c := range map[string]struct {
		before, now *core.Pod
		says        func(*watch.FakeWatcher, *core.Pod)
	}{
		"a Pod was made":             {nil, ofRelease("p-1", "1", "7"), func(w *watch.FakeWatcher, now *core.Pod) { w.Add(now) }},
		"a Pod has an address":       {ofRelease("p-1", "1", "7"), ofRelease("p-1", "1", "10"), func(w *watch.FakeWatcher, now *core.Pod) { w.Modify(now) }},
		"it is known in a later one": {ofRelease("p-1", "1", "7"), ofRelease("p-1", "1", "10"), func(w *watch.FakeWatcher, _ *core.Pod) { w.Modify(ofRelease("p-1", "1", "11")) }},
		"a Pod is another one":       {ofRelease("p-1", "1", "7"), ofRelease("p-1", "2", "10"), func(w *watch.FakeWatcher, now *core.Pod) { w.Delete(ofRelease("p-1", "1", "9")); w.Add(now) }},
		"a Pod was removed":          {ofRelease("p-1", "1", "7"), nil, func(w *watch.FakeWatcher, _ *core.Pod) { w.Delete(ofRelease("p-1", "1", "9")) }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				k, late := lagging(t)
				if c.before != nil {
					require.NoError(t, k.Tracker().Add(c.before))
				}
				o := options(k)
				o.Fence = func() error { return kubernetes.ErrNotLeading }
				d := open(t, o)
				require.NoError(t, d.CatchUp(t.Context()), "nothing has changed")
				if c.before != nil {
					require.NoError(t, k.Tracker().Delete(pods, namespace, "p-1"))
				}
				if c.now != nil {
					require.NoError(t, k.Tracker().Add(c.now))
				}
				done := make(chan error, 1)
				go func() { done <- d.CatchUp(t.Context()) }()
				time.Sleep(5 * time.Second)
				require.Empty(t, done)
				c.says(late, c.now)
				require.NoError(t, <-done)
			})
		})
	}
}

// A watch that stays behind, or an API server that does not answer, ends the wait.
func TestTheWatchStaysBehind(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, _ := lagging(t)
		d := open(t, options(k))
		require.NoError(t, k.Tracker().Add(ofRelease("p-1", "1", "7")))
		require.ErrorContains(t, d.CatchUp(t.Context()), "the Pods of release conch: what is known of them is behind what the API server has, since 30s")
		stopped, stop := context.WithCancel(t.Context())
		stop()
		require.ErrorIs(t, d.CatchUp(stopped), context.Canceled)
		k.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("the API server does not answer")
		})
		require.ErrorContains(t, d.CatchUp(t.Context()), "the Pods of release conch: the API server does not answer")
	})
}

// An API server that fails for a while does not end the wait, and one that goes on failing does.
func TestTheAPIServerFailsWhileAConchCatchesUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, _ := lagging(t)
		d := open(t, options(k))
		failing := 3
		k.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			failing--
			return failing >= 0, nil, apierrors.NewInternalError(errors.New("etcd has no leader"))
		})
		require.NoError(t, d.CatchUp(t.Context()))
		failing = 1000
		require.ErrorContains(t, d.CatchUp(t.Context()), "etcd has no leader")
		require.Greater(t, failing, 900)
	})
}

// The driver of a conch that follows sees the cluster, and changes nothing of it, though there is a dead Pod and a claim that no Pod uses.
func TestADriverThatFollows(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		dead := ofRelease("p-1", "1", "7")
		dead.Status.Phase = core.PodFailed
		unused := &resource.ResourceClaim{ObjectMeta: meta.ObjectMeta{Name: "c", Namespace: namespace, Labels: map[string]string{"conch.io/release": "conch"}}}
		c := newCluster(t, node("node-1"), slice("node-1"), unused)
		c.silent = true
		require.NoError(t, c.Tracker().Add(dead))
		o := options(c)
		o.Fence = func() error { return kubernetes.ErrNotLeading }
		d := open(t, o)
		synctest.Wait() // every watch has begun
		c.ClearActions()
		d.Report("p", "partition_up", "", false, time.Now())
		_, err := d.Start(t.Context(), part(t, d, "p", 100))
		require.ErrorIs(t, err, kubernetes.ErrNotLeading)
		time.Sleep(time.Minute)
		require.NoError(t, c.CoreV1().Nodes().Delete(t.Context(), "node-1", meta.DeleteOptions{}))
		time.Sleep(2 * time.Second)
		require.Empty(t, d.Nodes())
		for _, a := range c.Actions() {
			require.Equal(t, "nodes", a.GetResource().Resource, "%v", a) // the test's own
		}
	})
}

// After an outage of the API server, however long, the Pods are known within seconds.
func TestTheWatchIsThereAfterAnOutage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		k, late := lagging(t)
		d := open(t, options(k))
		var down atomic.Bool
		refused := &url.Error{Op: "Get", URL: "https://10.0.0.1", Err: syscall.ECONNREFUSED}
		k.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return down.Load(), nil, refused })
		k.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) { return down.Load(), nil, refused })
		for _, outage := range []time.Duration{time.Minute, 4 * time.Minute} {
			down.Store(true)
			late.Stop()
			time.Sleep(outage)
			require.NoError(t, k.Tracker().Add(ofRelease("p-"+outage.String(), outage.String(), "7")))
			down.Store(false)
			back := time.Now()
			require.NoError(t, d.CatchUp(t.Context()))
			require.Less(t, time.Since(back), 5*time.Second)
		}
	})
}
