// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package evaluate

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// directed gives every arrival to what serves its name: a model's to itself or to the derived model that it is a member of, an app's to a
// variant, by the request path's own chooser. Which wish a request for an app has is drawn from the snapshot's.
type directed struct {
	arrivals []workload.Arrival
	by       []director
	// unrouted counts the requests that nothing in the plan may serve and something could.
	unrouted uint64
	random   *rand.Rand
	next     int
}

// director is what becomes of the requests for one name.
type director struct {
	// known: it could be simulated, under some plan.
	known bool
	// model serves all of them, by its index; below 0: see app.
	model int32
	app   *appDirector
}

// appDirector has the variants of an app under a plan.
type appDirector struct {
	name     string
	chooser  *names.Chooser
	variants []int32 // indices of models, by variant
	wishes   []names.Wish
	shares   []float64 // of the wishes, added up; the rest says nothing
	wish     names.Wish
}

// direct makes the directors of the traffic's names. Index has the models that are simulated.
func (e *Evaluator) direct(p *policy.Plan, t *Traffic, index map[string]int32) *directed {
	d := &directed{arrivals: t.Arrivals, by: make([]director, len(t.Names)), random: workload.Seed(e.snapshot.GetSeed(), "wishes", "")}
	for i, name := range t.Names {
		d.by[i].model = -1
		if model, ok := index[name]; ok {
			d.by[i] = director{known: true, model: model}
			continue
		}
		for _, a := range e.snapshot.GetApps() {
			if a.GetName() == name {
				d.by[i].known = slices.ContainsFunc(a.GetVariants(), func(v *policy.Variant) bool { return e.known[v.GetModel()] })
				d.by[i].app = e.appDirector(a, p, index)
			}
		}
	}
	return d
}

func (e *Evaluator) appDirector(a *policy.App, p *policy.Plan, index map[string]int32) *appDirector {
	app := &names.App{}
	out := &appDirector{name: a.GetName(), wish: names.Wish{Accuracy: a.GetMinimumAccuracy(), Latency: time.Duration(a.GetSloUs()) * time.Microsecond}}
	for _, r := range p.GetAppRoutes() {
		if r.GetApp() != a.GetName() {
			continue
		}
		for _, v := range r.GetVariants() {
			model, ok := index[v.GetModel()]
			if !ok {
				continue
			}
			app.Variants = append(app.Variants, names.Variant{
				Model: v.GetModel(), Accuracy: v.GetAccuracy(), Latency: time.Duration(v.GetLatencyUs()) * time.Microsecond, Weight: v.GetWeight(), State: names.Active,
			})
			out.variants = append(out.variants, model)
		}
	}
	out.chooser = names.NewChooser(app)
	sum := 0.0
	for _, w := range a.GetWishes() {
		if a.GetRate() > 0 {
			sum += w.GetRate() / a.GetRate()
			out.wishes = append(out.wishes, names.Wish{Accuracy: w.GetMinimumAccuracy(), Latency: time.Duration(w.GetSloUs()) * time.Microsecond})
			out.shares = append(out.shares, sum)
		}
	}
	return out
}

// Next implements workload.Stream. Requests of names that nothing simulates are left out.
func (d *directed) Next(a *workload.Arrival) bool {
	for d.next < len(d.arrivals) {
		*a = d.arrivals[d.next]
		d.next++
		if int(a.Model) >= len(d.by) || !d.by[a.Model].known {
			continue
		}
		by := &d.by[a.Model]
		if by.app == nil {
			a.Model = by.model
			return true
		}
		if d.choose(by.app, a) {
			return true
		}
		d.unrouted++
	}
	return false
}

// choose gives an app's request to a variant; false where no variant of the plan meets its wish.
func (d *directed) choose(app *appDirector, a *workload.Arrival) bool {
	wish := app.wish
	if len(app.shares) > 0 {
		if i, _ := slices.BinarySearch(app.shares, d.random.Float64()); i < len(app.wishes) {
			wish = app.wishes[i]
		}
	}
	i, err := app.chooser.Choose(app.name, wish, int(max(1, a.Rows)), a.At)
	if err != nil {
		return false
	}
	a.Model = app.variants[i]
	if wish.Latency > 0 && (a.Deadline == 0 || wish.Latency < a.Deadline) {
		a.Deadline = wish.Latency
	}
	return true
}
