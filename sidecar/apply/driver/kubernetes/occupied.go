// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// occupied is why a GPU of the device plugin is unavailable that no server gets. Which Pods of other namespaces have GPUs, conch may not ask.
const occupied = "taken by a Pod of others"

const (
	// shortage is how long a Pod may find no GPU of a node on which servers do not have all before others have those that are left: one of their Pods may be about to end.
	// It is shorter than unplaced, and lasts while servers are tried again.
	shortage = 45 * time.Second
	// firstTry and lastTry are after how long a GPU that others had is offered to plans again, at first and at most: that they have gone shows only by a Pod that gets it.
	firstTry = 10 * time.Minute
	lastTry  = 4 * time.Hour
)

// short is since when Pods find no GPU of a node, and when one did not the last time.
type short struct{ since, last time.Time }

// occupation is until when a GPU counts as taken by others, and after how long that was.
type occupation struct {
	until time.Time
	pause time.Duration
}

// finds takes in that a Pod of a node got its GPU.
func (d *Driver) finds(g *policy.GPU, node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.short, node)
	if _, was := d.occupied[g.GetId()]; was {
		delete(d.occupied, g.GetId())
		d.cache.stirred.Store(true)
	}
}

// others says that Pods of others have the GPU that the scheduler or the kubelet does not find for a Pod, once that has lasted; empty before, and where it has one.
func (d *Driver) others(p *core.Pod, s driver.Spec) (text string) {
	if byClaim(s.GPU) || !d.b.gpuless(p) {
		return ""
	}
	node, now := s.Partition.GetNode(), time.Now()
	all, ours := d.cache.gpusOf(node, d.b.GPUResource), map[string]bool{} // names of GPUs, of which two Pods may have the same for a while
	left := all
	for _, p := range slices.Concat(d.cache.ofRelease(), d.cache.standInPods()) {
		if p.Spec.NodeName == node && !over(p) {
			left--
			ours[p.Labels[labelGPU]] = true
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	since := d.short[node]
	if left <= 0 || now.Sub(since.last) > 2*time.Minute {
		since.since = now // they are its own, which end; or that was another time
	}
	since.last = now
	if d.short[node] = since; left <= 0 || now.Sub(since.since) < shortage {
		return ""
	}
	wanted := s.GPU.GetId()
	var names []string
	if !ours[dnsName(wanted, 63)] { // else an old server of this release has it still, and others have those that have none
		names = append(names, wanted)
	}
	for _, n := range d.nodes {
		for _, g := range n.GetGpus() {
			if n.GetName() == node && g.GetId() != wanted && !ours[dnsName(g.GetId(), 63)] {
				names = append(names, g.GetId())
			}
		}
	}
	for _, name := range names[:min(left, len(names))] {
		o := d.occupied[name]
		if o.until.After(now) {
			continue
		}
		o.pause = min(max(2*o.pause, firstTry), lastTry)
		o.until = now.Add(o.pause)
		d.occupied[name] = o
		d.cache.stirred.Store(true)
	}
	return fmt.Sprintf("pod %s has no place: Pods of others have %d of the %d GPUs of node %s", p.Name, left, all, node)
}

// gpuless reports that the scheduler or the kubelet finds no GPU of the device plugin for a Pod.
func (o Options) gpuless(p *core.Pod) bool {
	return p.Status.Reason == "OutOf"+o.GPUResource || slices.ContainsFunc(p.Status.Conditions, func(c core.PodCondition) bool {
		return c.Type == core.PodScheduled && c.Status == core.ConditionFalse && strings.Contains(c.Message, "Insufficient "+o.GPUResource)
	})
}

// withOccupied marks GPUs that others have, and says when the next of them is to be tried again. What is known of nodes that are gone is forgotten.
func (d *Driver) withOccupied(nodes []*policy.Node, now time.Time) (next time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	there := map[string]bool{}
	for _, n := range nodes {
		for _, g := range n.GetGpus() {
			there[g.GetId()] = true
			o, is := d.occupied[g.GetId()]
			if !is || !o.until.After(now) {
				continue
			}
			if next.IsZero() || o.until.Before(next) {
				next = o.until
			}
			if !g.GetUnavailable() {
				unavailable(g, occupied)
			}
		}
	}
	maps.DeleteFunc(d.occupied, func(id string, o occupation) bool { return !there[id] || now.Sub(o.until) > lastTry })
	return next
}
