// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/conch-serving/conch/internal/bubble"
)

// forbid has the API server refuse to show Pods for as long as denied is true.
func (c *testCluster) forbid(denied *atomic.Bool) {
	forbidden := apierrors.NewForbidden(core.Resource("pods"), "", errors.New("no role"))
	c.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return denied.Load(), nil, forbidden })
	c.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) { return denied.Load(), nil, forbidden })
}

// A permission is taken away while conch runs. The log says once which objects are out of date, and that they are not any more; what fails by it has the reason.
func TestAWatchLosesItsPermission(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, late := lagging(t)
		var log strings.Builder // read once the driver has ended
		o := options(c)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		d, err := begin(t.Context(), o)
		require.NoError(t, err)
		var denied atomic.Bool
		c.forbid(&denied)
		time.Sleep(time.Second)
		denied.Store(true)
		late.Stop()
		_, err = d.Start(t.Context(), part(t, d, "p", 100))
		require.ErrorContains(t, err, "partition p: whether pod conch-p-1 has started is not known: the cluster's Pods cannot be read: pods is forbidden: no role")
		time.Sleep(10 * time.Minute)
		denied.Store(false)
		time.Sleep(10 * time.Minute)
		require.NoError(t, d.Close())
		text := log.String()
		require.Equal(t, 1, strings.Count(text, "objects of the cluster cannot be read"), text)
		require.Contains(t, text, "kind=Pods")
		require.Contains(t, text, "pods is forbidden: no role")
		require.Equal(t, 1, strings.Count(text, "objects of the cluster can be read again"), text)
	})
}

// An API server that does not answer for longer than a restart takes is in the log, once.
func TestAnAPIServerThatDoesNotAnswerIsInTheLog(t *testing.T) {
	for length, lines := range map[time.Duration]int{20 * time.Second: 0, 10 * time.Minute: 1} {
		t.Run(length.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c, late := lagging(t)
				var log strings.Builder // read once the driver has ended
				o := options(c)
				o.Logger = slog.New(slog.NewTextHandler(&log, nil))
				d, err := begin(t.Context(), o)
				require.NoError(t, err)
				var down atomic.Bool
				silent := apierrors.NewServiceUnavailable("it starts")
				c.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return down.Load(), nil, silent })
				c.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) { return down.Load(), nil, silent })
				time.Sleep(time.Second)
				down.Store(true)
				late.Stop()
				time.Sleep(length)
				down.Store(false)
				time.Sleep(10 * time.Minute)
				require.NoError(t, d.Close())
				text := log.String()
				require.Equal(t, lines, strings.Count(text, "objects of the cluster cannot be read"), text)
				require.Equal(t, lines, strings.Count(text, "it starts"), text)
				require.Equal(t, lines, strings.Count(text, "objects of the cluster can be read again"), text)
			})
		})
	}
}

// What cannot be read when conch starts is named with the reason.
func TestWhatCannotBeReadAtTheStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, node("node-1"), slice("node-1"))
		var denied atomic.Bool
		denied.Store(true)
		c.forbid(&denied)
		_, err := begin(t.Context(), options(c))
		require.EqualError(t, err, "driver kubernetes: the cluster's Pods could not be read within 30s: pods is forbidden: no role")
	})
}
