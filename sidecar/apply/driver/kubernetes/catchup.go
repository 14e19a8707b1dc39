// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Times of CatchUp: how often the cache is looked at, and after which time the API server is asked anew, since what it said may be out of date itself.
const (
	catchUpLook = 20 * time.Millisecond
	catchUpAsk  = time.Second
)

// CatchUp waits until the driver knows the Pods of the release as the API server has them now. A conch that has followed is as far as its watch, which may be behind:
// it would start a server for a partition that has one, and remove a Pod whose address it does not know yet.
func (d *Driver) CatchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	look := time.NewTicker(catchUpLook)
	defer look.Stop()
	for {
		now, err := d.b.Client.CoreV1().Pods(d.b.Namespace).List(ctx, meta.ListOptions{LabelSelector: LabelRelease + "=" + d.b.Release})
		if Passing(err) && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(catchUpAsk):
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("the Pods of release %s: %w", d.b.Release, err)
		}
		for asked := time.Now(); time.Since(asked) < catchUpAsk; {
			if d.cache.has(now.Items) {
				return nil
			}
			select {
			case <-look.C:
			case <-ctx.Done():
				behind := cmp.Or(d.cache.podsWatched.unread(), "what is known of them is behind what the API server has, since "+syncPatience.String())
				return fmt.Errorf("the Pods of release %s: %s: %w", d.b.Release, behind, context.Cause(ctx))
			}
		}
	}
}

// has reports that the cache has just these Pods, as they are here or later.
func (c *cache) has(all []core.Pod) bool {
	listed := map[types.UID]bool{}
	for i := range all {
		p := &all[i]
		known := c.pod(p.Name)
		if known == nil || known.UID != p.UID || before(known.ResourceVersion, p.ResourceVersion) {
			return false
		}
		listed[p.UID] = true
	}
	for _, known := range c.ofRelease() {
		if !listed[known.UID] {
			return false // it is gone, and that is not known
		}
	}
	return true
}

// before reports that one version of an object is older than another, or may be.
func before(version, other string) bool {
	if version == other {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(version, other)
	return err != nil || order < 0
}
