// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package configmaps_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	authorization "k8s.io/api/authorization/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/internal/store/storetest"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes/configmaps"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const namespace = "serving"

var resource = core.SchemeGroupVersion.WithResource("configmaps")

// cluster is client-go's fake with what it lacks of an API server: versions of objects, and conflicts where an update was made of another one.
type cluster struct {
	*fake.Clientset
	t    *testing.T
	down atomic.Bool
	// mute: updates are made, and their answers are lost.
	mute atomic.Bool
	// writes counts requests that would change something.
	writes atomic.Int64
	// unwatched: conch may not watch ConfigMaps. unread: reads of one fail.
	unwatched bool
	unread    atomic.Bool
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{Clientset: fake.NewClientset(), t: t}
	var mu sync.Mutex
	version := 0
	next := func(m *core.ConfigMap) {
		version++
		m.ResourceVersion = strconv.Itoa(version)
	}
	c.PrependReactor("create", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		m := a.(clienttesting.CreateAction).GetObject().(*core.ConfigMap)
		size := 0
		for _, v := range m.BinaryData {
			size += len(v)
		}
		if size > 1<<20 {
			return true, nil, apierrors.NewRequestEntityTooLargeError("a ConfigMap holds 1 MiB")
		}
		next(m)
		m.UID = types.UID("uid-" + m.ResourceVersion)
		return false, nil, nil
	})
	c.PrependReactor("update", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		m := a.(clienttesting.UpdateAction).GetObject().(*core.ConfigMap)
		o, err := c.Tracker().Get(resource, namespace, m.Name)
		if err != nil {
			return true, nil, err
		}
		if o.(*core.ConfigMap).ResourceVersion != m.ResourceVersion {
			return true, nil, apierrors.NewConflict(resource.GroupResource(), m.Name, errors.New("the object has been modified"))
		}
		next(m)
		if c.mute.Swap(false) {
			return true, nil, errors.Join(errors.New("the answer is lost"), c.Tracker().Update(resource, m.DeepCopy(), namespace))
		}
		return false, nil, nil
	})
	c.PrependReactor("*", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if !slices.Contains([]string{"get", "list", "watch"}, a.GetVerb()) {
			c.writes.Add(1)
		}
		return c.down.Load(), nil, errors.New("the API server does not answer")
	})
	c.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return c.unread.Load(), nil, errors.New("the API server does not answer")
	})
	c.PrependReactor("create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authorization.SelfSubjectAccessReview).DeepCopy()
		r.Status.Allowed = !c.unwatched
		return true, r, nil
	})
	return c
}

func (c *cluster) options(identity string) configmaps.Options {
	return configmaps.Options{
		Connection: kubernetes.Connection{Client: c.Clientset, Namespace: namespace}, Release: "conch", Identity: identity,
		Fence: func() error { return nil }, Logger: slog.New(slog.DiscardHandler),
	}
}

func (c *cluster) open(identity string) *configmaps.Store {
	c.t.Helper()
	s, err := open(context.Background(), c.options(identity))
	require.NoError(c.t, err)
	return s
}

// open is what a conch does that has the lease.
func open(ctx context.Context, o configmaps.Options) (*configmaps.Store, error) {
	s, err := configmaps.Follow(ctx, o)
	if err == nil {
		if err = s.TakeOver(ctx); err != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return s, err
}

func (c *cluster) names() (all []string) {
	list, err := c.CoreV1().ConfigMaps(namespace).List(context.Background(), meta.ListOptions{})
	require.NoError(c.t, err)
	for _, m := range list.Items {
		all = append(all, m.Name)
	}
	return all
}

// noise does not compress.
func noise(n int) []byte {
	random := rand.New(rand.NewPCG(3, 4))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

func value(key, v string) store.Change { return store.Change{Bucket: "b", Key: key, Value: []byte(v)} }

func get(t *testing.T, s store.Store, key string) string {
	t.Helper()
	v, err := s.Get("b", key)
	require.NoError(t, err)
	return string(v)
}

// Each conch that opens the store is another one, on another node.
func TestConfigMaps(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (store.Store, func() store.Store) {
		c, n := newCluster(t), 0
		var s *configmaps.Store
		open := func() store.Store {
			if s != nil {
				require.NoError(t, s.Close())
			}
			n++
			s = c.open(fmt.Sprint("conch-", n))
			return s
		}
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return open(), open
	})
}

// A leader that was paused for longer than its lease, and still believes that it leads, writes nothing: neither now nor later, neither small nor large.
func TestALeaderOfBeforeWritesNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t)
		paused := c.open("paused")
		require.NoError(t, paused.Write(value("plan", "1")))
		require.NoError(t, paused.Later(value("event", "was not written before the pause")))
		next := c.open("next")
		require.Equal(t, "1", get(t, next, "plan"))
		before := c.names()

		err := paused.Write(value("plan", "of the paused one"))
		require.ErrorIs(t, err, configmaps.ErrFenced)
		require.ErrorContains(t, err, "conch next has taken it over")
		require.Equal(t, "1", get(t, paused, "plan"), "what could not be written is not so")
		require.ErrorIs(t, paused.Write(store.Change{Bucket: "b", Key: "plan", Value: noise(2 << 20)}), configmaps.ErrFenced)
		time.Sleep(time.Minute)
		require.ErrorIs(t, paused.Close(), configmaps.ErrFenced)
		require.Equal(t, before, c.names(), "nor does it leave parts")

		require.NoError(t, next.Write(value("plan", "2")))
		require.NoError(t, next.Close())
		last := c.open("last")
		require.Equal(t, "2", get(t, last, "plan"))
		require.Empty(t, get(t, last, "event"))
		require.NoError(t, last.Close())
	})
}

// A large write of a leader of before, which began before the next one opened the store, is in nobody's way, and what it made is removed.
func TestALargeWriteIsCutOff(t *testing.T) {
	c := newCluster(t)
	var next *configmaps.Store
	var paused bool
	o := c.options("first")
	o.Fence = func() error { // it holds the lease when it asks, and is paused then
		if paused {
			next = c.open("next")
		}
		return nil
	}
	first, err := open(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, first.Write(value("plan", "1")))
	paused = true
	require.ErrorIs(t, first.Write(store.Change{Bucket: "b", Key: "plan", Value: noise(2 << 20)}), configmaps.ErrFenced)
	paused = false
	require.Equal(t, []string{"conch-state"}, c.names())
	require.Equal(t, "1", get(t, next, "plan"))
	require.NoError(t, next.Close())
	require.NoError(t, first.Close(), "nothing was left to write")
}

// Parts of a write whose conch has died are removed by the next one.
func TestPartsThatNothingNamesGo(t *testing.T) {
	c := newCluster(t)
	s := c.open("first")
	require.NoError(t, s.Write(store.Change{Bucket: "b", Key: "plan", Value: noise(2 << 20)}))
	require.NoError(t, s.Close())
	require.Len(t, c.names(), 4, "a head, and three parts of it")
	left := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "conch-state-left", Labels: map[string]string{"conch.io/part": "state", "conch.io/release": "conch"}}}
	others := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "other-state-part", Labels: map[string]string{"conch.io/part": "state", "conch.io/release": "other"}}}
	for _, m := range []*core.ConfigMap{left, others} {
		_, err := c.CoreV1().ConfigMaps(namespace).Create(t.Context(), m, meta.CreateOptions{})
		require.NoError(t, err)
	}
	s = c.open("second")
	require.NotContains(t, c.names(), "conch-state-left")
	require.Contains(t, c.names(), "other-state-part")
	require.NoError(t, s.Write(value("plan", "small")))
	require.Equal(t, []string{"conch-state", "other-state-part"}, c.names())
	require.NoError(t, s.Close())
}

// A person's change of the head's labels, and an answer that was lost, are no other leader.
func TestAConflictWithNobody(t *testing.T) {
	c := newCluster(t)
	s := c.open("a")
	head, err := c.CoreV1().ConfigMaps(namespace).Get(t.Context(), "conch-state", meta.GetOptions{})
	require.NoError(t, err)
	head = head.DeepCopy()
	head.Labels["team"] = "vision"
	_, err = c.CoreV1().ConfigMaps(namespace).Update(t.Context(), head, meta.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, s.Write(value("k", "1")))
	c.mute.Store(true)
	require.ErrorContains(t, s.Write(value("k", "2")), "the answer is lost")
	require.NoError(t, s.Write(value("l", "3")))
	require.NoError(t, s.Close())
	head, err = c.CoreV1().ConfigMaps(namespace).Get(t.Context(), "conch-state", meta.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "vision", head.Labels["team"])
}

// While the API server does not answer, a write is refused and changes nothing; what may come later does.
func TestTheAPIServerIsDown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t)
		s := c.open("a")
		require.NoError(t, s.Write(value("plan", "1")))
		c.down.Store(true)
		require.ErrorContains(t, s.Write(value("plan", "2")), "does not answer")
		require.Equal(t, "1", get(t, s, "plan"))
		require.NoError(t, s.Later(value("event", "happened")))
		require.Equal(t, "happened", get(t, s, "event"))
		time.Sleep(time.Minute)
		c.down.Store(false)
		time.Sleep(10 * time.Second)
		next := c.open("b")
		require.Equal(t, "happened", get(t, next, "event"), "without another write")
		require.Equal(t, "1", get(t, next, "plan"))
		require.NoError(t, next.Close())
		require.NoError(t, s.Close())
	})
}

// What happens often is written now and then; a store in which nothing changes asks for nothing.
func TestWritesAreFew(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t)
		s := c.open("a")
		before := c.writes.Load()
		for i := range 1000 {
			require.NoError(t, s.Later(value("event", strconv.Itoa(i))))
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Hour)
		require.LessOrEqual(t, c.writes.Load()-before, int64(3))
		for range 60 { // what was learnt is given again each minute
			require.NoError(t, s.Later(value("event", "999"), value("absent", "")))
			time.Sleep(time.Minute)
		}
		require.LessOrEqual(t, c.writes.Load()-before, int64(3))
		require.NoError(t, s.Close())
		require.LessOrEqual(t, c.writes.Load()-before, int64(3))
	})
}

// Without the lease nothing is written, whatever the API server would say.
func TestWithoutTheLease(t *testing.T) {
	c := newCluster(t)
	var lost atomic.Bool
	o := c.options("a")
	o.Fence = func() error {
		if lost.Load() {
			return kubernetes.ErrNotLeading
		}
		return nil
	}
	s, err := open(t.Context(), o)
	require.NoError(t, err)
	lost.Store(true)
	before := c.writes.Load()
	require.ErrorIs(t, s.Write(value("k", "1")), kubernetes.ErrNotLeading)
	_, err = open(t.Context(), o)
	require.ErrorIs(t, err, kubernetes.ErrNotLeading)
	require.Equal(t, before, c.writes.Load())
	lost.Store(false)
	require.NoError(t, s.Write(value("k", "2")), "it has the lease back")
	require.NoError(t, s.Close())
}

// What does not fit is refused as a whole; so is a head that somebody has spoilt.
func TestWhatCannotBeKept(t *testing.T) {
	c := newCluster(t)
	s := c.open("a")
	require.NoError(t, s.Write(value("k", "1")))
	require.ErrorContains(t, s.Write(store.Change{Bucket: "b", Key: "k", Value: noise(17 << 20)}), "bytes are more than the 14745600 that a cluster keeps of it")
	require.Equal(t, "1", get(t, s, "k"))
	require.Equal(t, []string{"conch-state"}, c.names())
	require.NoError(t, s.Close())
	head, err := c.CoreV1().ConfigMaps(namespace).Get(t.Context(), "conch-state", meta.GetOptions{})
	require.NoError(t, err)
	head = head.DeepCopy()
	head.BinaryData["values.b"] = []byte("spoilt")
	_, err = c.CoreV1().ConfigMaps(namespace).Update(t.Context(), head, meta.UpdateOptions{})
	require.NoError(t, err)
	_, err = open(t.Context(), c.options("b"))
	require.ErrorContains(t, err, "state of release conch in ConfigMap conch-state: b: ")
	require.ErrorContains(t, err, "delete the ConfigMap to start over")
}

// What was learnt and is too much to be kept holds up no order, neither that of now nor the next one.
func TestWhatMayBeLostHoldsUpNoOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t)
		s := c.open("a")
		require.NoError(t, s.Write(store.Change{Bucket: "learnt", Key: "k", Value: []byte("little")}))
		much := store.Change{Bucket: "learnt", Key: "k", Value: noise(17 << 20)}
		require.NoError(t, s.Later(much, value("event", "happened")))
		require.NoError(t, s.Write(value("plan", "1")))
		time.Sleep(time.Minute) // nothing of it is tried for ever
		writes := c.writes.Load()
		time.Sleep(time.Hour)
		require.Equal(t, writes, c.writes.Load())
		require.NoError(t, s.Later(much, store.Change{Bucket: "learnt", Key: "l", Value: []byte("more")}))
		require.NoError(t, s.Write(value("plan", "2")))
		require.NoError(t, s.Close())

		next := c.open("b")
		require.Equal(t, "2", get(t, next, "plan"))
		require.Equal(t, "happened", get(t, next, "event"))
		learnt, err := next.Get("learnt", "k")
		require.NoError(t, err)
		require.Equal(t, "little", string(learnt))
		require.NoError(t, next.Close())
	})
}

// A release that is deleted is not made again by what its conch still has to write: that conch learns once that it has lost the state.
func TestTheStateIsDeleted(t *testing.T) {
	c := newCluster(t)
	var lost []error
	o := c.options("a")
	o.Lost = func(err error) { lost = append(lost, err) }
	s, err := open(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, s.Write(value("plan", "1")))
	require.Empty(t, lost)
	require.NoError(t, c.CoreV1().ConfigMaps(namespace).Delete(t.Context(), "conch-state", meta.DeleteOptions{}))
	err = s.Write(store.Change{Bucket: "b", Key: "k", Value: noise(1 << 20)})
	require.ErrorIs(t, err, configmaps.ErrFenced)
	require.ErrorContains(t, err, "ConfigMap conch-state: the release's state is not this conch's any more, and nothing was written: the ConfigMap was deleted; a conch that starts makes it anew")
	require.Empty(t, c.names())
	require.ErrorIs(t, s.Write(value("plan", "2")), configmaps.ErrFenced)
	require.Len(t, lost, 1)
	require.ErrorIs(t, lost[0], configmaps.ErrFenced)
	require.NoError(t, s.Close())
}

// The state goes with the release's owner.
func TestTheStateHasAnOwner(t *testing.T) {
	c := newCluster(t)
	o := c.options("a")
	o.Owner = &meta.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "release", UID: "u"}
	s, err := open(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, s.Write(store.Change{Bucket: "b", Key: "k", Value: noise(1 << 20)}))
	require.NoError(t, s.Close())
	list, err := c.CoreV1().ConfigMaps(namespace).List(t.Context(), meta.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 3)
	for _, m := range list.Items {
		require.True(t, strings.HasPrefix(m.Name, "conch-state"))
		require.Equal(t, []meta.OwnerReference{*o.Owner}, m.OwnerReferences)
	}
}
