// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package configmaps_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes/configmaps"
)

func (c *cluster) follow(identity string) *configmaps.Store {
	c.t.Helper()
	s, err := configmaps.Follow(c.t.Context(), c.options(identity))
	require.NoError(c.t, err)
	return s
}

// large is a value that lies in parts of its own.
func large(seed byte) store.Change {
	v := noise(1 << 20)
	v[0] = seed
	return store.Change{Bucket: "large", Key: "k", Value: v}
}

func first(t *testing.T, s store.Store) byte {
	t.Helper()
	v, err := s.Get("large", "k")
	require.NoError(t, err)
	require.Len(t, v, 1<<20)
	return v[0]
}

// A follower has what the leader writes, within seconds, and writes nothing itself, until it takes over: then the leader of before writes nothing.
func TestAFollower(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t)
		early := c.follow("early") // nothing was ever written
		require.Empty(t, get(t, early, "plan"))
		leader := c.open("leader")
		require.NoError(t, leader.Write(value("plan", "1"), large(1)))
		late := c.follow("late")
		require.Equal(t, "1", get(t, late, "plan"), "at once")
		time.Sleep(2 * time.Second)
		for n := byte(2); n < 5; n++ {
			require.NoError(t, leader.Write(value("plan", strings.Repeat("x", int(n))), large(n)))
			time.Sleep(2 * time.Second)
			for _, s := range []*configmaps.Store{early, late} {
				require.Equal(t, strings.Repeat("x", int(n)), get(t, s, "plan"))
				require.Equal(t, n, first(t, s))
			}
		}
		before := c.writes.Load()
		require.ErrorIs(t, late.Write(value("plan", "mine")), configmaps.ErrFollowing)
		require.ErrorIs(t, late.Later(value("plan", "mine")), configmaps.ErrFollowing)
		require.NoError(t, early.Close())
		require.Equal(t, before, c.writes.Load(), "nothing was asked of the API server")
		require.Equal(t, "xxxx", get(t, late, "plan"))

		c.ClearActions()
		require.NoError(t, late.TakeOver(t.Context()))
		var asked []string
		for _, a := range c.Actions() {
			asked = append(asked, a.GetVerb())
		}
		require.Equal(t, []string{"get", "update", "list"}, asked, "the head, and what nothing names: large values are there")
		require.ErrorIs(t, leader.Write(value("plan", "of before")), configmaps.ErrFenced)
		require.NoError(t, late.Write(value("plan", "5")))
		require.NoError(t, late.Later(value("event", "e")))
		time.Sleep(10 * time.Second)
		next := c.open("next")
		require.Equal(t, "5", get(t, next, "plan"))
		require.Equal(t, "e", get(t, next, "event"))
		require.Equal(t, byte(4), first(t, next))
		for _, s := range []*configmaps.Store{next, late} {
			require.NoError(t, s.Close())
		}
		require.NoError(t, leader.Close())
	})
}

// reading is a client that calls before for each ConfigMap that is read.
type reading struct {
	kubernetes.Client
	before func(name string)
}

func (r reading) CoreV1() corev1.CoreV1Interface { return readingCore{r.Client.CoreV1(), r.before} }

type readingCore struct {
	corev1.CoreV1Interface
	before func(name string)
}

func (r readingCore) ConfigMaps(namespace string) corev1.ConfigMapInterface {
	return readingMaps{r.CoreV1Interface.ConfigMaps(namespace), r.before}
}

type readingMaps struct {
	corev1.ConfigMapInterface
	before func(name string)
}

func (r readingMaps) Get(ctx context.Context, name string, o meta.GetOptions) (*core.ConfigMap, error) {
	r.before(name)
	return r.ConfigMapInterface.Get(ctx, name, o)
}

// Who reads while the leader writes has the state of before or of afterwards, though parts go while they are read.
func TestPartsGoWhileTheyAreRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t)
		leader := c.open("leader")
		require.NoError(t, leader.Write(large(1)))
		turn := byte(1)
		o := c.options("follower")
		o.Client = reading{o.Client, func(name string) {
			if name != "conch-state" && turn < 4 {
				turn++
				require.NoError(t, leader.Write(large(turn)))
			}
		}}
		s, err := configmaps.Follow(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, byte(4), first(t, s))
		require.NoError(t, s.Close())
		require.NoError(t, leader.Close())
	})
}

// Without the right to watch, and after an API server that was down, what the leader wrote is there once it is taken over.
func TestAFollowerThatSeesNothing(t *testing.T) {
	for name, may := range map[string]bool{"forbidden": false, "down": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := newCluster(t)
				c.unwatched = !may
				leader := c.open("leader")
				require.NoError(t, leader.Write(value("plan", "1"), value("old", "o")))
				s := c.follow("follower")
				c.unread.Store(may)
				require.NoError(t, leader.Write(value("plan", "2"), value("old", ""), large(1)))
				time.Sleep(time.Minute)
				require.Equal(t, "1", get(t, s, "plan"), "as it was when this conch started")
				c.unread.Store(false)
				require.NoError(t, s.TakeOver(t.Context()))
				require.Equal(t, "2", get(t, s, "plan"))
				require.Empty(t, get(t, s, "old"))
				require.NoError(t, s.Close())
				require.NoError(t, leader.Close())
			})
		})
	}
}

// A release whose state is deleted has none for its followers either.
func TestTheStateIsDeletedUnderAFollower(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t)
		leader := c.open("leader")
		require.NoError(t, leader.Write(value("plan", "1")))
		s := c.follow("follower")
		time.Sleep(2 * time.Second)
		require.NoError(t, c.CoreV1().ConfigMaps(namespace).Delete(t.Context(), "conch-state", meta.DeleteOptions{}))
		time.Sleep(2 * time.Second)
		require.Empty(t, get(t, s, "plan"))
		require.NoError(t, s.TakeOver(t.Context()))
		require.NoError(t, s.Write(value("plan", "anew")))
		require.NoError(t, s.Close())
		require.NoError(t, leader.Close())
	})
}
