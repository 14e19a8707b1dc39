// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/conch-serving/conch/plugins/policy"
)

// goes is in Driver.claiming while a claim is being deleted that no Pod uses.
const goes = -1

// keepClaim keeps a claim until the returned function is called.
func (d *Driver) keepClaim(ctx context.Context, name string) (done func(), err error) {
	d.mu.Lock()
	for d.claiming[name] == goes {
		d.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(lookEvery):
		}
		d.mu.Lock()
	}
	d.claiming[name]++
	d.mu.Unlock()
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.claiming[name]--; d.claiming[name] == 0 {
			delete(d.claiming, name)
		}
	}, nil
}

// claim applies the claim of a GPU. One of the same name that is being deleted, as after the end of a release whose name is used again, is waited for: the scheduler
// would never look at a Pod whose claim is gone. So is one whose Pods share the GPU otherwise: the API server changes no claim, so that it is made anew after their end.
func (d *Driver) claim(ctx context.Context, g *policy.GPU) error {
	want := d.b.claim(g)
	text, err := json.Marshal(want)
	if err != nil {
		return err
	}
	for {
		var is *resource.ResourceClaim
		err := d.change(ctx, func(ctx context.Context) (err error) {
			is, err = d.b.Client.ResourceV1().ResourceClaims(d.b.Namespace).Patch(ctx, want.Name, types.ApplyPatchType, text, meta.PatchOptions{FieldManager: fieldManager, Force: proto.Bool(true)})
			return err
		})
		why := "it is still being deleted"
		switch {
		case apierrors.IsInvalid(err):
			before, unknown := d.cache.claims.ResourceClaims(d.b.Namespace).Get(want.Name)
			if unknown != nil || before.Labels[LabelRelease] != d.b.Release {
				return err
			}
			if before.DeletionTimestamp == nil && asGood(before, want) {
				return nil
			}
			if why, err = d.outdated(ctx, before); err != nil {
				return err
			}
		case err != nil || is.DeletionTimestamp == nil:
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("claim %s of before: %s: %w", want.Name, why, context.Cause(ctx))
		case <-time.After(keepEvery):
		}
	}
}

// asGood reports that one claim is of the same GPU as another, shared in the same way.
func asGood(is, want *resource.ResourceClaim) bool {
	what := func(c *resource.ResourceClaim) (all []any) {
		for _, r := range c.Spec.Devices.Requests {
			if r.Exactly != nil {
				for _, s := range r.Exactly.Selectors {
					all = append(all, s.CEL)
				}
			}
		}
		for _, config := range c.Spec.Devices.Config {
			var parameters any
			if config.Opaque != nil && json.Unmarshal(config.Opaque.Parameters.Raw, &parameters) == nil {
				all = append(all, config.Opaque.Driver, parameters)
			}
		}
		return all
	}
	return reflect.DeepEqual(what(is), what(want))
}

// outdated deletes a claim that is not as it is wanted, once no Pod uses it, and says what it waits for.
func (d *Driver) outdated(ctx context.Context, c *resource.ResourceClaim) (why string, err error) {
	if c.DeletionTimestamp != nil {
		return "it is still being deleted", nil
	}
	for _, p := range d.cache.ofRelease() {
		if uses(p, c.Name) {
			return "pod " + p.Name + " has it, which shares the GPU in another way", nil
		}
	}
	return "it is not deleted yet", d.deleteClaim(ctx, c)
}

func uses(p *core.Pod, claim string) bool {
	return slices.ContainsFunc(p.Spec.ResourceClaims, func(c core.PodResourceClaim) bool { return c.ResourceClaimName != nil && *c.ResourceClaimName == claim })
}

// releaseClaims deletes claims of GPUs that no Pod uses, so that others may have them.
func (d *Driver) releaseClaims(ctx context.Context) {
	if d.cache.claims == nil {
		return
	}
	used := map[string]bool{}
	for _, p := range slices.Concat(d.cache.ofRelease(), d.cache.standInPods()) {
		for _, c := range p.Spec.ResourceClaims {
			if c.ResourceClaimName != nil {
				used[*c.ResourceClaimName] = true
			}
		}
	}
	claims, err := d.cache.claims.ResourceClaims(d.b.Namespace).List(labels.SelectorFromSet(labels.Set{LabelRelease: d.b.Release}))
	if err != nil {
		panic(err) // it is a map
	}
	for _, c := range claims {
		d.mu.Lock()
		unused := !used[c.Name] && d.claiming[c.Name] == 0 && c.DeletionTimestamp == nil && time.Since(c.CreationTimestamp.Time) > 5*keepEvery
		if unused {
			d.claiming[c.Name] = goes // a start that wants it makes it anew then
		}
		d.mu.Unlock()
		if !unused {
			continue
		}
		if err := d.deleteClaim(ctx, c); err != nil {
			d.b.Logger.Debug("a claim that no Pod uses could not be deleted; it is tried again", "claim", c.Name, "error", err)
		}
		d.mu.Lock()
		delete(d.claiming, c.Name)
		d.mu.Unlock()
	}
}

// deleteClaim deletes a claim, if it is as it was.
func (d *Driver) deleteClaim(ctx context.Context, c *resource.ResourceClaim) error {
	return d.change(ctx, func(ctx context.Context) error {
		as := meta.DeleteOptions{Preconditions: &meta.Preconditions{UID: &c.UID, ResourceVersion: &c.ResourceVersion}}
		return goneIsDone(d.b.Client.ResourceV1().ResourceClaims(d.b.Namespace).Delete(ctx, c.Name, as))
	})
}
