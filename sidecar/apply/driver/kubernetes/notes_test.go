// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// A Pod says which models its server has: one request for a change, asked again only where the API server did not answer or permit it, and none at rest or by the next conch.
func TestAPodSaysWhichModelsItsServerHas(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	var requests atomic.Int64
	var trouble atomic.Pointer[apierrors.StatusError]
	c.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch := a.(clienttesting.PatchAction)
		require.Equal(t, "status", patch.GetSubresource(), "the role has no other")
		if strings.Contains(string(patch.GetPatch()), "conch.io/models") {
			requests.Add(1)
		}
		if err := trouble.Load(); err != nil {
			return true, nil, err
		}
		return false, nil, nil
	})
	says := func(models string) {
		t.Helper()
		eventually(t, "the Pod says "+models, func() bool {
			now, has := c.pod("conch-p-1").Annotations["conch.io/models"]
			return has && now == models
		})
	}
	first, err := begin(t.Context(), options(c))
	require.NoError(t, err)
	spec := part(t, first, "p", 100)
	s, err := first.Start(t.Context(), spec)
	require.NoError(t, err)
	require.NoError(t, s.Load(t.Context(), "m"))
	_, err = s.Models(t.Context())
	require.NoError(t, err)
	says("m")
	require.EqualValues(t, 1, requests.Load())
	require.True(t, answering(c.pod("conch-p-1")), "what else it says stays")
	require.Equal(t, "100% of node-1.gpu-0", c.pod("conch-p-1").Annotations["conch.io/share"])

	for _, err := range []*apierrors.StatusError{apierrors.NewInternalError(errors.New("no leader")), apierrors.NewTooManyRequests("busy", 1), apierrors.NewForbidden(core.Resource("pods/status"), "conch-p-1", errors.New("no role"))} {
		before := requests.Load()
		trouble.Store(err)
		require.NoError(t, s.Unload(t.Context(), "m"))
		_, err := s.Models(t.Context())
		require.NoError(t, err)
		eventually(t, "it is tried again", func() bool { return requests.Load() >= before+2 })
		trouble.Store(nil)
		says("")
		require.NoError(t, s.Load(t.Context(), "m"))
		_, err = s.Models(t.Context())
		require.NoError(t, err)
		says("m")
	}
	require.NoError(t, s.Leave())
	require.NoError(t, first.Close())

	before := requests.Load()
	second := open(t, options(c))
	found, err := second.Find(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 1)
	_, err = found[0].Models(t.Context())
	require.NoError(t, err)
	c.crash("conch-p-1") // which the next round buries
	<-found[0].Done()
	eventually(t, "a round has passed", func() bool { return len(c.names()) == 0 })
	require.Equal(t, before, requests.Load())
}
