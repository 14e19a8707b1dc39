// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/conch-serving/conch/plugins/policy"
)

// Grid is l(b) at some batch sizes: as an operator declares it, or as it was measured.
type Grid map[int]time.Duration

// source says how l(b) of a model on a type of GPU is known.
type source int

const (
	unknown    source = iota // nothing was observed
	singleRow                // l(1) was observed, and no larger batch
	profile                  // the snapshot's profile can be used as it is
	statistics               // from the executions that servers counted, with the time in which batches waited for each other
	given                    // Input.Grids
)

// counted are the executions of one batch size of a model that were observed, with their mean time in microseconds.
type counted struct {
	rows  int
	count float64
	mean  float64
}

// observations lists what was executed of a profile at the whole GPU, in order of rows.
func observations(p *policy.Profile) []counted {
	var all []counted
	for _, q := range p.GetPoints() {
		if q.GetObservations() > 0 && q.GetLatencyUs().GetValue() > 0 {
			all = append(all, counted{int(q.GetBatch()), float64(q.GetObservations()), q.GetLatencyUs().GetValue()})
		}
	}
	return all
}

// fewestExecutions of a batch size tell its mean.
const fewestExecutions = 5

// sure are the batch sizes that were executed often enough.
func sure(all []counted) []counted {
	return slices.DeleteFunc(slices.Clone(all), func(c counted) bool { return c.count < fewestExecutions })
}

// informative reports whether the slope of l(b) is known. The mean of n executions is off by some .5*l(1)/sqrt(n), because of what they
// waited for, and a slope from sizes 1 and b by that over b-1: with n*(b-1)^2 of 100, l(8) is known within a third of l(1). A server's
// recent executions count, of which the recorder keeps 64. Where batches are smaller than 8 the largest is to be known as well.
func informative(all []counted, maxBatch int) bool {
	sum := 0.0
	for _, c := range all {
		sum += min(c.count, 64) * float64((c.rows-all[0].rows)*(c.rows-all[0].rows))
	}
	extrapolated := float64(max(0, min(maxBatch, 8)-1)) / 7
	return len(all) > 0 && sum >= 100*extrapolated*extrapolated
}

// seen are the executions of a model on a type of GPU that tell their mean.
func (in *Input) seen(x *policy.Index, model, gpuType string) []counted {
	if all := in.Counted[model]; len(all) > 0 {
		var out []counted
		for _, e := range all {
			out = append(out, counted{e.Rows, float64(e.Count), microseconds(e.Mean)})
		}
		return out // generated batches are few, and there are several sizes
	}
	return sure(observations(x.Profile(model, gpuType)))
}

// Measured reports whether Counted tells how long all batches of a model take, and not only one row.
func (in *Input) Measured(model string, maxBatch int) bool {
	return len(in.Counted[model]) > 0 && informative(in.seen(nil, model, ""), maxBatch)
}

// knownOf says how l(b) of a model is known on a type of GPU.
func (in *Input) knownOf(x *policy.Index, m *policy.Model, gpuType string) source {
	model, maxBatch := m.GetName(), int(m.GetMaxBatchSize())
	seen := in.seen(x, model, gpuType)
	switch {
	case len(in.Grids[model]) > 0:
		return given
	case in.Measured(model, maxBatch) || in.Shared && informative(seen, maxBatch):
		return statistics
	case x.UsableProfile(model, gpuType) != nil && (!in.Shared || len(seen) == 0):
		return profile
	case len(seen) > 0:
		return singleRow
	default:
		return unknown
	}
}

// line is l(b) = beta + alpha*b in microseconds.
type line struct{ alpha, beta float64 }

func (l line) at(b int) float64 { return l.beta + l.alpha*float64(b) }

// fitted is the line of least squares through what was observed, with neither part below zero.
func fitted(all []counted) line {
	beta, alpha := regression(all)
	switch first := all[0]; {
	case alpha < 0:
		return line{0, first.mean}
	case beta < 0:
		return line{first.mean / float64(first.rows), 0}
	}
	return line{alpha, beta}
}

// regression is the line of least squares; flat through the mean where there is one size only.
func regression(all []counted) (beta, alpha float64) {
	var x, y, w []float64
	for _, c := range all {
		x, y, w = append(x, float64(c.rows)), append(y, c.mean), append(w, min(c.count, 64))
	}
	beta, alpha = stat.LinearRegression(x, y, w, false)
	if math.IsNaN(alpha) || math.IsInf(alpha, 0) {
		return stat.Mean(y, w), 0
	}
	return beta, alpha
}

// points are a profile's: at each size of the grid, and beyond its ends along its outermost pieces.
func (g Grid) points(maxBatch int) []*policy.ProfilePoint {
	sizes := slices.Sorted(maps.Keys(g))
	at := func(rows int, us float64) *policy.ProfilePoint {
		return &policy.ProfilePoint{Batch: uint32(rows), ThreadPercentage: wholeGPU, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us}
	}
	var all []*policy.ProfilePoint
	if first := sizes[0]; first > 1 {
		us := microseconds(g[first]) / float64(first) // a lower bound: rows that cost the same each
		if len(sizes) > 1 {
			slope := microseconds(g[sizes[1]]-g[first]) / float64(sizes[1]-first)
			us = max(us, microseconds(g[first])-slope*float64(first-1))
		}
		all = append(all, at(1, us))
	}
	for _, b := range sizes {
		all = append(all, at(b, microseconds(g[b])))
	}
	if n := len(sizes); n > 1 && sizes[n-1] < maxBatch {
		last, before := sizes[n-1], sizes[n-2]
		slope := max(0, microseconds(g[last]-g[before])/float64(last-before))
		all = append(all, at(maxBatch, microseconds(g[last])+slope*float64(maxBatch-last)))
	}
	return all
}

// wholeGPU is the share that grids and statistics hold for.
const wholeGPU = 100

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// replace makes a grid the profile of a model on a type of GPU.
func replace(s *policy.Snapshot, model, gpuType string, points []*policy.ProfilePoint) {
	s.Profiles = slices.DeleteFunc(s.GetProfiles(), func(p *policy.Profile) bool { return p.GetModel() == model && p.GetGpuType() == gpuType })
	s.Profiles = append(s.Profiles, &policy.Profile{Model: model, GpuType: gpuType, Usable: true, Source: policy.ProfileSource_PROFILE_SOURCE_CALIBRATED, Points: points})
}

func (l line) points(maxBatch int) []*policy.ProfilePoint {
	g := Grid{}
	for _, b := range []int{1, max(2, maxBatch)} {
		g[b] = time.Duration(l.at(b) * float64(time.Microsecond))
	}
	return g.points(maxBatch)
}

// line is the highest, over all sizes together, that is above no time of a grid; nil where the grid has fewer than two sizes. A round trip takes no less than the
// execution, and as much more as its batch waited: what is off is off in one direction, and by very different amounts on servers that are busy.
func (g Grid) line() *line {
	if len(g) < 2 {
		return nil
	}
	sizes := slices.Sorted(maps.Keys(g))
	us := func(rows int) float64 { return microseconds(g[rows]) }
	// The highest line touches two of the times, or one where it is flat or proportional.
	var through []line
	for i, a := range sizes {
		through = append(through, line{0, us(a)}, line{us(a) / float64(a), 0})
		for _, b := range sizes[i+1:] {
			slope := (us(b) - us(a)) / float64(b-a)
			through = append(through, line{slope, us(a) - slope*float64(a)})
		}
	}
	var best *line
	most := 0.0
	for _, l := range through {
		sum, above := 0.0, l.alpha < 0 || l.beta < 0
		for _, rows := range sizes {
			sum, above = sum+l.at(rows), above || l.at(rows) > us(rows)*(1+1e-9)
		}
		if !above && sum > most {
			most, best = sum, &l
		}
	}
	return best
}

// kind is a model on a type of GPU.
type kind struct{ model, gpuType string }

// hidden is what a server's statistics leave open of one kind: they count the time that a batch waited for the GPU, which other models used,
// as its own.
type hidden struct {
	kind
	seen     []counted
	maxBatch int
	line
	// ratio of beta to alpha that is assumed; below 0 where the line is known but for its level.
	ratio float64
	// timed is the line of round trips, which take no less; nil where there are none.
	timed *line
}

// bound takes the line of round trips where that is the faster one, over the sizes that were seen: where generated batches were large, clients' waited for
// those too, which nothing simulates.
func (h *hidden) bound() {
	if h.timed == nil {
		return
	}
	sum := 0.0
	for _, c := range h.seen {
		sum += h.timed.at(c.rows) - h.at(c.rows)
	}
	if sum < 0 {
		h.line = *h.timed
	}
}

// rounds and part are of the search for the times without waiting: each round simulates the servers and takes off a part of the difference.
const (
	rounds = 8
	part   = .7
)

// uncover finds the lines that make the simulated servers count what the real ones counted, and puts them into the snapshot as profiles. Rate
// is the traffic under which the servers counted.
func (w *world) uncover(ctx context.Context, all []*hidden, rate float64) error {
	if len(all) == 0 {
		return nil
	}
	for _, h := range all {
		h.start()
		h.bound()
		replace(w.snapshot, h.model, h.gpuType, h.points(h.maxBatch))
	}
	for range rounds {
		r, err := w.asIs(ctx, 0, rate, 1)
		if err != nil {
			return err
		}
		for _, h := range all {
			h.correct(executionsOf(r, w.snapshot, h.model))
			h.bound()
			replace(w.snapshot, h.model, h.gpuType, h.points(h.maxBatch))
		}
	}
	return nil
}

func (h *hidden) start() {
	if h.ratio < 0 {
		h.line = fitted(h.seen)
		return
	}
	h.set(h.seen[0].mean / float64(h.seen[0].rows))
}

// set makes a line of the assumed ratio with the given l(1).
func (h *hidden) set(single float64) {
	h.alpha, h.beta = single/(1+h.ratio), single*h.ratio/(1+h.ratio)
}

// correct moves the line by what the simulated servers counted too much: larger batches form where more waits, so that waiting changes the
// slope too.
func (h *hidden) correct(simulated map[int]float64) {
	var measured, made []counted
	for _, c := range h.seen {
		if mean, ok := simulated[c.rows]; ok {
			measured, made = append(measured, c), append(made, counted{c.rows, c.count, mean})
		}
	}
	if len(measured) == 0 {
		return
	}
	if h.ratio >= 0 || len(measured) == 1 || h.seen[len(h.seen)-1].rows > 2*measured[len(measured)-1].rows {
		// The larger batches were generated: they wait no more than others, and the slope is right.
		sum, weight := 0.0, 0.0
		for i, c := range measured {
			sum, weight = sum+c.count*(made[i].mean-c.mean), weight+c.count
		}
		h.level(part * sum / weight)
		return
	}
	beta, alpha := regression(made)
	wantBeta, wantAlpha := regression(measured)
	was := h.at(1)
	h.alpha = max(0, h.alpha-part*(alpha-wantAlpha))
	h.beta -= part * (beta - wantBeta)
	if h.beta < 0 {
		h.beta = 0
	}
	if h.at(1) < .05*was {
		h.beta = .05 * was
	}
}

// level takes an excess off l(1).
func (h *hidden) level(excess float64) {
	single := max(.05*h.at(1), h.at(1)-excess)
	if h.ratio >= 0 {
		h.set(single)
		return
	}
	h.beta = max(0, single-h.alpha)
}

// learn finds out how l(b) of each model is known, says so in notes, and returns why a model's is not. What can be used is put into the
// snapshot; what has to be uncovered is kept for that.
func (a *Advice) learn(in *Input, x *policy.Index, s *policy.Snapshot, m *policy.Model, w *world) (text string) {
	if types := typesOf(x, s, m.GetName()); len(types) > 1 && (len(in.Counted[m.GetName()]) > 0 || in.Shared && len(in.Grids[m.GetName()]) == 0) {
		return fmt.Sprintf("it is on GPUs of several types (%s), whose executions are not told apart. Ask about the servers of one type: a conch in front of those alone.", strings.Join(types, ", "))
	}
	seen := map[string]bool{}
	for _, g := range x.GPUs() {
		if seen[g.GetType()] {
			continue
		}
		seen[g.GetType()] = true
		k := kind{m.GetName(), g.GetType()}
		p := x.Profile(k.model, k.gpuType)
		switch in.knownOf(x, m, k.gpuType) {
		case unknown:
			return fmt.Sprintf("how long its batches take is not known. Measure it with `tritonctl advise --measure`, or declare models.%s.profile.alpha and .beta in conch.yaml.", k.model)
		case singleRow:
			w.open = append(w.open, &hidden{kind: k, seen: in.seen(x, k.model, k.gpuType)[:1], maxBatch: int(m.GetMaxBatchSize())})
		case statistics:
			all := in.seen(x, k.model, k.gpuType)
			w.hidden = append(w.hidden, &hidden{kind: k, seen: all, maxBatch: int(m.GetMaxBatchSize()), ratio: -1, timed: in.Timed[k.model].line()})
			a.above(m, all[len(all)-1].rows, k.gpuType)
		case given:
			replace(s, k.model, k.gpuType, in.Grids[k.model].points(int(m.GetMaxBatchSize())))
			a.above(m, slices.Max(slices.Collect(maps.Keys(in.Grids[k.model]))), k.gpuType)
		case profile:
			switch p.GetSource() {
			case policy.ProfileSource_PROFILE_SOURCE_ESTIMATED, policy.ProfileSource_PROFILE_SOURCE_DECLARED:
				a.note("whether %s is as fast on %s as its profile says, which is not measured.", k.model, k.gpuType)
			case policy.ProfileSource_PROFILE_SOURCE_OBSERVED:
				if all := observations(p); len(all) > 0 {
					a.above(m, all[len(all)-1].rows, k.gpuType)
				}
			}
		}
	}
	return ""
}

// typesOf are the types of the GPUs that a model is on.
func typesOf(x *policy.Index, s *policy.Snapshot, model string) (types []string) {
	on := map[string]bool{}
	for _, p := range s.GetCurrent().PartitionsOf(model) {
		on[p.GetNode()+"/"+p.GPU()] = true
	}
	for _, n := range s.GetNodes() {
		for _, g := range n.GetGpus() {
			if on[n.GetName()+"/"+g.GetId()] {
				types = append(types, g.GetType())
			}
		}
	}
	slices.Sort(types)
	return slices.Compact(types)
}

// flatBelow is by which part of l(1) the largest batch may take longer than one row, where it was not seen, until nothing is believed of it.
const flatBelow = .05

// flat says of which models batches that were not timed would cost nothing: on a busy server the few sizes that were timed waited by chance, and a line through them
// may have no slope.
func (w *world) flat() (missing []string) {
	for _, h := range w.hidden {
		largest := h.seen[len(h.seen)-1].rows
		if largest < h.maxBatch && h.at(h.maxBatch)-h.at(1) < flatBelow*h.at(1) {
			missing = append(missing, fmt.Sprintf("%s: its batches above %d rows were not timed, and those below do not tell what a row takes. Give it longer: tritonctl advise --measure --within 2m --for 3m", h.model, largest))
		}
	}
	return missing
}

// above notes that larger batches than those seen are extrapolated.
func (a *Advice) above(m *policy.Model, largest int, gpuType string) {
	if largest < int(m.GetMaxBatchSize()) {
		a.note("how long batches of %s above %d rows take on %s: they were not seen, and are extrapolated from the smaller ones.", m.GetName(), largest, gpuType)
	}
}

func (a *Advice) note(format string, args ...any) {
	a.Notes = append(a.Notes, fmt.Sprintf(format, args...))
}
