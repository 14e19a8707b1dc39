// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// load is what arrives for one model of the snapshot, in its order, or for one pipeline after them.
type load struct {
	name     string
	rate     float64
	arrivals *Arrivals
}

// loads divides the scenario's rate, or takes each model's and pipeline's own.
func (s *Scenario) loads(snapshot *policy.Snapshot) ([]load, error) {
	all := make([]load, len(snapshot.GetModels()))
	weights := make([]float64, len(all))
	index := make(map[string]int, len(all))
	for i, m := range snapshot.GetModels() {
		all[i] = load{name: m.GetName(), rate: m.GetRate()}
		if len(s.Pipelines) == 0 {
			weights[i] = 1
		}
		index[m.GetName()] = i
	}
	for _, p := range snapshot.GetPipelines() {
		all = append(all, load{name: p.GetName(), rate: p.GetRate()})
		weights = append(weights, 1)
		index[p.GetName()] = len(all) - 1
	}
	for _, m := range s.Models {
		for _, name := range m.names() {
			i, ok := index[name]
			if !ok {
				return nil, fmt.Errorf("model %s is not in the snapshot", name)
			}
			all[i].arrivals = m.Arrivals
			if m.Rate > 0 {
				all[i].rate = m.Rate
			}
			if m.Weight > 0 {
				weights[i] = m.Weight
			}
		}
	}
	for _, p := range s.Pipelines {
		all = append(all, load{name: p.Name, rate: p.Rate, arrivals: p.Arrivals})
		weights = append(weights, cmp.Or(p.Weight, 1))
	}
	if s.Rate == 0 {
		return all, nil
	}
	if s.Zipf != nil {
		weights = workload.Zipf(len(all), *s.Zipf, 1)
	}
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	for i := range all {
		all[i].rate = s.Rate * weights[i] / sum
	}
	return all, nil
}

// scale sets the total rate.
func scale(loads []load, total float64) error {
	sum := 0.0
	for _, l := range loads {
		sum += l.rate
	}
	if !(sum > 0) {
		return errors.New("a rate is asked for, and no model has one that says its part")
	}
	for i := range loads {
		loads[i].rate *= total / sum
	}
	return nil
}

// streams generates arrivals, from a generator for each model.
func streams(loads []load, until time.Duration, seed uint64) ([]workload.Stream, error) {
	var all []workload.Stream
	for i, l := range loads {
		if l.rate == 0 {
			continue
		}
		a := l.arrivals
		if a == nil {
			a = &Arrivals{}
		}
		curve, err := a.curve(l, until, seed)
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", l.name, err)
		}
		stream, err := workload.Renewal{
			Model: int32(i), Rows: a.Rows, Shape: a.Shape, Curve: curve, Random: workload.Seed(seed, "arrivals", l.name),
		}.Stream()
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", l.name, err)
		}
		all = append(all, stream)
	}
	return all, nil
}

func (a *Arrivals) curve(l load, until time.Duration, seed uint64) (workload.Curve, error) {
	switch {
	case len(a.Steps) > 0 && a.Diurnal != nil:
		return workload.Curve{}, errors.New("arrivals: give steps or diurnal, not both")
	case len(a.Steps) > 0:
		steps := make([]workload.Step, len(a.Steps))
		for i, step := range a.Steps {
			steps[i] = workload.Step{From: step.From.std(), Rate: step.Factor * l.rate}
		}
		return workload.Steps(steps...)
	case a.Diurnal != nil:
		d := a.Diurnal
		return workload.Diurnal{
			Mean: l.rate, Swing: d.Swing, Period: d.Period.std(), Pieces: d.Pieces, Spikes: d.Spikes, Height: d.Height, Length: d.Length.std(),
		}.Curve(until, workload.Seed(seed, "spikes", l.name))
	}
	return workload.Constant(l.rate), nil
}

// trace opens the scenario's trace. Without a duration it is read once to the end before, to find the last arrival.
func (s *Scenario) trace(w *World, dir string) error {
	t := s.Trace
	path := t.File
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	w.close = file.Close
	if err = t.open(w, file); err == nil && w.Duration == 0 {
		if w.Duration, err = last(w.Streams[0]); err == nil {
			if _, err = file.Seek(0, io.SeekStart); err == nil {
				err = t.open(w, file)
			}
		}
	}
	if err != nil {
		if errors.Is(err, workload.ErrTruncated) {
			err = fmt.Errorf("%w; trace.truncated: true takes what is before", err)
		}
		return errors.Join(fmt.Errorf("%s: %w", t.File, err), file.Close())
	}
	return nil
}

// open makes the streams of a trace.
func (t *Trace) open(w *World, file io.Reader) error {
	index := map[string]int32{}
	for i, m := range w.Snapshot.GetModels() {
		index[m.GetName()] = int32(i)
	}
	for i, p := range w.Snapshot.GetPipelines() {
		index[p.GetName()] = int32(len(w.Snapshot.GetModels()) + i) //nolint:gosec // few
	}
	switch t.Format {
	case "arrivals":
		w.Streams = []workload.Stream{workload.NewList(file, index)}
	case "conch":
		r, err := workload.NewReader(file)
		if err != nil {
			return err
		}
		w.Streams = []workload.Stream{workload.Trace(r, index)}
		if t.Truncated {
			w.Streams = []workload.Stream{workload.Whole(w.Streams[0])}
		}
	case "azure":
		return t.azure(w, file)
	default:
		return fmt.Errorf("format %q is not azure, arrivals or conch", t.Format)
	}
	return nil
}

// last is just after a stream's last arrival.
func last(s workload.Stream) (time.Duration, error) {
	var a workload.Arrival
	none := true
	for s.Next(&a) {
		none = false
	}
	if err := workload.Err(s); err != nil {
		return 0, err
	}
	if none {
		return 0, errors.New("the trace is empty")
	}
	return a.At + 1, nil
}

// azure gives each model a function: the one with most invocations to the first.
func (t *Trace) azure(w *World, file io.Reader) error {
	w.Streams = nil
	functions, err := workload.ReadAzure(file)
	if err != nil {
		return err
	}
	if len(functions) < len(w.Snapshot.GetModels()) {
		return fmt.Errorf("azure trace: %d functions for %d models; every model needs one, so take models out or functions in", len(functions), len(w.Snapshot.GetModels()))
	}
	total := func(c workload.Counts) (sum int) {
		for _, n := range c.PerMinute {
			sum += n
		}
		return sum
	}
	slices.SortStableFunc(functions, func(a, b workload.Counts) int { return cmp.Compare(total(b), total(a)) })
	if total(functions[0]) == 0 {
		return errors.New("azure trace: no function was invoked")
	}
	scale, speed := cmp.Or(t.Scale, 1), cmp.Or(t.Speed, 1)
	if w.Duration == 0 {
		w.Duration = time.Duration(float64(len(functions[0].PerMinute)) / speed * float64(time.Minute))
	}
	for i, m := range w.Snapshot.GetModels() {
		stream, err := functions[i].Stream(int32(i), scale, speed, workload.Seed(w.Seed, "arrivals", m.GetName()))
		if err != nil {
			return err
		}
		w.Streams = append(w.Streams, stream)
		// What the first plan is made for: the trace's mean.
		m.Rate = float64(total(functions[i])) * scale * speed / 60 / float64(len(functions[i].PerMinute))
	}
	return nil
}
