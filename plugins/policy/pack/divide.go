// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
)

// Divide says the rates that a plan counts on for models of which it says none: each model's load, over its instances in proportion to what each can
// still carry by its profile, and no more than all instances of a partition carry together. Instances without a profile get an equal
// part, and what those with one have no room for. A model whose instances are counted on for less than its load gets the reason [policy.Short]. Models that are excepted stay as they are.
//
// It is for policies that leave the division to the dispatcher: what they count on is that the load can be divided so.
func Divide(x *policy.Index, p *policy.Plan, except ...string) {
	d := &division{room: make([]float64, len(p.GetPartitions())), places: make(map[string][]place)}
	for i, part := range p.GetPartitions() {
		d.room[i] = 1
		for _, in := range part.GetInstances() {
			per, known := busyPerRow(x, p, part, in)
			if known {
				d.room[i] -= in.GetRate() * per
			}
			for _, model := range p.ModelsOf(in) {
				d.places[model] = append(d.places[model], place{in, i, per, known})
			}
		}
		d.room[i] = math.Max(0, d.room[i])
	}
	for _, m := range x.Snapshot().GetModels() {
		if load := math.Max(m.GetRowRate(), m.GetRate()); load > 0 && !slices.Contains(except, m.GetName()) {
			d.add(m.GetName(), load)
		}
	}
	for range mostPasses {
		if !d.pass() {
			break
		}
	}
	for _, j := range d.jobs {
		if j.left > .001*j.load {
			p.Reasons = append(p.Reasons, policy.Short(j.model, j.left))
		}
	}
}

// mostPasses bounds how often what did not fit is divided again over the room that is left.
const mostPasses = 16

type division struct {
	room []float64 // of each partition, as a fraction of its time
	jobs []*loadOf
	// places of each model, in the order of partitions.
	places map[string][]place
}

// loadOf is a model whose load is divided.
type loadOf struct {
	model      string
	load, left float64
	places     []place
}

// place is an instance and the fraction of its partition's time that a row per second takes, where a profile says so.
type place struct {
	in    *policy.Instance
	part  int
	per   float64
	known bool
}

func (d *division) add(model string, load float64) {
	j := &loadOf{model: model, load: load, left: load}
	known, said := true, 0.0
	for _, at := range d.places[model] {
		if at.in.GetModel() == model {
			said += at.in.GetRate()
		}
		known = known && at.known
		j.places = append(j.places, at)
	}
	switch {
	case len(j.places) == 0:
		return
	case said > 0: // the policy says what it counted on
		j.places, j.left = nil, load-said
	case !known:
		d.spread(j)
		return
	}
	d.jobs = append(d.jobs, j)
}

// spread gives every place an equal part of a load, those with a profile no more than they have room for; the places without one get the rest.
func (d *division) spread(j *loadOf) {
	each, unknown := j.load/float64(len(j.places)), 0
	for _, at := range j.places {
		if at.per == 0 {
			unknown++
			continue
		}
		part := math.Min(each, d.room[at.part]/at.per)
		at.in.Rate += part
		j.left -= part
		d.room[at.part] = math.Max(0, d.room[at.part]-part*at.per)
	}
	for _, at := range j.places {
		if at.per == 0 {
			at.in.Rate += j.left / float64(unknown)
		}
	}
}

// pass divides what is left of every load; false where nothing was.
func (d *division) pass() bool {
	type part struct {
		j     *loadOf
		at    place
		share float64
	}
	var parts []part
	busy := make([]float64, len(d.room))
	for _, j := range d.jobs {
		total := 0.0
		for _, at := range j.places {
			total += d.room[at.part] / at.per
		}
		if j.left <= 1e-9*j.load || total <= 0 {
			continue
		}
		for _, at := range j.places {
			share := math.Min(j.left, total) * d.room[at.part] / at.per / total
			parts = append(parts, part{j, at, share})
			busy[at.part] += share * at.per
		}
	}
	moved := 0.0
	room := slices.Clone(d.room)
	for _, q := range parts {
		share := q.share
		if b := busy[q.at.part]; b > room[q.at.part] {
			share *= room[q.at.part] / b
		}
		q.at.in.Rate += share
		q.j.left -= share
		d.room[q.at.part] = math.Max(0, d.room[q.at.part]-share*q.at.per)
		moved += share / q.j.load
	}
	return moved > 1e-6
}

// busyPerRow is the fraction of a partition's time that one row per second of the instance takes, in batches of which a row may just miss one and
// still makes its SLO, or row by row where no batch allows that; false where no usable profile says so.
func busyPerRow(x *policy.Index, p *policy.Plan, part *policy.Partition, in *policy.Instance) (float64, bool) {
	slo, limit := math.Inf(1), uint32(math.MaxUint32)
	for _, name := range p.ModelsOf(in) {
		m := x.Model(name)
		limit = min(limit, max(1, m.GetMaxBatchSize()))
		if m.GetSloUs() > 0 {
			slo = math.Min(slo, float64(m.GetSloUs()))
		}
	}
	if in.GetMaxBatch() > 0 {
		limit = min(limit, in.GetMaxBatch())
	}
	gpuType := x.TypeOf(part)
	profile := x.UsableProfile(in.GetModel(), gpuType)
	for _, own := range x.Derived(in.GetModel()).GetProfiles() {
		if profile == nil && own.GetGpuType() == gpuType {
			profile = own
		}
	}
	share := part.GetThreadPercentage()
	if own := in.GetThreadPercentage(); own > 0 {
		share = own
	}
	if profile == nil {
		return 0, false
	}
	job := Job{SLO: slo, Limit: limit, Latency: func(b uint32) (float64, bool) { return profile.Upper(b, share) }}
	if _, most, ok := job.Saturated(); ok && most > 0 {
		return 1 / most, true
	}
	l, ok := job.Latency(1)
	if !ok || l <= 0 {
		return 0, false
	}
	return l / 1e6, true
}
