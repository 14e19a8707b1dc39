// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/observe/curve"
)

// Profiles returns what is known of l(b) of every model on every GPU type, by
// model and type, with the reason for those that are not usable yet.
func (r *Recorder) Profiles() []*policy.Profile {
	var all []*policy.Profile
	for _, m := range r.sorted() {
		all = append(all, m.profiles()...)
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
	why := "nothing was observed yet"
	for _, l := range m.learn() {
		if l.gpuType != gpuType {
			continue
		}
		if l.Usable {
			return ""
		}
		why = l.Why
	}
	return why
}

// learnt is what is believed of a class, and what it was learnt from.
type learnt struct {
	class
	*curve.Learnt
	maxBatch   int
	interfered bool
	from       basis
}

// basis changes when there is something new to learn from: a measurement, a second that has
// passed, a declared or estimated value.
type basis struct {
	changes, priors uint64
	second          int64
}

// learn brings every class of the model up to date, by type and share. It computes without
// the model's lock, so that the request path does not wait.
func (m *model) learn() []learnt {
	type task struct {
		of     *curve.Curve
		clone  *curve.Curve
		shapes []curve.Shape
	}
	m.mu.Lock()
	now, maxBatch := m.latest, m.maxBatch
	all, tasks := make([]learnt, 0, len(m.classes)), make([]task, 0, len(m.classes))
	for c, known := range m.classes {
		l := learnt{class: c, maxBatch: maxBatch, from: basis{known.Changes(), m.priors, now.Unix()}}
		t := task{of: known}
		if before := m.believed[c]; before.Learnt != nil && before.from == l.from {
			l = before
		} else {
			t.clone, t.shapes = known.Clone(), m.shapes(c)
		}
		all, tasks = append(all, l), append(tasks, t)
	}
	m.mu.Unlock()

	for i, t := range tasks {
		if t.clone != nil {
			l := t.clone.Learn(now, t.shapes, maxBatch)
			all[i].Learnt = &l
		}
	}

	m.mu.Lock()
	for i, t := range tasks {
		l := &all[i]
		if t.clone != nil && m.classes[l.class] == t.of {
			t.of.Follow(l.Learnt)
			m.believed[l.class] = *l
		}
		l.interfered = t.of.Interfered()
	}
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b learnt) int {
		return cmp.Or(cmp.Compare(a.gpuType, b.gpuType), cmp.Compare(a.share, b.share))
	})
	return all
}

// DeclareOn gives a model with a declared profile that profile on a GPU type, before
// anything ran there. Without a declared profile it does nothing.
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

// profiles of the model, one for each GPU type.
func (m *model) profiles() []*policy.Profile {
	types := map[string]*policy.Profile{}
	for _, l := range m.learn() {
		if l.Empty() {
			continue
		}
		p := types[l.gpuType]
		if p == nil {
			p = &policy.Profile{Model: m.name, GpuType: l.gpuType}
			types[l.gpuType] = p
		}
		p.Source = better(p.Source, l.Source)
		p.Interfered = p.Interfered || l.interfered
		// A share that is still being learnt must not spoil the others: its points
		// are left out while another share has a usable curve.
		switch {
		case l.Usable && !p.Usable:
			p.Points, p.Usable = l.Points(l.share, l.maxBatch), true
		case l.Usable == p.Usable:
			p.Points = append(p.Points, l.Points(l.share, l.maxBatch)...)
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
func better(have policy.ProfileSource, s curve.Source) policy.ProfileSource {
	rank := []policy.ProfileSource{
		policy.ProfileSource_PROFILE_SOURCE_UNSPECIFIED, policy.ProfileSource_PROFILE_SOURCE_DECLARED, policy.ProfileSource_PROFILE_SOURCE_ESTIMATED,
		policy.ProfileSource_PROFILE_SOURCE_CALIBRATED, policy.ProfileSource_PROFILE_SOURCE_OBSERVED,
	}
	return rank[max(slices.Index(rank, have), int(s))]
}

// boundStep is the change of an error bound, as a part of the latency, that is passed to the request path.
const boundStep = .1

// Moved reports whether a profile differs enough from another to be passed to the
// request path: usable or not, another grid, an upper latency that moved by more than
// the fraction, or an error bound that moved by a tenth of the latency.
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
		if math.Abs(p.GetLatencyUs().GetErrorBound()-q.GetLatencyUs().GetErrorBound()) > boundStep*p.GetLatencyUpperUs() {
			return true
		}
	}
	return false
}
