// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"slices"
	"time"

	core "k8s.io/api/core/v1"
)

// Times of nodes that are not ready.
const (
	// brief is how long a node may be not ready before that counts: others may follow, and a kubelet that is started anew is not ready for a moment.
	brief = 5 * time.Second
	// returning is how long nodes may take to be heard of again after an outage of the control plane: a kubelet looks at its node anew after a minute at most, and reports
	// each ten seconds.
	returning = 2 * time.Minute
	// believed is after how long that none is ready is no outage of the control plane any more, where the API server answers. A node counts as ready beyond that while a
	// server of it answers.
	believed = 3 * time.Minute
)

// hearing is what this conch has seen of nodes that are ready and are not. Where none is, it is rather the control plane that has not heard of them, as after an outage of
// the API server; and then it hears of one after the other. What runs there stays meanwhile. The cluster itself evicts nothing then, either.
type hearing struct {
	// ready are the nodes that were at the last look, nil before the first, and lost is since when those that were before are not. Outage is when no node was, or the API
	// server did not answer. Dark is since when none is though it answers; zero: one is.
	ready        map[string]bool
	lost         map[string]time.Time
	outage, dark time.Time
	// counted are the nodes that counted as not ready at the last look: an outage does not bring them back.
	counted map[string]bool
}

// heard is what a look at the nodes is made from, besides their objects.
type heard struct {
	now time.Time
	// silent is when the API server did not answer the last time.
	silent time.Time
	// serves reports that a server of a node has answered this conch a moment ago.
	serves func(node string) bool
}

// excused are the nodes, of those with GPUs, that are not ready and for which that counts for nothing yet.
func (h *hearing) excused(nodes []*core.Node, of heard) map[string]bool {
	if h.ready == nil {
		h.began(nodes, of.now)
	}
	before, lost := h.ready, h.lost
	h.ready, h.lost = map[string]bool{}, map[string]time.Time{}
	for _, n := range nodes {
		if isReady(n) {
			h.ready[n.Name] = true
		} else if before[n.Name] {
			h.lost[n.Name] = of.now
		} else if since, is := lost[n.Name]; is {
			h.lost[n.Name] = since
		}
	}
	if of.silent.After(h.outage) {
		h.outage = of.silent
	}
	switch {
	case len(h.ready) > 0 || len(nodes) == 0:
		if !h.dark.IsZero() {
			h.dark, h.outage = time.Time{}, of.now
		}
	case h.dark.IsZero():
		h.dark = of.now
	case h.dark.Before(of.silent):
		h.dark = of.silent
	}
	if !h.dark.IsZero() && of.now.Sub(h.dark) < believed {
		h.outage = of.now
	}
	all, counted := map[string]bool{}, map[string]bool{}
	for _, n := range nodes {
		since, was := h.lost[n.Name]
		lately := was && of.now.Sub(since) < brief
		returns := !h.outage.IsZero() && of.now.Sub(h.outage) < returning
		switch {
		case h.ready[n.Name]:
		case !h.counted[n.Name] && (lately || returns || !h.dark.IsZero() && of.serves(n.Name)):
			all[n.Name] = true
		default:
			counted[n.Name] = true
		}
	}
	h.counted = counted
	return all
}

// began takes in, before the first look, what the nodes themselves say of the time before: since when they are ready, or not. Where none was at one moment of late, they
// are being heard of again one after the other. Of an outage that not every node shows a conch that starts cannot know.
func (h *hearing) began(nodes []*core.Node, now time.Time) {
	h.ready, h.lost = map[string]bool{}, map[string]time.Time{}
	back, gone := now, time.Time{} // when the first of those that are ready became so, and the last of those that are not ceased to be
	for _, n := range nodes {
		switch since := readySince(n); {
		case !isReady(n):
			h.lost[n.Name] = since
			if since.After(gone) {
				gone = since
			}
		case since.Before(back):
			back = since
		}
	}
	if len(h.lost) < len(nodes) && !back.Before(gone) {
		h.outage = back
	}
}

// readySince is since when a node is ready, or since when it is not.
func readySince(n *core.Node) time.Time {
	for _, c := range n.Status.Conditions {
		if c.Type == core.NodeReady {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// withGPUs are the nodes of a world that have some.
func (o Options) withGPUs(w world) (all []*core.Node) {
	offered := map[string]bool{}
	for _, s := range w.latest(o.GPUDriver) {
		if s.Spec.NodeName != nil {
			offered[*s.Spec.NodeName] = true
		}
	}
	for _, n := range w.nodes {
		count := n.Status.Allocatable[core.ResourceName(o.GPUResource)]
		if offered[n.Name] || count.Value() > 0 {
			all = append(all, n)
		}
	}
	return all
}

func isReady(n *core.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c core.NodeCondition) bool { return c.Type == core.NodeReady && c.Status == core.ConditionTrue })
}
