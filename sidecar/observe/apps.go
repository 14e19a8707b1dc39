// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
)

// Wish is what a request for an app asks for beside its name; zero fields ask for
// nothing.
type Wish struct {
	Accuracy float64
	Latency  time.Duration
}

// mostWishes bounds the wishes of one app that are counted separately: clients may
// write any number of them.
const mostWishes = 16

// app counts the requests for one app.
type app struct {
	mu     sync.Mutex
	all    arrivals
	wishes map[Wish]*arrivals
}

// Asked takes one request for an app, and the model that it was given; empty where
// none runs. Beyond 16 different wishes within a window, others count for the app
// and not as wishes.
func (r *Recorder) Asked(name, model string, w Wish, rows int, at time.Time) {
	at = r.steady(at)
	if model != "" {
		r.Routed(model, rows, at)
	}
	a := r.app(name)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all.add(at, rows)
	wishArrivals := a.wishes[w]
	if wishArrivals == nil {
		if len(a.wishes) >= mostWishes {
			for old, seen := range a.wishes {
				if at.Sub(seen.last) > Window {
					delete(a.wishes, old)
				}
			}
		}
		if len(a.wishes) >= mostWishes {
			return
		}
		wishArrivals = &arrivals{}
		a.wishes[w] = wishArrivals
	}
	wishArrivals.add(at, rows)
}

// Routed counts one request for an app that was given a model. Asked has counted
// the request before.
func (r *Recorder) Routed(model string, rows int, at time.Time) {
	m := r.model(model)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.routed.at(r.steady(at)).rows += uint32(max(0, rows))
}

func (r *Recorder) app(name string) *app {
	if a, ok := r.apps.Load(name); ok {
		return a.(*app)
	}
	a, _ := r.apps.LoadOrStore(name, &app{wishes: map[Wish]*arrivals{}})
	return a.(*app)
}

// App is the load of an app over the Window that ends at now: rows per second, and
// its wishes with theirs, the strictest first.
func (r *Recorder) App(name string, now time.Time) (rate float64, wishes []*policy.Wish) {
	found, ok := r.apps.Load(name)
	if !ok {
		return 0, nil
	}
	now = r.steady(now)
	a := found.(*app)
	a.mu.Lock()
	defer a.mu.Unlock()
	for w, seen := range a.wishes {
		if rows := seen.rates(now).Rows; rows > 0 {
			wishes = append(wishes, &policy.Wish{MinimumAccuracy: w.Accuracy, SloUs: w.Latency.Microseconds(), Rate: rows})
		}
	}
	slices.SortFunc(wishes, func(a, b *policy.Wish) int {
		return cmp.Or(cmp.Compare(b.GetMinimumAccuracy(), a.GetMinimumAccuracy()), cmp.Compare(a.GetSloUs(), b.GetSloUs()))
	})
	return a.all.rates(now).Rows, wishes
}

// routedRate is the rows per second that came to a model by the names of apps.
func (r *Recorder) routedRate(name string, now time.Time) float64 {
	m := (*r.models.Load())[name]
	if m == nil {
		return 0
	}
	now = r.steady(now)
	m.mu.Lock()
	defer m.mu.Unlock()
	var rows uint32
	covered := m.routed.each(now, Window, func(c *arrivalCounts) { rows += c.rows })
	// The window is as long as that of the model's own rate, which began no later.
	return min(float64(rows)/covered, m.arrivals.rates(now).Rows)
}
