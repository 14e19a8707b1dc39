// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

const (
	// mixSeed drew the ten loads, once, from /dev/urandom.
	mixSeed = 946436129
	// mixModels and mixGPUs are what each has.
	mixModels, mixGPUs = 8, 4
	// mixElements is a row: 600 KB.
	mixElements = 150_000
	// mixRate is about what the GPUs of a load can do in batches of eight, in req/s: times are stretched for that, so that two cores carry the bytes.
	mixRate = 120
	// mixSLO is by how much SLOs are longer than published, which are for GPUs that no other model uses: where eight share them, single rows of one wait for
	// batches of others, and by the published ones Triton holds a few requests a second.
	mixSLO = 3
	// mixRequests is how many a trial has, mixLength the longest that one is.
	mixRequests, mixLength = 1000, 25 * time.Second
	// mixLearn is for how long a system learns from the load's own arrivals: its rare models come once in some seconds.
	mixLearn = 15 * time.Second
	// adviceRate is what clients send while advice is asked for.
	adviceRate = mixRate / 4
	// adviceLook is how long advise looks at the traffic: so long that all models but the one that is asked for least have the 200 requests that advise wants of
	// them. adviceWithin is how long batches may be timed meanwhile, for adviceShare of the server's time.
	adviceLook, adviceWithin, adviceShare = 2 * time.Minute, 100 * time.Second, .2
	// adviceLimit is how long an answer may take; one that takes longer is none.
	adviceLimit = adviceLook + 30*time.Second
)

// mixSet is some of the ten loads.
type mixSet struct {
	suffix, is string
	from, to   int // the first, and the one behind the last
}

// mixSets are the loads that were looked at while advise and the measurement were mended, and those that nobody had seen then.
var (
	mixSeen   = mixSet{"", "four of ten loads of eight models of the zoo each", 0, 4}
	mixUnseen = mixSet{"-unseen", "the six of the ten loads that no rule has seen", 4, 10}
	mixSets   = []mixSet{mixSeen, mixUnseen}
)

const goodputOf = "Goodput of real tritonservers with four emulated GPUs, of Conch attached to one and of Conch with its own, on "

func (b *bench) adviseSeen(ctx context.Context, r *figure.Report) error {
	return b.advise(ctx, mixSeen, r)
}
func (b *bench) adviseUnseen(ctx context.Context, r *figure.Report) error {
	return b.advise(ctx, mixUnseen, r)
}
func (b *bench) mixSeen(ctx context.Context, r *figure.Report) error { return b.mixes(ctx, mixSeen, r) }
func (b *bench) mixUnseen(ctx context.Context, r *figure.Report) error {
	return b.mixes(ctx, mixUnseen, r)
}

// name is that of a command and its results file.
func (s mixSet) name(command string) string { return command + s.suffix }

// figures is what the names of the set's own figures begin with.
func (s mixSet) figures() string { return strings.ReplaceAll(s.name("mix"), "-", ".") + "." }

// mix is a load as users have it: different models of the zoo, some asked for much and some little, in bursts.
type mix struct {
	name    string
	models  rig.Models
	names   []string
	weights []float64
	shapes  []float64 // of the gaps' Gamma distribution, by model; 1 is Poisson
	stretch float64
}

// drawMix draws one of the loads.
func drawMix(number int) (mix, error) {
	profiles, err := zoo.Profiles(zoo.GTX1080Ti)
	if err != nil {
		return mix{}, err
	}
	random := workload.Seed(mixSeed, "mix", fmt.Sprint(number))
	m := mix{name: fmt.Sprintf("mix%d", number)}
	var list []zoo.Model
	busy, sum := 0.0, 0.0 // GPU seconds of a request, by weight
	for rank, i := range random.Perm(len(profiles))[:mixModels] {
		p := profiles[i]
		weight := math.Pow(float64(rank+1), -.9)
		m.names, m.weights = append(m.names, p.Model), append(m.weights, weight)
		m.shapes = append(m.shapes, []float64{1, 1, .3, .1}[random.IntN(4)])
		busy, sum = busy+weight*p.Latency(8).Seconds()/8, sum+weight
		list = append(list, zoo.Model{Name: p.Model, Profile: p, MaxBatchSize: 32, Dims: []int64{mixElements}})
	}
	m.stretch = max(stretch, mixGPUs*sum/busy/mixRate)
	for i := range list {
		list[i].Profile = list[i].Profile.Stretched(m.stretch)
		list[i].Profile.SLO *= mixSLO
	}
	m.models = rig.Emulated(list...)
	return m, nil
}

// arrivals of the load at a rate.
func (m mix) arrivals(rate float64, seed uint64, length time.Duration) ([]loadgen.Arrival, error) {
	var streams []workload.Stream
	sum := 0.0
	for _, w := range m.weights {
		sum += w
	}
	for i, w := range m.weights {
		s, err := workload.Renewal{Model: int32(i), Curve: workload.Constant(rate * w / sum), Shape: m.shapes[i], Random: workload.Seed(seed, "arrivals", m.names[i])}.Stream() //nolint:gosec // few
		if err != nil {
			return nil, err
		}
		streams = append(streams, s)
	}
	var all []loadgen.Arrival
	for _, s := range streams {
		for a := (workload.Arrival{}); s.Next(&a) && a.At < length; {
			all = append(all, loadgen.Arrival{At: a.At, Model: int(a.Model)})
		}
	}
	slices.SortStableFunc(all, func(a, b loadgen.Arrival) int { return int(a.At - b.At) })
	return all, nil
}

// contest is what measures the load.
func (b *bench) mixContest(m mix) *rig.Contest {
	return &rig.Contest{
		Models: m.models, GPUs: mixGPUs, GPUType: zoo.GTX1080Ti, Server: b.server, Bin: b.bin, Warmup: time.Second, Learn: mixLearn,
		Requests: b.requests(mixRequests), Measure: mixLength, Every: true, Twice: true, Arrivals: m.arrivals, Seed: b.seed, Step: 2, Resolution: .1, Progress: func(line string) { b.say(m.name + ": " + line) },
	}
}

// eachMix does something for each load that --only lets through, and keeps what the report has by then: a run that is stopped has lost nothing but the load that
// it was at. A load that fails is begun once more, since what it adds to the report it adds at its end.
func (b *bench) eachMix(ctx context.Context, set mixSet, r *figure.Report, do func(mix) error) error {
	for number := set.from; number < set.to && (number == set.from || !b.quick); number++ {
		m, err := drawMix(number)
		if err != nil {
			return err
		}
		if !strings.Contains("mix."+m.name, b.only) {
			continue
		}
		err = do(m)
		if err != nil && ctx.Err() == nil {
			b.say(fmt.Sprintf("%s: %v; it is begun once more", m.name, err))
			err = do(m)
		}
		if err == nil {
			err = b.keep(r)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}

// before does something with the server of a load: one for all GPUs, with dynamic batching as Triton's documentation begins with. That a server of Triton's hangs
// at its end, as some do now and then, takes nothing from what it has answered.
func (b *bench) before(ctx context.Context, m mix, do func(*rig.Tritons) error) error {
	if b.server == "" {
		return errors.New("no tritonserver: run `make bench BENCH=live`, or say --tritonserver")
	}
	server, err := rig.StartTritons(ctx, rig.TritonOptions{Server: b.server, Models: m.models, GPUs: mixGPUs, Node: rig.NodeBound, Dynamic: &zoo.DynamicBatching{}})
	if err != nil {
		return err
	}
	err = do(server)
	if closing := server.Close(); closing != nil {
		if err != nil {
			return errors.Join(err, closing)
		}
		b.say(fmt.Sprintf("%s: %v; what it has answered counts", m.name, closing))
	}
	return err
}

// emulatedMix says what is not real.
const emulatedMix = "GPUs: an execution sleeps for the published times of models of the 1080 Ti, stretched so that four GPUs do some 120 requests a second, SLOs three times as much, in the python backend of one real tritonserver for all four"

// mixSides are the ways to have Conch: in front of the server, as it is, and with a server of its own for each GPU. The name is in figures.
var mixSides = []struct{ name, is string }{{"attached", "Conch in front of the server"}, {"own", "Conch with a server for each GPU"}}

// asked is what advise said of a set of loads, before they are measured; an error says of which that are to be measured it was not asked.
func (b *bench) asked(set mixSet, r *figure.Report) (byName, error) {
	said := byName{}
	reports, err := figure.Read(b.results)
	if err != nil {
		return nil, err
	}
	for _, report := range reports {
		if report.File == set.name("advise") {
			said = byNameOf([]*figure.Report{report})
			r.Versions["advice"] = report.When.UTC().Format(time.RFC3339)
		}
	}
	for number := set.from; number < set.to && !b.quick; number++ {
		name := fmt.Sprintf("mix%d", number)
		if _, asked := said["advise."+name+".answered"]; !asked && strings.Contains("mix."+name, b.only) {
			return nil, fmt.Errorf("%s has nothing about %s: ask first, with conch-bench %s, and measure then; `make bench BENCH=live` does both", filepath.Join(b.results, set.name("advise")+".json"), name, set.name("advise"))
		}
	}
	return said, nil
}

// mixHeld is what each system holds of a load, in req/s.
type mixHeld struct {
	alone, each    float64 // one server for all GPUs, and a server for each GPU
	attached, own  float64
	late, lateness float64 // of requests and sleeps, as a part of the shortest SLO and in seconds
}

// of is what Conch holds in one of mixSides.
func (h mixHeld) of(side string) float64 {
	if side == "own" {
		return h.own
	}
	return h.attached
}

// measureMix searches what each system holds of a load. One that holds no rate at all counts with the lowest that was tried, which is more.
func (b *bench) measureMix(ctx context.Context, m mix) (h mixHeld, err error) {
	c := b.mixContest(m)
	start := float64(adviceRate)
	held := func(s rig.Standing, err error) (float64, error) {
		switch {
		case errors.Is(err, rig.ErrHoldsNothing):
			b.say(fmt.Sprintf("%s: %v; it counts with that", m.name, err))
			return start / 100, nil
		case err != nil:
			return 0, err
		}
		return s.Held(), nil
	}
	err = b.before(ctx, m, func(server *rig.Tritons) (err error) {
		if h.alone, err = held(c.HighestOf(ctx, rig.TritonSetup{Node: rig.NodeBound}, server, start)); err != nil {
			return err
		}
		start = h.alone
		setup := rig.ConchSetup{Attach: mixGPUs}
		conch, err := setup.StartBefore(ctx, c, server)
		if err != nil {
			return err
		}
		h.attached, err = held(c.HighestOf(ctx, setup, conch, start))
		return errors.Join(err, conch.Close())
	})
	if err != nil {
		return h, err
	}
	if h.each, err = held(c.Highest(ctx, []rig.Setup{rig.TritonSetup{}}, start)); err != nil {
		return h, err
	}
	if h.own, err = held(c.Highest(ctx, []rig.Setup{rig.ConchSetup{}}, start)); err != nil {
		return h, err
	}
	late, ofSLO := c.Lateness()
	h.lateness, h.late = late.Seconds(), ofSLO
	return h, nil
}

// mixes measures loads that advise was asked about: what one server holds alone, with Conch in front of it (driver attach, mode control), what a server for each GPU
// holds, and what Conch holds that starts a server for each (driver process).
func (b *bench) mixes(ctx context.Context, set mixSet, r *figure.Report) error {
	r.Emulated = emulatedMix
	said, err := b.asked(set, r)
	if err != nil {
		return err
	}
	ratios := map[string][]float64{}
	hits, answered, ofAdvised := map[string]int{}, map[string]int{}, map[string][]float64{}
	return b.eachMix(ctx, set, r, func(m mix) error {
		h, err := b.measureMix(ctx, m)
		if err != nil {
			return err
		}
		name := "mix." + m.name + "."
		r.Add(name+"triton.goodput", h.alone, "req/s", "at most 1% bad for every model: one server for all GPUs, dynamic batching")
		r.Add(name+"each.goodput", h.each, "req/s", "a server for each GPU, dynamic batching, to the one with the fewest outstanding requests")
		for _, of := range mixSides {
			ratio := h.of(of.name) / h.alone
			ratios[of.name] = append(ratios[of.name], ratio)
			r.Add(name+of.name+".goodput", h.of(of.name), "req/s", of.is)
			r.Add(name+of.name+".goodput_ratio", ratio, "ratio", "over one server for all GPUs")
			if answer, given := said["advise."+m.name+"."+of.name+".predicted"]; given {
				ofAdvised[of.name] = append(ofAdvised[of.name], ratio/answer.Value)
				r.Add(name+of.name+".of_advised", ratio/answer.Value, "ratio", "what was measured over what advise had answered")
			}
			low, known := said["advise."+m.name+"."+of.name+".predicted_low"]
			if high := said["advise."+m.name+"."+of.name+".predicted_high"]; known {
				answered[of.name]++
				if .9*low.Value <= ratio && ratio <= 1.1*high.Value {
					hits[of.name]++
				}
			}
		}
		best := h.own / max(h.alone, h.each)
		ratios["best"] = append(ratios["best"], best)
		r.Add(name+"own.best_ratio", best, "ratio", "Conch with a server for each GPU over the better of the two Tritons")
		r.Add(name+"lateness", 1000*h.lateness, "ms", fmt.Sprintf("the worst 99th percentile of a trial by which the machine was late: %.1f%% of the shortest SLO", 100*h.late))
		for _, of := range mixSides { // of the loads so far: a run that is stopped has a summary, too
			summary, n := set.figures()+of.name+".", len(ratios[of.name])
			r.Figures = slices.DeleteFunc(r.Figures, func(f figure.Figure) bool { return strings.HasPrefix(f.Name, summary) })
			r.AddMean(summary+"goodput_ratio", ratios[of.name], "ratio", fmt.Sprintf("geometric mean of %d loads, each measured once, over one server for all GPUs", n))
			r.Add(summary+"answered", float64(answered[of.name]), "loads", fmt.Sprintf("of %d for which advise gave a ratio", n))
			r.Add(summary+"hits", float64(hits[of.name]), "loads", "where what was measured lies in the answer's range, give or take a tenth")
			if all := ofAdvised[of.name]; len(all) > 0 {
				note := fmt.Sprintf("of %d loads: what was measured over what advise had answered", len(all))
				r.Add(summary+"of_advised_least", slices.Min(all), "ratio", note)
				r.Add(summary+"of_advised_most", slices.Max(all), "ratio", note)
			}
		}
		r.AddMean(set.figures()+"own.best_ratio", ratios["best"], "ratio", fmt.Sprintf("geometric mean of %d loads, over the better of the two Tritons", len(ratios["best"])))
		return nil
	})
}
