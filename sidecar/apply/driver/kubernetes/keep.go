// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
)

// keepEvery is how often the cluster's objects are put in order, and at most how often changed nodes are reported.
const keepEvery = time.Second

// every calls what is to be done each keepEvery until ctx ends.
func every(ctx context.Context, do func(context.Context)) {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		do(ctx)
	}
}

// keep puts the cluster in order: what is dead is removed, Pods say what their servers have, claims that no Pod uses are, the disruption budget counts the servers, and GPUs
// that are wanted have stand-ins. It waits for its turn among the changes.
func (d *Driver) keep(ctx context.Context) {
	if d.b.Fence() != nil {
		d.idle = time.Now()
		return
	}
	d.bury(ctx)
	d.mark(ctx)
	d.noteModels(ctx)
	d.releaseClaims(ctx)
	d.guard(ctx)
	d.grow(ctx)
}

// look reads what the cluster says of its nodes with GPUs.
func (d *Driver) look() (nodes []*policy.Node, remarks []string) {
	w := d.cache.world()
	excused := d.hearing.excused(d.b.withGPUs(w), heard{time.Now(), d.cache.silentAt(), d.serves})
	if len(excused) > 0 {
		d.cache.stirred.Store(true) // the next look may find otherwise, though nothing comes in
	}
	nodes, remarks = d.b.read(w, excused)
	d.mu.Lock()
	d.b.liken(d.likes, w)
	d.mu.Unlock()
	nodes = d.withVanished(nodes, w, excused, time.Now())
	d.retry = d.withOccupied(nodes, time.Now())
	return nodes, remarks
}

// withVanished adds nodes that are there as before but offer no GPU since a moment ago: their device plugin or DRA driver is being started anew, and their servers serve on.
func (d *Driver) withVanished(nodes []*policy.Node, w world, excused map[string]bool, now time.Time) []*policy.Node {
	d.mu.Lock()
	before := d.nodes
	d.mu.Unlock()
	offers, there := map[string]bool{}, map[string]*core.Node{}
	for _, n := range nodes {
		offers[n.GetName()] = true
	}
	for _, n := range w.nodes {
		there[n.Name] = n
	}
	vanished := d.vanished
	d.vanished = map[string]time.Time{}
	for _, n := range before {
		if offers[n.GetName()] || there[n.GetName()] == nil {
			continue
		}
		since, was := vanished[n.GetName()]
		if !was {
			since = now
		}
		if now.Sub(since) < returning {
			d.vanished[n.GetName()] = since
			n = proto.CloneOf(n)
			if why := d.b.whyNot(there[n.GetName()], excused[n.GetName()]); why != "" {
				for _, g := range n.GetGpus() {
					unavailable(g, why)
				}
			}
			nodes = append(nodes, n)
			d.cache.stirred.Store(true) // the next look may find otherwise, though nothing comes in
		}
	}
	slices.SortFunc(nodes, func(a, b *policy.Node) int { return strings.Compare(a.GetName(), b.GetName()) })
	return nodes
}

// lookAtNodes reports nodes that are others than before.
func (d *Driver) lookAtNodes(context.Context) {
	if !d.cache.stirred.Swap(false) && (d.retry.IsZero() || time.Now().Before(d.retry)) {
		return
	}
	now, _ := d.look()
	d.mu.Lock()
	before := d.nodes
	same := slices.EqualFunc(before, now, func(a, b *policy.Node) bool { return proto.Equal(a, b) })
	if !same {
		d.nodes = now
	}
	d.mu.Unlock()
	if !same {
		d.b.Changed(difference(before, now))
	}
}

// difference says in a sentence how GPUs changed.
func difference(before, now []*policy.Node) string {
	state := func(nodes []*policy.Node) map[string]string {
		all := map[string]string{}
		for _, n := range nodes {
			for _, g := range n.GetGpus() {
				all[g.GetId()] = "available"
				if g.GetUnavailable() {
					all[g.GetId()] = g.GetUnavailableReason()
				}
			}
		}
		return all
	}
	was, is := state(before), state(now)
	var ids []string
	for id := range was {
		if is[id] != was[id] {
			ids = append(ids, id)
		}
	}
	for id := range is {
		if was[id] == "" {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return "a GPU of the cluster is described anew"
	}
	slices.Sort(ids)
	text := "GPU " + ids[0] + " is " + is[ids[0]]
	if is[ids[0]] == "" {
		text = "GPU " + ids[0] + " is no more"
	}
	switch n := len(ids) - 1; {
	case n == 1:
		text += ", and another one has changed"
	case n > 1:
		text += ", and others have changed"
	}
	return text
}

// doubt is for how long a Pod may come to be known, such as one whose creation was not answered: while this conch leads, and the API server answers.
const doubt = 2 * time.Minute

// bury removes Pods that are dead, those that were to be removed before and are not, and those that were made though nobody heard of it, by this conch or by the one that
// led before.
func (d *Driver) bury(ctx context.Context) {
	pods := d.cache.ofRelease()
	there, named := map[types.UID]bool{}, map[string]bool{}
	for _, p := range pods {
		there[p.UID], named[p.Name] = true, true
	}
	forgotten := func(since time.Time) bool {
		return min(time.Since(since), time.Since(d.cache.silentAt()), time.Since(d.idle)) > doubt
	}
	d.mu.Lock()
	maps.DeleteFunc(d.doubtful, func(_ string, since time.Time) bool { return forgotten(since) })
	maps.DeleteFunc(d.condemned, func(uid types.UID, since time.Time) bool { return !there[uid] && forgotten(since) }) // it was gone before
	maps.DeleteFunc(d.made, func(name string, since time.Time) bool { return !named[name] && forgotten(since) })
	d.mu.Unlock()
	for _, p := range pods {
		if p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0 {
			continue // the API server has removed it but for what a finalizer of others waits for
		}
		d.mu.Lock()
		_, condemned := d.condemned[p.UID]
		_, doubtful := d.doubtful[p.Name]
		_, made := d.made[p.Name]
		stray := d.found != nil && !d.found[p.UID] && !made
		ended := over(p) && !d.awaited[p.UID] // who awaits it says first why it has ended
		d.mu.Unlock()
		if stray && !condemned {
			d.b.Logger.Warn("a Pod of the release is removed that the conch which led before had asked for, and which was made since", "pod", p.Name)
		}
		if ended || condemned || doubtful || stray {
			if err := d.remove(ctx, p.Name, p.UID, 0); err != nil {
				d.b.Logger.Debug("a dead Pod could not be removed; it is tried again", "pod", p.Name, "error", err)
			}
		}
	}
}

// mark sets the readiness gate of Pods whose servers have answered and which lack it: the API server did not answer when it was to be set, or the conch that started
// them ended before.
func (d *Driver) mark(ctx context.Context) {
	for _, p := range d.cache.ofRelease() {
		d.mu.Lock()
		s := d.servers[p.UID]
		d.mu.Unlock()
		if s == nil || s.answered.Load() == nil || p.DeletionTimestamp != nil || gated(p) {
			continue
		}
		if err := d.answers(ctx, p.Name); err != nil {
			d.b.Logger.Debug("a Pod's readiness gate could not be set; it is tried again", "pod", p.Name, "error", err)
			return
		}
	}
}

// notesAtOnce bounds how many Pods get their models noted in one round: the others have theirs in the next.
const notesAtOnce = 10

// noteModels writes to each Pod which models its server has, where that has changed: one request for all that changed since the last round. People read it, and nothing
// else does, so that servers that start go first.
func (d *Driver) noteModels(ctx context.Context) {
	d.mu.Lock()
	servers := slices.Collect(maps.Values(d.servers))
	d.mu.Unlock()
	noted := 0
	for _, s := range servers {
		has := s.has.Load()
		if has == nil || *has == s.noted {
			continue
		}
		if noted++; noted > notesAtOnce || len(d.writing) == cap(d.writing) {
			return
		}
		err := d.describe(ctx, s.name, map[string]any{"metadata": map[string]any{"annotations": map[string]string{annotationModels: *has}}})
		if err != nil && (!refusal(err) || apierrors.IsTooManyRequests(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) {
			d.b.Logger.Debug("the models of a Pod could not be noted; it is tried again", "pod", s.name, "error", err)
			return
		}
		s.noted = *has
	}
}

// gated reports that a Pod has its readiness gate set.
func gated(p *core.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c core.PodCondition) bool { return c.Type == gateAnswers && c.Status == core.ConditionTrue })
}

// guard keeps a PodDisruptionBudget that lets the servers be evicted one after the other, where somebody has deleted it, too. Pods that no controller has take no
// percentage, so that it has to follow their number.
func (d *Driver) guard(ctx context.Context) {
	servers := 0
	for _, p := range d.cache.ofRelease() {
		if p.DeletionTimestamp == nil && !over(p) {
			servers++
		}
	}
	least := intstr.FromInt32(int32(max(servers-1, 0))) //nolint:gosec // it counts Pods
	if now := d.cache.budget(d.b.Namespace, d.b.budgetName()); now != nil && (now.Spec.MinAvailable == nil || *now.Spec.MinAvailable == least) {
		return // without minAvailable it is somebody else's by now, who wants it so
	}
	text, err := json.Marshal(&policyv1.PodDisruptionBudget{
		TypeMeta:   meta.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"},
		ObjectMeta: meta.ObjectMeta{Name: d.b.budgetName(), Namespace: d.b.Namespace, OwnerReferences: d.b.owners(), Labels: map[string]string{LabelManaged: Managed, LabelRelease: d.b.Release}},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &meta.LabelSelector{MatchLabels: map[string]string{LabelRelease: d.b.Release, LabelManaged: Managed}}},
	})
	if err == nil {
		err = d.change(ctx, func(ctx context.Context) error {
			_, err := d.b.Client.PolicyV1().PodDisruptionBudgets(d.b.Namespace).Patch(ctx, d.b.budgetName(), types.ApplyPatchType, text, meta.PatchOptions{FieldManager: fieldManager, Force: proto.Bool(true)})
			return err
		})
	}
	if err != nil {
		d.b.Logger.Debug("the disruption budget of the servers could not be set; it is tried again", "error", err)
	}
}
