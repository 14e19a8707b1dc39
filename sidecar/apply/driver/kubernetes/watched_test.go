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

// refusing has the API server answer whoever asks for Pods with an error for as long as it is set.
func (c *testCluster) refusing(err error) *atomic.Bool {
	var set atomic.Bool
	c.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return set.Load(), nil, err })
	c.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) { return set.Load(), nil, err })
	return &set
}

var (
	forbidden = apierrors.NewForbidden(core.Resource("pods"), "", errors.New("no role"))
	silent    = apierrors.NewServiceUnavailable("it starts")
)

// Pods cannot be read for a while. The log says once that they are out of date, and why, and that they are not any more; what fails by it has the reason. An API server that
// does not answer for a short while may be restarting.
func TestPodsThatCannotBeReadAreInTheLog(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		length time.Duration
		lines  int
	}{
		"a permission is taken away": {forbidden, 10 * time.Minute, 1},
		"no answer":                  {silent, 10 * time.Minute, 1},
		"no answer for a short time": {silent, 5 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				cluster, late := lagging(t)
				var log strings.Builder // read once the driver has ended
				o := options(cluster)
				o.Logger = slog.New(slog.NewTextHandler(&log, nil))
				d, err := begin(t.Context(), o)
				require.NoError(t, err)
				refused := cluster.refusing(c.err)
				time.Sleep(time.Second)
				refused.Store(true)
				late.Stop()
				_, err = d.Start(t.Context(), part(t, d, "p", 100))
				require.ErrorContains(t, err, "partition p: whether pod conch-p-1 has started is not known: the cluster's Pods cannot be read: "+c.err.Error())
				time.Sleep(c.length)
				refused.Store(false)
				time.Sleep(10 * time.Minute)
				require.NoError(t, d.Close())
				text := log.String()
				require.Equal(t, c.lines, strings.Count(text, "objects of the cluster cannot be read"), text)
				require.Equal(t, c.lines, strings.Count(text, "kind=Pods error="), text)
				require.Equal(t, c.lines, strings.Count(text, "objects of the cluster can be read again"), text)
			})
		})
	}
}

// What cannot be read when conch starts is named with the reason.
func TestWhatCannotBeReadAtTheStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, node("node-1"), slice("node-1"))
		c.refusing(forbidden).Store(true)
		_, err := begin(t.Context(), options(c))
		require.EqualError(t, err, "driver kubernetes: the cluster's Pods could not be read within 30s: pods is forbidden: no role")
	})
}
