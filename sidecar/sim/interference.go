// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"

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

// slowdown is by what factor a co-runner slows a batch: gpulet's linear model (section 4.4), never below 1.
func slowdown(m *policy.Interference, self, other load) float64 {
	return max(1, m.GetL2Self()*self.l2+m.GetL2Other()*other.l2+m.GetBandwidthSelf()*self.bandwidth+m.GetBandwidthOther()*other.bandwidth+m.GetConstant())
}

// slowed is the slowdown of p beside everything that executes on its GPU: that of the worst co-runner, which is gpulet's rule for more than
// two and minitriton's.
func (g *gpu) slowed(p *partition) float64 {
	worst := 1.0
	for _, o := range g.running {
		if o != p {
			worst = max(worst, slowdown(g.model, p.load(), o.load()))
		}
	}
	return worst
}

// enter lets p execute beside the others, all of which may become slower.
func (g *gpu) enter(e *engine, p *partition) {
	p.since, p.slow = e.now, 1
	if g.model == nil {
		e.timers.set(&p.timer, e.now+queue.Time(math.Ceil(p.left)))
		return
	}
	g.running = append(g.running, p)
	p.slow = 0 // differs from every slowdown: respeed sets the timer
	g.respeed(e)
}

// leave ends the execution of p; the others may become faster.
func (g *gpu) leave(e *engine, p *partition) {
	if g.model == nil {
		return
	}
	for i, o := range g.running {
		if o == p {
			g.running = append(g.running[:i], g.running[i+1:]...)
			break
		}
	}
	g.respeed(e)
}

// respeed brings everything that executes up to date: what was done until now was done at the old speed, the rest goes at the new one.
func (g *gpu) respeed(e *engine) {
	for _, p := range g.running {
		slow := g.slowed(p)
		if slow == p.slow {
			continue
		}
		if p.slow > 0 {
			p.left = max(0, p.left-float64(e.now-p.since)/p.slow)
		}
		p.since, p.slow = e.now, slow
		e.timers.set(&p.timer, e.now+queue.Time(math.Ceil(p.left*slow)))
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
		self = max(self, m.GetL2Self()*l.l2+m.GetBandwidthSelf()*l.bandwidth)
	}
	for _, k := range neighbours {
		for _, l := range k.load[1 : len(k.load)-1] {
			other = max(other, m.GetL2Other()*l.l2+m.GetBandwidthOther()*l.bandwidth)
		}
	}
	return max(1, self+other+m.GetConstant())
}
