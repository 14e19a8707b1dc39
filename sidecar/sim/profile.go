// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// kernel is a model on partitions of one GPU type and share: how long batches take there, and what they need of the GPU.
type kernel struct {
	gpuType string
	share   uint32
	// By rows, from 1 to the model's largest batch plus one.
	mean, upper []float64     // nanoseconds, alone on the GPU
	creq, mreq  []float64     // fractions of the GPU
	load        []policy.Load // what a batch takes of what the partitions of a GPU share
}

// kernelOf reads a profile. It fails for a profile without points, because the time of an execution is then not known.
func kernelOf(x *policy.Index, m *policy.Model, gpuType string, share uint32) (*kernel, error) {
	p := x.UsableProfile(m.GetName(), gpuType)
	if p == nil {
		return nil, fmt.Errorf("%w: model %s is placed on a %s and has no usable profile for it", ErrWorld, m.GetName(), gpuType)
	}
	rows := int(max(1, m.GetMaxBatchSize())) + 1
	k := &kernel{gpuType: gpuType, share: share}
	k.upper = forecast.Upper(p, share, rows)
	for _, list := range []*[]float64{&k.mean, &k.creq, &k.mreq} {
		*list = make([]float64, rows+1)
	}
	k.load = make([]policy.Load, rows+1)
	for b := 1; b <= rows; b++ {
		mean, ok := p.Latency(uint32(b), share)
		if !ok || !(mean >= 0) || math.IsInf(mean, 0) || k.upper == nil {
			return nil, fmt.Errorf("%w: the profile of model %s on %s gives %g us for %d rows at %d%%", ErrWorld, m.GetName(), gpuType, mean, b, share)
		}
		k.mean[b] = max(1, 1e3*mean)
		k.creq[b] = need(p, b, share, (*policy.ProfilePoint).GetCreq)
		k.mreq[b] = need(p, b, share, (*policy.ProfilePoint).GetMreq)
		k.load[b] = policy.Load{L2: need(p, b, share, (*policy.ProfilePoint).GetL2Utilization), Bandwidth: need(p, b, share, (*policy.ProfilePoint).GetBandwidthUtilization)}
	}
	return k, nil
}

// need is what a batch needs of the GPU, from the points of the nearest share, linear in rows between them, and in proportion to the share
// below the smallest one. Outside the grid of batches the nearest point counts.
func need(p *policy.Profile, rows int, share uint32, value func(*policy.ProfilePoint) *policy.Estimate) float64 {
	nearest, off := uint32(0), uint32(math.MaxUint32)
	for _, q := range p.GetPoints() {
		d := max(q.GetThreadPercentage(), share) - min(q.GetThreadPercentage(), share)
		if d < off {
			nearest, off = q.GetThreadPercentage(), d
		}
	}
	scale := 1.0
	if nearest > share {
		scale = float64(share) / float64(nearest)
	}
	var below, above *policy.ProfilePoint
	for _, q := range p.GetPoints() { // sorted by share, then by batch
		if q.GetThreadPercentage() != nearest {
			continue
		}
		if int(q.GetBatch()) <= rows {
			below = q
		}
		if int(q.GetBatch()) >= rows && above == nil {
			above = q
		}
	}
	switch {
	case below == nil:
		return scale * value(above).GetValue()
	case above == nil || above == below:
		return scale * value(below).GetValue()
	}
	w := (float64(rows) - float64(below.GetBatch())) / (float64(above.GetBatch()) - float64(below.GetBatch()))
	return scale * ((1-w)*value(below).GetValue() + w*value(above).GetValue())
}

// class is a kernel with the slowdown that the queue expects: what the queue calls a profile class.
type class struct {
	*kernel
	slowdown float64
}

// table is what the queue plans with: the upper latency under the expected slowdown, and what the queue knows of the delays.
func (c class) table(e *engine) queue.Table {
	d, t := e.w.Delays, make(queue.Table, len(c.upper))
	fixed := queue.Time(d.Control + d.Response + 2*d.Jitter)
	if e.w.Knowledge == LearnDelays {
		fixed = queue.Time(e.budget.Current())
		if d.Response > 0 {
			// Of a delay that is evenly distributed from 0 to Jitter, mean and deviation: what a live profile's upper latency has.
			fixed += queue.Time(d.Response) + queue.Time(float64(d.Jitter)*(1./2+1/math.Sqrt(12)))
		}
	}
	for b := 1; b < len(t); b++ {
		t[b] = queue.Time(math.Ceil(c.upper[b]*c.slowdown)) + fixed + queue.Time(b)*queue.Time(d.DataPerRow)
	}
	return t
}
