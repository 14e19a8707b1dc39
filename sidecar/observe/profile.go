// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/conch-serving/conch/plugins/policy"
)

// Profiles returns what is known of l(b) of every model on every GPU type, by
// model and type, with the reason for those that are not usable yet.
func (r *Recorder) Profiles() []*policy.Profile {
	var all []*policy.Profile
	for _, m := range r.sorted() {
		m.mu.Lock()
		all = append(all, m.profiles()...)
		m.mu.Unlock()
	}
	return all
}

// Unusable says why a profile cannot be used yet; empty if it can, or if the
// model is not known.
func (r *Recorder) Unusable(name, gpuType string) string {
	m := (*r.models.Load())[name]
	if m == nil {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	why := "nothing was observed yet"
	for c, curve := range m.classes {
		if c.gpuType != gpuType {
			continue
		}
		l := curve.learn(m.declared, m.maxBatch)
		if l.usable {
			return ""
		}
		why = l.why
	}
	return why
}

// DeclareOn makes sure that a model with a declared profile has one on a GPU
// type before anything ran there.
func (r *Recorder) DeclareOn(name, gpuType string) {
	m := r.model(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.declared != nil {
		m.curve(class{gpuType, wholeGPU})
	}
}

// wholeGPU is the share that declared profiles hold for.
const wholeGPU = 100

func (r *Recorder) sorted() []*model {
	models := *r.models.Load()
	list := make([]*model, 0, len(models))
	for _, m := range models {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *model) int { return cmp.Compare(a.name, b.name) })
	return list
}

// profiles of the model; its lock is held.
func (m *model) profiles() []*policy.Profile {
	types := map[string]*policy.Profile{}
	classes := make([]class, 0, len(m.classes))
	for c := range m.classes {
		classes = append(classes, c)
	}
	slices.SortFunc(classes, func(a, b class) int {
		return cmp.Or(cmp.Compare(a.gpuType, b.gpuType), cmp.Compare(a.share, b.share))
	})
	for _, c := range classes {
		curve := m.classes[c]
		line := m.declared
		if c.share != wholeGPU {
			line = nil
		}
		l := curve.learn(line, m.maxBatch)
		if len(l.points) == 0 {
			continue
		}
		if l.usable && curve.baseline == nil {
			curve.baseline = l.points
		}
		p := types[c.gpuType]
		if p == nil {
			p = &policy.Profile{Model: m.name, GpuType: c.gpuType}
			types[c.gpuType] = p
		}
		p.Source = better(p.Source, l.source)
		p.Interfered = p.Interfered || curve.interfered
		// A share that is still being learnt must not spoil the others: its points
		// are left out while another share has a usable curve.
		switch {
		case l.usable && !p.Usable:
			p.Points, p.Usable = l.grid(c.share, m.maxBatch), true
		case l.usable == p.Usable:
			p.Points = append(p.Points, l.grid(c.share, m.maxBatch)...)
		}
	}
	list := make([]*policy.Profile, 0, len(types))
	for _, p := range types {
		list = append(list, p)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].GpuType < list[j].GpuType })
	return list
}

// better is the source that says more.
func better(have policy.ProfileSource, s source) policy.ProfileSource {
	rank := []policy.ProfileSource{
		policy.ProfileSource_PROFILE_SOURCE_UNSPECIFIED, policy.ProfileSource_PROFILE_SOURCE_DECLARED,
		policy.ProfileSource_PROFILE_SOURCE_CALIBRATED, policy.ProfileSource_PROFILE_SOURCE_OBSERVED,
	}
	return rank[max(slices.Index(rank, have), int(s))]
}

// Batches lists the batch sizes of the grid: all up to 16, then steps of an
// eighth of an octave, and the largest itself.
func Batches(maxBatch int) []int {
	var all []int
	for b := 1; b < maxBatch; b += max(1, 1<<max(0, int(math.Log2(float64(b)))-2)/2) {
		all = append(all, b)
	}
	return append(all, max(1, maxBatch))
}

// grid is the curve as points of the contract. The upper latency is mean plus
// one standard deviation, as in Symphony's own scheduler, and never falls as
// batches grow.
func (l *learnt) grid(share uint32, maxBatch int) []*policy.ProfilePoint {
	batches := Batches(maxBatch)
	points := make([]*policy.ProfilePoint, 0, len(batches))
	upper := 0.0
	for _, b := range batches {
		mean, deviation := l.latency(b)
		upper = max(upper, mean+deviation)
		var count uint64
		bound := 1.96 * deviation
		if i, found := slices.BinarySearchFunc(l.points, b, func(q point, rows int) int { return q.rows - rows }); found {
			count = l.points[i].count
			bound /= math.Sqrt(max(1, l.points[i].weight))
		}
		points = append(points, &policy.ProfilePoint{
			Batch: uint32(b), ThreadPercentage: share, Observations: count,
			LatencyUs:      &policy.Estimate{Value: mean, ErrorBound: bound},
			LatencyUpperUs: upper,
		})
	}
	return points
}

// Moved reports whether a profile differs enough from another for the request
// path to be told: usable or not, another grid, or an upper latency that moved
// by more than the fraction.
func Moved(from, to *policy.Profile, fraction float64) bool {
	if from == nil || from.GetUsable() != to.GetUsable() || from.GetInterfered() != to.GetInterfered() || len(from.GetPoints()) != len(to.GetPoints()) {
		return true
	}
	for i, p := range from.GetPoints() {
		q := to.GetPoints()[i]
		if p.GetBatch() != q.GetBatch() || p.GetThreadPercentage() != q.GetThreadPercentage() {
			return true
		}
		if math.Abs(p.GetLatencyUpperUs()-q.GetLatencyUpperUs()) > fraction*p.GetLatencyUpperUs() {
			return true
		}
	}
	return false
}
