// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// namesOf are the names of a route table that are no models: the apps of the
// plan. One that has the name of a model is that model's.
func namesOf(d *Desired, t *router.Table, places map[string][]decide.Place) map[string]*names.Name {
	all := map[string]*names.Name{}
	index := policy.NewIndex(d.Snapshot)
	for _, a := range d.Snapshot.GetApps() {
		if _, absent := t.Absent[a.GetName()]; absent || t.Models[a.GetName()] != nil {
			continue
		}
		n := &names.Name{Name: a.GetName(), Versions: []string{"1"}, App: appOf(a, d, index, t, places)}
		for _, v := range a.GetVariants() {
			if m := t.Models[v.GetModel()]; m != nil {
				n.Config = m.Config
				break
			}
		}
		all[n.Name] = n
	}
	return all
}

// appOf is an app: the variants of its route in their order, then the others.
func appOf(a *policy.App, d *Desired, index *policy.Index, t *router.Table, places map[string][]decide.Place) *names.App {
	app := &names.App{Wish: names.Wish{Accuracy: a.GetMinimumAccuracy(), Latency: microseconds(a.GetSloUs())}}
	add := func(model string, accuracy float64, latency time.Duration, weight float64) {
		m := t.Models[model]
		if m == nil || slices.ContainsFunc(app.Variants, func(v names.Variant) bool { return v.Model == model }) {
			return // it would not load, or is there
		}
		v := names.Variant{Model: model, Accuracy: accuracy, Latency: latency, Weight: weight}
		for _, p := range places[model] {
			switch {
			case !p.Waiting:
				v.State = names.Active
			case v.State == names.Inactive:
				v.State = names.Starting
			}
		}
		load := index.Model(model).GetLoadSeconds()
		if load <= 0 {
			load = d.Snapshot.GetChangeCost().GetDefaultLoadSeconds()
		}
		v.Wait = time.Duration(load*float64(time.Second)) + latency
		app.Variants = append(app.Variants, v)
	}
	for _, r := range d.Plan.GetAppRoutes() {
		if r.GetApp() != a.GetName() {
			continue
		}
		for _, w := range r.GetVariants() {
			add(w.GetModel(), w.GetAccuracy(), microseconds(w.GetLatencyUs()), w.GetWeight())
		}
	}
	for _, v := range a.GetVariants() {
		add(v.GetModel(), v.GetAccuracy(), microseconds(index.Model(v.GetModel()).GetSloUs()), 0)
	}
	return app
}

func microseconds(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// instead are the models that the plan gives no place any more although clients
// may ask for what they serve, with those that serve it from now on: the variants
// of an app. An old one stays until one of the new ones is ready.
func instead(d *Desired) map[string][]string {
	all := map[string][]string{}
	for _, a := range d.Snapshot.GetApps() {
		var placed, gone []string
		for _, v := range a.GetVariants() {
			if len(d.Plan.PartitionsOf(v.GetModel())) > 0 {
				placed = append(placed, v.GetModel())
			} else {
				gone = append(gone, v.GetModel())
			}
		}
		if len(placed) == 0 {
			continue
		}
		for _, model := range gone {
			all[model] = append(all[model], placed...)
		}
	}
	return all
}
