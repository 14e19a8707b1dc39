// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorization "k8s.io/api/authorization/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
)

// kubeconfigOf is the file of one whose context is that of a server, in the namespace serving.
func kubeconfigOf(t *testing.T, server string) string {
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: a, cluster: {server: %q}}], users: [{name: u, user: {}}], contexts: [{name: c, context: {cluster: a, user: u, namespace: serving}}]}`, server), 0o600))
	return path
}

// TestConnect: each group of the API is asked at its own path of the server that the kubeconfig names, in the context's namespace.
func TestConnect(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.Method+" "+r.URL.Path+" "+r.UserAgent())
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"major": "1", "minor": "37", "gitVersion": "v1.37.2"}`)
	}))
	defer server.Close()
	defer server.CloseClientConnections()
	kubeconfig := kubeconfigOf(t, server.URL)
	c, err := kubernetes.Connect("driver.kubernetes.kubeconfig", kubeconfig, "")
	require.NoError(t, err)
	require.Equal(t, "serving", c.Namespace)
	other, err := kubernetes.Connect("driver.kubernetes.kubeconfig", kubeconfig, "other")
	require.NoError(t, err)
	require.Equal(t, "other", other.Namespace)

	version, err := c.Client.Discovery().ServerVersion()
	require.NoError(t, err)
	require.Equal(t, "v1.37.2", version.GitVersion)
	// What the answers are is a matter of client-go, and of the tests on a real cluster.
	_, _ = c.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorization.SelfSubjectAccessReview{}, meta.CreateOptions{})
	_, _ = c.Client.CoordinationV1().Leases(c.Namespace).Get(t.Context(), "conch-leader", meta.GetOptions{})
	_, _ = c.Client.CoreV1().Pods(c.Namespace).List(t.Context(), meta.ListOptions{})
	_, _ = c.Client.PolicyV1().PodDisruptionBudgets(c.Namespace).Get(t.Context(), "conch-servers", meta.GetOptions{})
	_, _ = c.Client.DiscoveryV1().EndpointSlices(c.Namespace).List(t.Context(), meta.ListOptions{})
	_, _ = c.Client.ResourceV1().ResourceClaims("").List(t.Context(), meta.ListOptions{})
	require.Equal(t, []string{
		"GET /version conch",
		"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews conch",
		"GET /apis/coordination.k8s.io/v1/namespaces/serving/leases/conch-leader conch",
		"GET /api/v1/namespaces/serving/pods conch",
		"GET /apis/policy/v1/namespaces/serving/poddisruptionbudgets/conch-servers conch",
		"GET /apis/discovery.k8s.io/v1/namespaces/serving/endpointslices conch",
		"GET /apis/resource.k8s.io/v1/resourceclaims conch",
	}, asked)

	_, err = kubernetes.Connect("driver.kubernetes.kubeconfig", filepath.Join(t.TempDir(), "absent"), "")
	require.ErrorContains(t, err, "driver.kubernetes.kubeconfig: ")
}

// TestTheLeaseWaitsForNoPods: each group of the API has an account of its own, so that hundreds of requests about Pods do not keep a renewal from being in time.
func TestTheLeaseWaitsForNoPods(t *testing.T) {
	var pods atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/pods") {
			pods.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{}`)
	}))
	defer server.Close()
	defer server.CloseClientConnections()
	kubeconfig := kubeconfigOf(t, server.URL)
	c, err := kubernetes.Connect("driver.kubernetes.kubeconfig", kubeconfig, "")
	require.NoError(t, err)
	const many = 1000
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range many {
		all.Go(func() { _, _ = c.Client.CoreV1().Pods(c.Namespace).List(ctx, meta.ListOptions{}) })
	}
	require.Eventually(t, func() bool { return pods.Load() >= 100 }, 30*time.Second, time.Millisecond, "the others wait for their turn")
	short, end := context.WithTimeout(ctx, 4*time.Second)
	defer end()
	_, err = c.Client.CoordinationV1().Leases(c.Namespace).Get(short, "conch-leader", meta.GetOptions{})
	require.NoError(t, err)
	require.Less(t, pods.Load(), int64(many))
	cancel()
	all.Wait()
}
