// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/sim/bound"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// set is some models that share GPUs.
type set struct {
	name     string
	profiles []zoo.Profile
}

// sets of the comparison: copies of table 2's ResNet50, and of the zoo all, the third with the largest beta/alpha and the third with the smallest.
func sets() ([]set, error) {
	cases, err := zoo.Cases()
	if err != nil {
		return nil, err
	}
	var all []set
	for _, n := range []int{1, 2, 8, 20} {
		equal := set{name: fmt.Sprintf("equal%d", n)}
		for range n {
			equal.profiles = append(equal.profiles, cases[0].Profile)
		}
		all = append(all, equal)
	}
	a100, err := zoo.Profiles(zoo.A100)
	if err != nil {
		return nil, err
	}
	gtx, err := zoo.Profiles(zoo.GTX1080Ti)
	if err != nil {
		return nil, err
	}
	third := len(a100) / 3
	return append(all, set{"a100", a100}, set{"gtx1080ti", gtx}, set{"strong", a100[:third]}, set{"weak", a100[len(a100)-third:]}), nil
}

// column is one load of the matrix; its goodput under each discipline is a line of what is printed.
type column struct {
	set     set
	gpus    int
	shape   float64 // of the Gamma distribution of gaps; 1 is Poisson
	zipf    float64 // exponent of popularity; 0: all alike
	looser  float64 // by how much the SLOs are longer than published
	bound   float64
	seconds float64
}

func (c column) name() string {
	arrivals, popularity, slo := "poisson", "equal", "tight"
	if c.shape != 1 {
		arrivals = "gamma" + strings.TrimPrefix(fmt.Sprintf("%.2f", c.shape), "0.")
	}
	if c.zipf > 0 {
		popularity = "zipf"
	}
	if c.looser > 1 {
		slo = "loose"
	}
	return fmt.Sprintf("%s.%s.%s.%s.gpus%d", c.set.name, arrivals, popularity, slo, c.gpus)
}

// says reports whether a load is measured. Left out are popularity where there is one model; loose SLOs but with Poisson arrivals of equal
// models, and Gamma(.3) but between equal ones, which lie between neighbours that are measured; and loads of which the bound says that not even
// one request per second and model can be held.
func (c column) says() bool {
	switch {
	case c.zipf > 0 && len(c.set.profiles) == 1, c.looser > 1 && (c.shape != 1 || c.zipf > 0), c.shape == .3 && c.zipf > 0:
		return false
	}
	return c.bound >= float64(len(c.set.profiles))
}

// requestsPerRun is how many requests a run simulates at the bound: large rates get short times. It is what makes the whole matrix take less
// than 40 minutes on two cores.
const requestsPerRun = 12000

func (b *bench) columns() ([]column, error) {
	all, err := sets()
	if err != nil {
		return nil, err
	}
	var columns []column
	for _, s := range all {
		for _, gpus := range []int{2, 4, 8, 16, 64} {
			for _, looser := range []float64{1, 2} {
				for _, shape := range []float64{1, .3, .05} {
					for _, zipf := range []float64{0, .9} {
						c := column{set: s, gpus: gpus, shape: shape, zipf: zipf, looser: looser}
						c.bound = bound.Gather(c.bounds(), gpus)
						c.seconds = max(2, b.simulated(requestsPerRun)/c.bound)
						if c.says() && strings.Contains("compare."+c.name(), b.only) {
							columns = append(columns, c)
						}
					}
				}
			}
		}
	}
	if len(columns) == 0 {
		return nil, errors.New("compare: no load has " + b.only + " in its name")
	}
	return columns, nil
}

func (c column) bounds() (all []bound.Model) {
	shares := workload.Zipf(len(c.set.profiles), c.zipf, 1)
	for i, p := range c.set.profiles {
		all = append(all, bound.Model{Latency: func(n int) float64 { return p.Latency(n).Seconds() }, SLO: p.SLO.Seconds() * c.looser, MaxBatch: 64, Share: shares[i]})
	}
	return all
}

func (c column) scenario(rule scenario.Dispatch) *scenario.Scenario {
	var models []scenario.Model
	for i, p := range c.set.profiles {
		models = append(models, scenario.Model{
			Name: fmt.Sprintf("m%d", i), Profile: &scenario.Profile{Alpha: scenario.Duration(p.Alpha), Beta: scenario.Duration(p.Beta)},
			SLO: scenario.Duration(float64(p.SLO) * c.looser), Late: "drop", Arrivals: &scenario.Arrivals{Shape: c.shape},
		})
	}
	s := world(c.gpus, c.seconds, rule, models...)
	if c.zipf > 0 {
		s.Zipf = &c.zipf
	}
	return s
}

// matrix searches for the goodput of every discipline, under its own drop policy, under every load of the matrix.
func (b *bench) matrix(ctx context.Context, r *figure.Report) error {
	columns, err := b.columns()
	if err != nil {
		return err
	}
	disciplines := queue.Names()
	var cells []*cell
	for _, c := range columns {
		for _, d := range disciplines {
			cells = append(cells, &cell{
				name: "compare." + c.name() + "." + strings.ReplaceAll(d, "-", "_") + ".goodput", scenario: c.scenario(rule(d, "", nil)), guess: .7 * c.bound, overall: true,
			})
		}
	}
	began := time.Now()
	if err := b.search(ctx, cells, b.roundsOr(3)); err != nil {
		return err
	}
	b.say(fmt.Sprintf("%d searches in %.0f s", len(cells), time.Since(began).Seconds()))
	w := tabwriter.NewWriter(b.out, 0, 4, 2, ' ', 0)
	fmt.Fprintf(w, "load\tbound\t%s\n", strings.Join(disciplines, "\t"))
	for i, c := range columns {
		line := cells[i*len(disciplines) : (i+1)*len(disciplines)]
		best := 0.0
		for _, one := range line {
			best = max(best, one.found.Rate)
		}
		fmt.Fprintf(w, "%s\t%s", c.name(), figure.Number(c.bound))
		for _, one := range line {
			fmt.Fprintf(w, "\t%s %s", shade(one.found.Rate, best), figure.Number(one.found.Rate))
			r.AddRuns(one.name, rates(one.found), "req/s", "gather bound "+figure.Number(c.bound))
		}
		fmt.Fprintln(w)
	}
	r.Emulated = "everything: simulated time, no delays, every model on every GPU; at most 1% bad of all requests together"
	r.Matrix = true
	return errors.Join(w.Flush())
}

// shade is how near to the best of its line a goodput is.
func shade(v, best float64) string {
	switch {
	case best == 0 || v < .5*best:
		return "    "
	case v < .8*best:
		return "░░░░"
	case v < .95*best:
		return "▒▒▒▒"
	case v < .99*best:
		return "▓▓▓▓"
	}
	return "████"
}
