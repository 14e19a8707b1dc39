// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"

	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
)

var claimsOf = resource.SchemeGroupVersion.WithResource("resourceclaims")

// A claim that is being deleted is waited for before there is a Pod that wants it, also where it differs in nothing that counts from the one that is wanted.
func TestAClaimThatIsGoing(t *testing.T) {
	for _, class := range []string{"", "gpu.of-mine"} {
		t.Run(class, func(t *testing.T) { aClaimIsGoing(t, class) })
	}
}

// aClaimIsGoing starts a server, by a conch whose claims are of a class, on a GPU whose claim by another is being deleted.
func aClaimIsGoing(t *testing.T, class string) {
	now := meta.Now()
	c := newCluster(t, node("node-1"), slice("node-1"))
	c.claimsStay()
	first, err := begin(t.Context(), options(c))
	require.NoError(t, err)
	before, err := first.Start(t.Context(), part(t, first, "p", 40))
	require.NoError(t, err)
	require.NoError(t, before.Leave())
	require.NoError(t, first.Close())
	claims, err := c.ResourceV1().ResourceClaims(namespace).List(t.Context(), meta.ListOptions{})
	require.NoError(t, err)
	require.Len(t, claims.Items, 1)
	going := claims.Items[0].DeepCopy()
	going.DeletionTimestamp, going.Finalizers = &now, []string{"resource.kubernetes.io/delete-protection"}
	require.NoError(t, c.Tracker().Update(claimsOf, going, namespace))
	o := options(c)
	o.GPUClass = class
	d := open(t, o)
	found, err := d.Find(t.Context())
	require.NoError(t, err)
	c.ClearActions()
	spec, started, failed := part(t, d, "q", 40), make(chan driver.Server, 1), make(chan error, 1)
	go func() {
		s, err := d.Start(t.Context(), spec)
		started <- s
		failed <- err
	}()
	eventually(t, "the claim is asked for twice", func() bool {
		n := 0
		for _, a := range c.Actions() {
			if a.Matches("patch", "resourceclaims") {
				n++
			}
		}
		return n > 1
	})
	require.Len(t, c.names(), 1)
	require.NoError(t, c.Tracker().Delete(claimsOf, namespace, going.Name))
	s := <-started
	require.NoError(t, <-failed)
	require.NoError(t, found[0].Stop(t.Context()))
	require.NoError(t, s.Stop(t.Context()))
}

// claimsStay has the API server refuse changes of claims.
func (c *testCluster) claimsStay() {
	c.PrependReactor("patch", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch := a.(clienttesting.PatchAction)
		o, err := c.Tracker().Get(claimsOf, namespace, patch.GetName())
		if err != nil {
			return false, nil, nil // it is made
		}
		is, want := o.(*resource.ResourceClaim), &resource.ResourceClaim{}
		require.NoError(c.t, json.Unmarshal(patch.GetPatch(), want))
		if equality.Semantic.DeepEqual(is.Spec, want.Spec) {
			return false, nil, nil
		}
		return true, nil, apierrors.NewInvalid(resource.SchemeGroupVersion.WithKind("ResourceClaim").GroupKind(), is.Name, field.ErrorList{field.Invalid(field.NewPath("spec"), is.Spec, "field is immutable")})
	})
}

// A GPU is to be shared in another way. The API server changes no claim: the old one goes once its last server has ended, and is made anew for the next.
func TestAClaimIsOfAnotherSharing(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	c.claimsStay()
	first, err := begin(t.Context(), options(c))
	require.NoError(t, err)
	old := part(t, first, "p", 100)
	s, err := first.Start(t.Context(), old)
	require.NoError(t, err)
	require.NoError(t, s.Leave())
	require.NoError(t, first.Close())

	o := options(c)
	o.GPUClass = "gpu.of-mine" // of no consequence while the claim of before is there
	same := open(t, o)
	again, err := same.Start(t.Context(), part(t, same, "q", 50))
	require.NoError(t, err)
	require.NoError(t, again.Stop(t.Context()))
	require.NoError(t, same.Close())

	o.Sharing = kubernetes.SharingNone
	d := open(t, o)
	found, err := d.Find(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 1)
	next := part(t, d, "p", 100)
	require.Equal(t, first.Claim(old.GPU), found[0].Spec().Claim)
	require.NotEqual(t, d.Claim(next.GPU), found[0].Spec().Claim)
	started, failed := make(chan driver.Server, 1), make(chan error, 1)
	go func() {
		s, err := d.Start(t.Context(), next)
		started <- s
		failed <- err
	}()
	c.ClearActions()
	eventually(t, "the claim is asked for again", func() bool {
		return slices.ContainsFunc(c.Actions(), func(a clienttesting.Action) bool { return a.Matches("patch", "resourceclaims") })
	})
	require.NoError(t, found[0].Stop(t.Context()))
	successor := <-started
	require.NoError(t, <-failed)
	claims, err := c.ResourceV1().ResourceClaims(namespace).List(t.Context(), meta.ListOptions{})
	require.NoError(t, err)
	require.Len(t, claims.Items, 1)
	require.Empty(t, claims.Items[0].Spec.Devices.Config)
	require.NoError(t, successor.Stop(t.Context()))
}
