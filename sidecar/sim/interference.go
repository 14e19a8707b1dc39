// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// gpu is a GPU of the snapshot, or one that was rented later.
type gpu struct {
	node, id string
	spec     *policy.GPU
	model    *policy.Interference // nil: partitions do not slow each other
	// running are the partitions that execute a batch now, in order of start.
	running []*partition
	// partitions counts those that have not been removed.
	partitions int
	// failures that hold now; above zero the GPU is gone.
	failures int
	rented   bool // by rent, and not to be given back
	leaving  bool // to be given back once it is empty
	added    queue.Time
	removed  queue.Time // Never while it is there
}

func (g *gpu) name() string { return g.node + "/" + g.id }

// enter lets p execute beside what executes on its GPU now: the worst of the co-runners slows it, to its end (policy.Interference.Slowdown).
func (g *gpu) enter(e *engine, p *partition) {
	took := p.alone
	if g.model != nil {
		slow := 1.0
		for _, o := range g.running {
			slow = max(slow, g.model.Slowdown(p.load(), o.load()))
		}
		took *= slow
		g.running = append(g.running, p)
	}
	e.timers.set(&p.timer, e.now+queue.Time(math.Ceil(took)))
}

// leave ends the execution of p.
func (g *gpu) leave(p *partition) {
	if i := slices.Index(g.running, p); i >= 0 {
		g.running = slices.Delete(g.running, i, i+1)
	}
}

// expected is the slowdown that the queue plans with for a model on a partition of the plan: its worst batch beside the worst batch of any
// other partition of the GPU. The model is linear, so the two can be looked for one after the other.
func expected(own *kernel, limit int, neighbours []*kernel, m *policy.Interference) float64 {
	if m == nil || len(neighbours) == 0 {
		return 1
	}
	self, other := math.Inf(-1), math.Inf(-1)
	for _, l := range own.load[1 : limit+1] {
		self = max(self, m.GetL2Self()*l.L2+m.GetBandwidthSelf()*l.Bandwidth)
	}
	for _, k := range neighbours {
		for _, l := range k.load[1 : len(k.load)-1] {
			other = max(other, m.GetL2Other()*l.L2+m.GetBandwidthOther()*l.Bandwidth)
		}
	}
	return max(1, self+other+m.GetConstant())
}
