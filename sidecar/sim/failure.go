// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// scheduleFailures arranges those that are planned and the first random ones.
func (e *engine) scheduleFailures() error {
	for i, f := range e.w.Failures {
		if f.GPU == "" {
			e.at(queue.Time(f.At), func() { e.failPartition(f) })
			continue
		}
		var found *gpu
		for _, g := range e.gpus {
			if g.name() != f.GPU && g.id != f.GPU {
				continue
			}
			if found != nil {
				return fmt.Errorf("%w: failure %d: %q names several GPUs; say NODE/ID", ErrWorld, i+1, f.GPU)
			}
			found = g
		}
		if found == nil {
			return fmt.Errorf("%w: failure %d: there is no GPU %q", ErrWorld, i+1, f.GPU)
		}
		e.at(queue.Time(f.At), func() {
			e.failGPU(found)
			if f.For > 0 {
				e.at(e.now+queue.Time(f.For), func() { e.recoverGPU(found) })
			}
		})
	}
	for _, g := range e.gpus {
		e.breakDown(g)
	}
	return nil
}

// breakDown lets a GPU fail and recover at random, from a generator of its own, while requests arrive.
func (e *engine) breakDown(g *gpu) {
	b := e.w.Breakdowns
	if b.Between == 0 {
		return
	}
	random := workload.Seed(e.w.Seed, "breakdowns", g.name())
	after := func(mean float64) queue.Time { return e.now + queue.Time(random.ExpFloat64()*mean) }
	var fail, recovered func()
	fail = func() {
		if e.now < e.end {
			e.failGPU(g)
			e.at(after(float64(b.Repair)), recovered)
		}
	}
	recovered = func() {
		e.recoverGPU(g)
		e.at(after(float64(b.Between)), fail)
	}
	e.at(after(float64(b.Between)), fail)
}

func (e *engine) failGPU(g *gpu) {
	g.failures++
	for _, p := range e.parts {
		if p.gpu == g && !p.gone {
			e.down(p)
		}
	}
	e.collect.event(e, EventFailure, "GPU "+g.name()+" fails")
	e.want("GPU " + g.name() + " failed")
}

func (e *engine) recoverGPU(g *gpu) {
	g.failures--
	for _, p := range e.parts {
		if p.gpu == g && !p.gone {
			e.up(p)
		}
	}
	e.collect.event(e, EventRecovery, "GPU "+g.name()+" is back")
	e.want("GPU " + g.name() + " is back")
}

// failPartition is for a process that dies; whichever has the id when it happens.
func (e *engine) failPartition(f Failure) {
	p := e.inUse[f.Partition]
	if p == nil {
		e.collect.event(e, EventFailure, fmt.Sprintf("partition %s was to fail, but there is none", f.Partition))
		return
	}
	e.down(p)
	e.collect.event(e, EventFailure, "partition "+f.Partition+" fails")
	e.want("partition " + f.Partition + " failed")
	if f.For > 0 {
		e.at(e.now+queue.Time(f.For), func() {
			if !p.gone {
				e.up(p)
				e.collect.event(e, EventRecovery, "partition "+f.Partition+" is back")
				e.want("partition " + f.Partition + " is back")
			}
		})
	}
}

// down takes a partition out of use; its batch is lost.
func (e *engine) down(p *partition) {
	if p.failures++; p.failures > 1 {
		return
	}
	e.fault(e.sched.SetUp(e.now, p.id, false), p)
	e.abort(p)
	e.remove(p)
}

func (e *engine) up(p *partition) {
	if p.failures--; p.failures == 0 {
		e.fault(e.sched.SetUp(e.now, p.id, true), p)
	}
}

// rent follows a plan's wish for GPUs (objective min-cost): what is missing arrives after the offer's start time, what was rented and is
// not used by the plan goes once it is empty.
func (e *engine) rent(p *policy.Plan) {
	for _, offer := range e.w.Snapshot.GetOffers() {
		wanted, ok := p.GetWantedGpus()[offer.GetType()]
		if !ok {
			continue
		}
		if offer.GetMaxCount() > 0 {
			wanted = min(wanted, offer.GetMaxCount())
		}
		var have uint32
		for _, g := range e.gpus {
			if g.spec.GetType() == offer.GetType() && g.removed == queue.Never && g.failures == 0 {
				have++
			}
		}
		have += e.ordered[offer.GetType()]
		for ; have < wanted; have++ {
			e.order(offer)
		}
		for i := len(e.gpus) - 1; i >= 0 && have > wanted; i-- {
			if g := e.gpus[i]; g.rented && g.spec.GetType() == offer.GetType() && g.removed == queue.Never && !uses(p, g) {
				g.rented = false // to be given back
				g.leaving = true
				e.release(g)
				have--
			}
		}
	}
}

func uses(p *policy.Plan, g *gpu) bool {
	for _, part := range p.GetPartitions() {
		if part.GetNode() == g.node && part.GPU() == g.id {
			return true
		}
	}
	return false
}

func (e *engine) order(offer *policy.GPUOffer) {
	e.ordered[offer.GetType()]++
	e.rentals++
	id := fmt.Sprintf("rented-%d", e.rentals)
	e.at(e.now+queue.Time(offer.GetStartSeconds()*1e9), func() {
		e.ordered[offer.GetType()]--
		g := e.addGPU("rented", &policy.GPU{
			Id: id, Type: offer.GetType(), MemoryBytes: offer.GetMemoryBytes(), SmCount: offer.GetSmCount(),
			BandwidthBytesPerSecond: offer.GetBandwidthBytesPerSecond(), CostPerHour: offer.GetCostPerHour(), Emulated: true, Index: uint32(e.rentals),
		})
		g.rented = true
		e.breakDown(g)
		e.collect.event(e, EventGPU, "GPU "+g.name()+" arrives")
		e.want("GPU " + g.name() + " arrived")
	})
}

// release gives a GPU back once nothing is on it.
func (e *engine) release(g *gpu) {
	if g.leaving && g.partitions == 0 && g.removed == queue.Never {
		g.removed = e.now
		e.collect.event(e, EventGPU, "GPU "+g.name()+" is given back")
	}
}
