// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resource "k8s.io/api/resource/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/conch-serving/conch/internal/bubble"
)

// Changes that are under way, however many, keep nobody from what the cluster says of its nodes.
func TestNodesWaitForNoChange(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := ready("2", nil)
		c := fake.NewClientset(n)
		changes := make(chan string, 1)
		d, err := New(t.Context(), Options{
			Connection: Connection{Client: c, Namespace: "serving"}, Image: "triton", ModelsPath: "/models", ModelsVolume: `{"emptyDir": {}}`,
			Changed: func(reason string) { changes <- reason },
		})
		require.NoError(t, err)
		for range writesAtOnce {
			d.writing <- struct{}{}
		}
		dead := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "dead", Namespace: "serving", UID: "1", Labels: map[string]string{LabelRelease: "conch"}}, Status: core.PodStatus{Phase: core.PodFailed}}
		_, err = c.CoreV1().Pods("serving").Create(t.Context(), dead, meta.CreateOptions{})
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		n = n.DeepCopy()
		n.Spec.Unschedulable = true
		_, err = c.CoreV1().Nodes().Update(t.Context(), n, meta.UpdateOptions{})
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		require.Len(t, changes, 1)
		require.NoError(t, d.Close())
	})
}

// What puts the cluster in order waits for its turn among the changes, as starts do, and asks then whether this conch leads.
func TestOrderIsKeptInItsTurn(t *testing.T) {
	for name, keep := range map[string]func(*Driver, context.Context){"a claim": (*Driver).releaseClaims, "the budget": (*Driver).guard, "a stand-in": (*Driver).grow} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				label, five := map[string]string{LabelRelease: "conch"}, intstr.FromInt32(5)
				c := fake.NewClientset(ready("2", nil),
					&resource.ResourceClaim{ObjectMeta: meta.ObjectMeta{Name: "of-no-pod", Namespace: "serving", Labels: label}},
					&policyv1.PodDisruptionBudget{ObjectMeta: meta.ObjectMeta{Name: "conch-servers", Namespace: "serving"}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &five}},
					&core.Pod{ObjectMeta: meta.ObjectMeta{Name: "stands", Namespace: "serving", Labels: map[string]string{labelWantedBy: "conch"}}})
				var lost atomic.Bool
				lost.Store(true)
				d, err := New(t.Context(), Options{
					Connection: Connection{Client: c, Namespace: "serving"}, DRA: true, Image: "triton", ModelsPath: "/models", ModelsVolume: `{"emptyDir": {}}`,
					Fence: func() error {
						if lost.Load() {
							return ErrNotLeading
						}
						return nil
					},
				})
				require.NoError(t, err)
				require.NoError(t, d.Close()) // the test keeps order itself
				lost.Store(false)
				for range writesAtOnce {
					d.writing <- struct{}{}
				}
				c.ClearActions()
				done := make(chan struct{})
				go func() {
					keep(d, t.Context())
					close(done)
				}()
				time.Sleep(time.Minute)
				lost.Store(true)
				<-d.writing
				<-done
				require.Empty(t, c.Actions())
				lost.Store(false)
				keep(d, t.Context())
				require.Len(t, c.Actions(), 1)
			})
		})
	}
}
