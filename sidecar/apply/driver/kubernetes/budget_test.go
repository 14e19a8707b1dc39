// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	policyv1 "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/conch-serving/conch/internal/bubble"
)

// A disruption budget that somebody deletes or changes is as it was soon after. One that says something else is left to who wants it so, and none costs a request at rest.
func TestTheDisruptionBudgetIsKept(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, node("node-1"), slice("node-1"))
		open(t, options(c))
		budgets := c.PolicyV1().PodDisruptionBudgets(namespace)
		soon := func() *policyv1.PodDisruptionBudget {
			time.Sleep(3 * time.Second)
			b, err := budgets.Get(t.Context(), "conch-servers", meta.GetOptions{})
			require.NoError(t, err)
			return b.DeepCopy()
		}
		change := func(b *policyv1.PodDisruptionBudget) {
			_, err := budgets.Update(t.Context(), b, meta.UpdateOptions{})
			require.NoError(t, err)
		}
		require.Zero(t, soon().Spec.MinAvailable.IntValue())
		require.NoError(t, budgets.Delete(t.Context(), "conch-servers", meta.DeleteOptions{}))
		b := soon()
		require.Zero(t, b.Spec.MinAvailable.IntValue())
		ten := intstr.FromInt32(10)
		b.Spec.MinAvailable = &ten
		change(b)
		b = soon()
		require.Zero(t, b.Spec.MinAvailable.IntValue())
		b.Spec.MinAvailable, b.Spec.MaxUnavailable = nil, &ten
		change(b)
		require.Nil(t, soon().Spec.MinAvailable)
		c.ClearActions()
		time.Sleep(time.Minute)
		require.Empty(t, c.Actions())
	})
}
