// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
)

// One conch at a time leads a release. The next one leads as soon as the first gives the lease back.
func TestOneConchLeads(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	lost := make(chan string, 4)
	lead := func(identity string) *kubernetes.Lease {
		l, err := kubernetes.Lead(t.Context(), kubernetes.LeaseOptions{
			Connection: kubernetes.Connection{Client: c.Clientset, Namespace: namespace}, Release: "conch", Identity: identity, Logger: slog.New(slog.DiscardHandler),
			Lost: func(leader string) { lost <- leader },
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
	case <-time.After(time.Second):
	}
	first.Release()
	require.ErrorIs(t, first.Held(), kubernetes.ErrNotLeading)
	next := <-second
	require.NoError(t, next.Held())
	next.Release()
	require.Empty(t, lost, "a lease that is given back is not lost")
}

// While the API server does not answer, nothing may be changed, before another could lead. Afterwards the same conch leads on.
func TestALeaseThatCannotBeRenewed(t *testing.T) {
	t.Parallel()
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
	down.Store(true)
	begin := time.Now()
	eventually(t, "the right to change anything ends", func() bool { return l.Held() != nil })
	require.Less(t, time.Since(begin), 4*time.Second, "before the lease does")
	down.Store(false)
	eventually(t, "it leads again", func() bool { return l.Held() == nil })
	l.Release()
}

// A conch that may not touch leases says so, and does not wait for ever.
func TestALeaseThatIsForbidden(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.denied["update leases"] = true
	_, err := kubernetes.Lead(t.Context(), kubernetes.LeaseOptions{
		Connection: kubernetes.Connection{Client: c.Clientset, Namespace: namespace}, Release: "conch", Identity: "a", Logger: slog.New(slog.DiscardHandler),
	})
	require.ErrorContains(t, err, "conch may not: update leases.coordination.k8s.io in namespace serving. docs/kubernetes.md has the role")
}
