// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

const (
	// screened and counted are how many requests a trial has that screens settings of Triton, and one that counts. Of eight models a trial that counts
	// has some 250 requests each, of which two may be bad: what is held is below what longer trials would find, on both sides alike.
	screened, counted = 800, 2000
	// liveSeeds is how many seeds of arrivals each finalist is measured with, partSeeds with how many each row that says what brings the gain, and overlapSeeds for each
	// overlap.
	liveSeeds, partSeeds, overlapSeeds = 5, 2, 1
	// learnFor is for how long whatever was started is offered a load that does not count.
	learnFor = 3 * time.Second
)

// stretch is by how much emulated times and SLOs are longer than published, so that all executions together stay below 400 a second, which
// two cores serve with real tritonservers.
const stretch = 5

// liveScenario is one load of the live comparison.
type liveScenario struct {
	name         string
	models, gpus int
	// start is where the first search begins, in req/s.
	start float64
}

// Each is a command of its own: they take more than an hour, and a machine is rarely quiet for longer.
func oneOnFour() liveScenario   { return liveScenario{name: "1on4", models: 1, gpus: 4, start: 330} }
func eightOnFour() liveScenario { return liveScenario{name: "8on4", models: 8, gpus: 4, start: 105} }

func (b *bench) oneOnFour(ctx context.Context, r *figure.Report) error {
	return b.live(ctx, r, oneOnFour())
}

func (b *bench) eightOnFour(ctx context.Context, r *figure.Report) error {
	return b.live(ctx, r, eightOnFour())
}

// live compares Conch with Triton's own scheduling: with the best of many settings of it, whether one server has all GPUs or each has a server.
func (b *bench) live(ctx context.Context, r *figure.Report, s liveScenario) error {
	resnet, err := b.emulatedLive(r)
	if err != nil {
		return err
	}
	if err := b.liveScenario(ctx, r, s, resnet); err != nil {
		return fmt.Errorf("live.%s: %w", s.name, err)
	}
	return nil
}

// emulatedLive says what is not real, and returns ResNet50's profile of Symphony's Table 2.
func (b *bench) emulatedLive(r *figure.Report) (zoo.Profile, error) {
	if b.server == "" {
		return zoo.Profile{}, errors.New("no tritonserver: run `make bench`, or say --tritonserver")
	}
	cases, err := zoo.Cases()
	if err != nil {
		return zoo.Profile{}, err
	}
	resnet := cases[0].Profile
	r.Emulated = fmt.Sprintf("GPUs: an execution of b rows of %s sleeps for %d times %v + %v*b, in the python backend of real tritonservers; SLO %d times %v. All rates are a fifth of what unstretched times would give. Executions of one GPU take turns; in the rows of overlap a part of the %v runs beside others",
		resnet.Model, stretch, resnet.Beta, resnet.Alpha, stretch, resnet.SLO, resnet.Beta)
	return resnet, nil
}

// contest is what the rows of a scenario have in common.
func (b *bench) contest(s liveScenario, p zoo.Profile) *rig.Contest {
	return &rig.Contest{
		Models: rig.Copies(p, s.models, stretch, 64), GPUs: s.gpus, GPUType: zoo.GTX1080Ti, Server: b.server, Bin: b.bin,
		Warmup: time.Second, Learn: learnFor, Seed: b.seed, Progress: func(line string) { b.say(s.name + ": " + line) },
	}
}

// requests is how many a trial has.
func (b *bench) requests(n int) int {
	if b.quick {
		return n / 4
	}
	return n
}

// standings are the rates that one row held, a seed each.
type standings struct {
	row  liveRow
	held []float64
	// seeds is how many of them it is measured with; 0: all.
	seeds int
	best  rig.Setup
	rate  float64 // from which the next search begins; 0: nothing is known
}

// is says whether --only lets a row of a scenario through.
func (b *bench) is(s liveScenario, row liveRow) bool {
	return strings.Contains("live."+s.name+"."+row.name, b.only)
}

// liveScenario screens the settings of Triton with short trials of one seed, and then measures the best with one server for all GPUs, the best with a
// server per GPU, and Conch's rows, in turns, seed by seed.
func (b *bench) liveScenario(ctx context.Context, r *figure.Report, s liveScenario, p zoo.Profile) error {
	c := b.contest(s, p)
	prefix := "live." + s.name + "."
	c.Requests = b.requests(screened)
	start := s.start
	var node, each *standings
	for _, row := range s.settings(p) {
		if !b.is(s, row) {
			continue
		}
		found, err := c.Highest(ctx, row.setups, start)
		if err != nil {
			return err
		}
		start = found.Rate
		r.Add(prefix+row.name+".screened", found.Held(), "req/s", fmt.Sprintf("one search with trials of %d requests, all models together: %v", c.Requests, found.Setup))
		of := &each
		if setup, ok := found.Setup.(rig.TritonSetup); ok && setup.Node != "" {
			of = &node
		}
		if *of == nil || found.Rate > (*of).rate {
			*of = &standings{row: row, best: found.Setup, rate: found.Rate}
		}
	}
	var order []*standings
	for _, best := range []struct {
		of   *standings
		name string
	}{{node, nodeRow}, {each, eachRow}} {
		if best.of != nil {
			best.of.row.name = best.name
			order = append(order, best.of)
		}
	}
	for _, row := range s.conchs(p) {
		if b.is(s, row) {
			order = append(order, &standings{row: row, seeds: partSeeds})
			if row.name == conchRow {
				order[len(order)-1].seeds = liveSeeds
			}
		}
	}
	if err := b.inTurns(ctx, c, order, 1.5*start, liveSeeds); err != nil {
		return err
	}
	all := map[string]*standings{}
	for _, entry := range order {
		all[entry.row.name] = entry
		if len(entry.held) == 0 {
			r.Add(prefix+entry.row.name+".screened", entry.rate, "req/s", fmt.Sprintf("one search with trials of %d requests, all models together: %v", b.requests(screened), entry.best))
			continue
		}
		r.AddRuns(prefix+entry.row.name+".goodput", entry.held, "req/s", fmt.Sprintf("at most 1%% bad for every model, trials of %d requests: %v", c.Requests, entry.best))
	}
	late, ofSLO := c.Lateness()
	r.Add(prefix+"timer_lateness_p99_ms", float64(late)/1e6, "ms", fmt.Sprintf("worst trial; %.1f%% of the SLO", 100*ofSLO))
	if b.only == "" {
		s.ratios(r, all)
	}
	return nil
}

// far is how many times less than another row one may hold to be measured seed by seed. Of those that hold less still, whose trials take longest, the search
// says enough.
const far = 3

// inTurns measures what each row holds, seed by seed, and begins with another row for each seed. A row of which nothing is known is searched first.
func (b *bench) inTurns(ctx context.Context, c *rig.Contest, order []*standings, start float64, seeds int) error {
	if b.quick {
		seeds = 1
	}
	for seed := range b.roundsOr(seeds) {
		c.Seed = b.seed + 1 + uint64(seed) //nolint:gosec // few
		for i := range order {
			entry := order[(i+seed)%len(order)]
			if entry.rate == 0 {
				c.Requests = b.requests(screened)
				setups := entry.row.setups
				if entry.best != nil {
					setups = []rig.Setup{entry.best}
				}
				found, err := c.Highest(ctx, setups, start)
				if err != nil {
					return err
				}
				entry.rate, entry.best = found.Rate, found.Setup
			}
			if entry.seeds > 0 && seed >= entry.seeds || slices.ContainsFunc(order, func(other *standings) bool { return far*entry.rate < other.rate }) {
				continue
			}
			c.Requests = b.requests(counted)
			found, err := c.Holds(ctx, entry.best, entry.rate)
			if err != nil {
				return err
			}
			entry.rate = found.Rate
			entry.held = append(entry.held, found.Held())
		}
	}
	return nil
}

// quotient is what one row held over another, seed by seed.
func quotient(above, below *standings) (all []float64) {
	for i := range min(len(above.held), len(below.held)) {
		all = append(all, above.held[i]/below.held[i])
	}
	return all
}

// better is the one of two rows that held more.
func better(rows ...*standings) *standings {
	return slices.MaxFunc(rows, func(a, b *standings) int { return cmp.Compare(stat.Mean(a.held, nil), stat.Mean(b.held, nil)) })
}

// ratios adds what the rates say of each other.
func (s liveScenario) ratios(r *figure.Report, all map[string]*standings) {
	name, conch := "live."+s.name+".", all[conchRow]
	triton := better(all[nodeRow], all[eachRow])
	add := func(figure string, above, below *standings, note string) {
		r.AddRuns(name+figure, quotient(above, below), "ratio", fmt.Sprintf("%s: %v over %v", note, above.best, below.best))
	}
	add("goodput_ratio", conch, triton, "highest rate with at most 1% bad for every model, Conch's defaults over the best of all of Triton's settings")
	add("to_node", conch, all[nodeRow], "Conch's defaults over the best of one server for all GPUs")
	add("to_each", conch, all[eachRow], "Conch's defaults over the best of a server per GPU")
	pooled, dropping := better(all["conch.timeout"], all["conch.eager_none"]), better(all["conch.eager"], all["conch.eager_thrift"])
	add("pooling_part", pooled, triton, "what a queue per model over all GPUs brings: neither deadlines nor drops")
	add("drop_part", dropping, pooled, "what dropping by deadline, and the nearest deadline first, bring on top")
	add("deferral_part", conch, dropping, "what starting late brings on top")
	add("attached_to_node", all["conch.attached_at_once"], all[nodeRow], "Conch attached to one server for all GPUs, over that server's own best")
}

// overlapTritons are the rows of Triton where executions overlap: dynamic batching with the delays of settings, with a server per GPU and with one for all.
func overlapTritons(p zoo.Profile) []liveRow {
	delayed := func(t rig.TritonSetup, parts ...float64) (all []rig.Setup) {
		for _, part := range parts {
			t.MaxQueueDelay = sloOf(p)(part)
			all = append(all, t)
		}
		return all
	}
	return []liveRow{{eachRow, delayed(rig.TritonSetup{}, 0, .1, .3)}, {nodeRow, delayed(rig.TritonSetup{Node: rig.NodeFree}, .1, .3, 0)}}
}

// overlaps measures eight models on four GPUs where a part of an execution's fixed cost runs beside other executions, as it may on a real GPU.
func (b *bench) overlaps(ctx context.Context, r *figure.Report) error {
	p, err := b.emulatedLive(r)
	if err != nil {
		return err
	}
	s := eightOnFour()
	for _, percent := range []int{0, 40, 80} {
		if !strings.Contains(fmt.Sprintf("live.overlap.o%d", percent), b.only) {
			continue
		}
		c := b.contest(s, p)
		c.Models = c.Models.Overlapping(float64(percent) / 100)
		var order []*standings
		for _, row := range append(overlapTritons(p), liveRow{conchRow, []rig.Setup{rig.ConchSetup{}}}) {
			order = append(order, &standings{row: row})
		}
		if percent > 0 { // where executions take turns, two at once are late at any load (docs/operations.md)
			order = append(order, &standings{row: liveRow{conchRow, []rig.Setup{rig.ConchSetup{Executions: 2}}}})
		}
		if err := b.inTurns(ctx, c, order, s.start, overlapSeeds); err != nil {
			return fmt.Errorf("live.overlap: %w", err)
		}
		name, conch := fmt.Sprintf("live.overlap.o%d.", percent), order[2]
		triton := better(order[0], order[1])
		note := fmt.Sprintf("8on4 with %d%% of the fixed cost beside other executions: ", percent)
		r.AddRuns(name+"triton.goodput", triton.held, "req/s", note+triton.best.String())
		r.AddRuns(name+"conch.goodput", conch.held, "req/s", note+conch.best.String())
		r.AddRuns(name+"goodput_ratio", quotient(conch, triton), "ratio", note+"Conch's defaults over the better of Triton's settings")
		if percent > 0 {
			r.AddRuns(name+"two.goodput", order[3].held, "req/s", note+order[3].best.String())
			r.AddRuns(name+"two_ratio", quotient(order[3], triton), "ratio", note+"Conch with two executions at once over the better of Triton's settings")
		}
	}
	return nil
}
