// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/sim/bound"
	"github.com/conch-serving/conch/sidecar/sim/discipline"
	"github.com/conch-serving/conch/sidecar/sim/reference"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// ownScheduler is what Symphony's own scheduler was measured at, by model and rule: deferred without delays. With which delays the others ran is
// not recorded; see budgets.
func ownScheduler() map[string]map[string]published {
	return map[string]map[string]published{
		"ResNet50": {
			"deferred": {low: 5317, high: 5341}, "eager": {low: 3749, high: 3749}, "target": {low: 5140, high: 5140},
		},
		"InceptionResNetV2": {
			"deferred": {low: 941, high: 954}, "eager": {low: 603, high: 603},
		},
	}
}

// systems that the paper measured, by the discipline that is their rule.
func systems() map[string]string {
	return map[string]string{"deferred": "symphony", "earliest-latest": "clockwork", "duty-cycle": "nexus", "flex": "shepherd"}
}

// prefix of the figures of a row of table 2.
func prefix(c zoo.Case) string { return "table2." + strings.ToLower(c.Profile.Model) + "." }

// alone is a case's model.
func alone(c zoo.Case) scenario.Model {
	return scenario.Model{
		Name: c.Profile.Model, Profile: &scenario.Profile{Alpha: scenario.Duration(c.Profile.Alpha), Beta: scenario.Duration(c.Profile.Beta)},
		SLO: scenario.Duration(c.Profile.SLO), Late: "drop",
	}
}

// enough seconds for a hundred thousand requests at the staggered bound.
func (b *bench) enough(c zoo.Case) float64 { return b.simulated(1e5 / c.Staggered.Goodput) }

// table2 are the rows of Symphony's table 2: every discipline under its own drop policy.
func (b *bench) table2(cases []zoo.Case) []*row {
	var rows []*row
	for _, c := range cases {
		analytic := bound.Model{Latency: func(n int) float64 { return c.Profile.Latency(n).Seconds() }, SLO: c.Profile.SLO.Seconds(), MaxBatch: 64, Share: 1}
		_, staggered := bound.Staggered(analytic, c.GPUs)
		for _, d := range discipline.Kinds() {
			known := ownScheduler()[c.Profile.Model][d.Name]
			known.paper = c.Goodput[systems()[d.Name]]
			n := prefix(c) + strings.ReplaceAll(d.Name, "-", "_") + ".goodput"
			rows = append(rows, &row{
				figure: n, unit: "req/s", note: notes()[d.Name], published: known,
				cell: &cell{name: n, guess: .8 * staggered, scenario: world(c.GPUs, b.enough(c), rule(d.Name, d.DefaultDrop, nil), alone(c))},
			})
		}
		rows = append(append(rows, b.dealt(c, analytic)...), b.clockwork(c))
	}
	return rows
}

func notes() map[string]string {
	return map[string]string{
		"timeout":         "Triton's rule drops nothing",
		"earliest-latest": "the rule alone; clockwork_ahead has its controller's planning ahead",
		"duty-cycle":      "the rule alone, on one central queue; duty_cycle_dealt has requests dealt out to GPUs",
		"flex":            "preempts at no cost but the lost work",
	}
}

// dealt is Nexus as it is: its frontends deal requests out to GPUs, each with a queue of its own, so that eight GPUs are eight times one. Dealt in
// turn, a GPU's arrivals are a Gamma process whose shape is the number of GPUs; at random, a Poisson process.
func (b *bench) dealt(c zoo.Case, analytic bound.Model) []*row {
	saturated, rate := bound.Uncoordinated(analytic, 1)
	cycle := map[string]string{"cycle": time.Duration(analytic.Latency(saturated) * 1e9).String()}
	var rows []*row
	for _, way := range []struct {
		name  string
		shape float64
	}{{"in_turn", float64(c.GPUs)}, {"at_random", 1}} {
		model := alone(c)
		model.Arrivals = &scenario.Arrivals{Shape: way.shape}
		n := prefix(c) + "duty_cycle_dealt_" + way.name + ".goodput"
		rows = append(rows, &row{
			figure: n, unit: "req/s", published: published{paper: c.Goodput["nexus"]}, note: fmt.Sprintf("%d times one GPU with a cycle of l(%d)", c.GPUs, saturated),
			cell: &cell{name: n, guess: .8 * rate, parts: float64(c.GPUs), scenario: world(1, float64(c.GPUs)*b.enough(c)/2, rule("duty-cycle", "window", cycle), model)},
		})
	}
	return rows
}

// clockwork is the controller that plans ahead.
func (b *bench) clockwork(c zoo.Case) *row {
	m := offline(c)
	const note = "plans 10 ms ahead, for 5 ms before the deadline, as Clockwork's published controller"
	return &row{figure: prefix(c) + "clockwork_ahead.goodput", unit: "req/s", note: note, published: published{paper: c.Goodput["clockwork"]}, run: func(_ context.Context, seed uint64) (float64, error) {
		return reference.Clockwork().Goodput(m, b.enough(c), seed)
	}}
}

// offline is a case as the searches of package reference take it.
func offline(c zoo.Case) reference.Model {
	const most = 64
	return reference.Model{
		Table: queue.Linear(queue.Time(c.Profile.Alpha), queue.Time(c.Profile.Beta), most), MaxBatch: most, SLO: queue.Time(c.Profile.SLO), GPUs: c.GPUs,
	}
}

// references are what searches reach that take as long as they like: one that knows all arrivals, and one that knows the rate. What plain
// prototypes of both reached before is in the notes.
func (b *bench) references(cases []zoo.Case) []*row {
	earlier := map[string]struct{ clairvoyant, horizon string }{
		"ResNet50": {"about 5750", "about 5500"}, "InceptionResNetV2": {"about 1010", "about 978"},
	}
	var rows []*row
	for _, c := range cases {
		m, known := offline(c), earlier[c.Profile.Model]
		n := strings.Replace(prefix(c), "table2", "reference", 1)
		rows = append(rows,
			&row{figure: n + "clairvoyant.goodput", unit: "req/s", note: "knows every arrival; a plain prototype " + known.clairvoyant, run: func(_ context.Context, seed uint64) (float64, error) {
				return reference.ClairvoyantGoodput(m, m.Thorough(), b.enough(c)/2, seed)
			}},
			&row{figure: n + "horizon.goodput", unit: "req/s", note: "knows the rate; a plain prototype " + known.horizon, run: func(_ context.Context, seed uint64) (float64, error) {
				return reference.HorizonGoodput(m, m.Foresight(), b.enough(c)/5, seed)
			}},
		)
	}
	return rows
}

// budgets are the rules of Symphony's scheduler with its default delays: 2 ms off every deadline for the response, and 100 us and 50 us a request
// until a batch can start. It sends plans ahead, so no GPU idles for them; what they cost is time before the deadline. Here they are taken off the
// SLO, for a batch of the median size that the paper has for Symphony.
func (b *bench) budgets(cases []zoo.Case) []*row {
	withDelays := map[string]published{"ResNet50": {low: 5113, high: 5136}, "InceptionResNetV2": {low: 936, high: 943}}
	var rows []*row
	for _, c := range cases {
		model := alone(c)
		off := 2*time.Millisecond + 100*time.Microsecond + time.Duration(c.MedianBatch["symphony"])*50*time.Microsecond
		model.SLO -= scenario.Duration(off)
		for _, d := range []string{"deferred", "eager"} {
			known := ownScheduler()[c.Profile.Model][d]
			if d == "deferred" {
				known = withDelays[c.Profile.Model]
			}
			n := strings.Replace(prefix(c), "table2", "budget", 1) + d + ".goodput"
			rows = append(rows, &row{
				figure: n, unit: "req/s", note: fmt.Sprintf("%v of the SLO kept back for Symphony's default delays", off), published: known,
				cell: &cell{name: n, guess: .6 * c.Staggered.Goodput, scenario: world(c.GPUs, b.enough(c)/2, rule(d, "window", nil), model)},
			})
		}
		if c.Profile.Model != "ResNet50" {
			continue
		}
		// What Symphony's own scheduler answered in time of 20,000 req/s. With which delays is not recorded.
		const offered, answeredThere = 20000, 5750
		rows = append(rows, &row{
			figure: strings.Replace(prefix(c), "table2", "budget", 1) + fmt.Sprintf("deferred.offered%d.goodput", offered), unit: "req/s",
			note: "past the peak, with the same kept back", published: published{low: answeredThere, high: answeredThere},
			run: offering(world(c.GPUs, b.simulated(10), rule("deferred", "window", nil), model), offered, answered),
		})
	}
	return rows
}
