// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package calibrate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Runner serves models somewhere: a Triton of its own, or a scratch partition of conch.
type Runner interface {
	// Load serves a model under its name, from an ONNX file.
	Load(ctx context.Context, m Model, file []byte) error
	// Infer runs one batch and gives how long the server computed, without network and queue.
	Infer(ctx context.Context, m Model, batch int, input []float32) (time.Duration, error)
	// Unload takes the model out of service.
	Unload(ctx context.Context, m Model) error
	// Server names what runs the models, version included.
	Server() string
}

// Result is the time of a model at a batch.
type Result struct {
	Model string `json:"model"`
	Batch int    `json:"batch"`
	// Share is the thread percentage that the server had.
	Share   int     `json:"share"`
	Seconds float64 `json:"seconds"`
	// Spread is the median over the least of the executions.
	Spread float64 `json:"spread"`
	Runs   int     `json:"runs"`
}

// State is what was measured, as it lies in a file between runs.
type State struct {
	Server  string   `json:"server"`
	Results []Result `json:"results"`
}

// ErrTimeIsUp is the failure of a measurement that reached its limit; what was measured is in the state file, and a further run goes on from there.
var ErrTimeIsUp = errors.New("time is up; run it again to go on")

// Options bound a measurement.
type Options struct {
	// State is the file that results are kept in; empty keeps none.
	State string
	// Limit is how long measuring may take in all, 0 for no limit.
	Limit time.Duration
	// Runs is how many executions one result is of; 0 means 7. Budget ends them earlier for slow models; 0 means 500 ms.
	Runs   int
	Budget time.Duration
	// Idle is how long the server is left alone after an execution, as a multiple of it: 1 disturbs it half of the time.
	Idle float64
	// Share is the thread percentage that the runner's server has; 0 means 100.
	Share int
	// Quantile of the executions is the result: 0 is the least, for a machine that does other things; .5 the median.
	Quantile float64
	// Progress is called before every model that is measured, with how many are behind it; it may be nil.
	Progress func(done, all int, model string)
	Clock    Clock
}

// Clock is time as measuring needs it.
type Clock interface {
	Now() time.Time
	Sleep(ctx context.Context, d time.Duration) error
}

// Measure runs models that the state does not hold yet, one at a time, and gives all results.
func Measure(ctx context.Context, r Runner, models []Model, o Options) (*State, error) {
	state := &State{Server: r.Server()}
	if o.State != "" {
		if err := state.read(o.State); err != nil {
			return nil, err
		}
		if state.Server != r.Server() {
			return nil, fmt.Errorf("%s is of server %q, this is %q: give another file, or remove it", o.State, state.Server, r.Server())
		}
	}
	begin := o.Clock.Now()
	for i, m := range models {
		if !state.lacks(m, o.share()) {
			continue
		}
		if o.Progress != nil {
			o.Progress(i, len(models), m.Name)
		}
		if o.Limit > 0 && o.Clock.Now().Sub(begin) > o.Limit {
			return state, ErrTimeIsUp
		}
		if err := state.measure(ctx, r, m, o); err != nil {
			return state, fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return state, nil
}

func (o *Options) share() int { return cmp.Or(o.Share, 100) }

func (s *State) lacks(m Model, share int) bool {
	return slices.ContainsFunc(m.Batches, func(b int) bool { return !s.has(m.Name, b, share) })
}

func (s *State) has(model string, batch, share int) bool {
	return slices.ContainsFunc(s.Results, func(r Result) bool { return r.Model == model && r.Batch == batch && cmp.Or(r.Share, 100) == share })
}

func (s *State) measure(ctx context.Context, r Runner, m Model, o Options) (err error) {
	file, err := m.Build()
	if err != nil {
		return err
	}
	if err := r.Load(ctx, m, file); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Unload(context.WithoutCancel(ctx), m)) }()
	for _, batch := range m.Batches {
		if s.has(m.Name, batch, o.share()) {
			continue
		}
		result, err := series(ctx, r, m, batch, o)
		if err != nil {
			return err
		}
		s.Results = append(s.Results, result)
		if o.State != "" {
			if err := s.write(o.State); err != nil {
				return err
			}
		}
	}
	return nil
}

// series is one result: a first execution that is not counted, then as many as runs and budget allow, three at least.
func series(ctx context.Context, r Runner, m Model, batch int, o Options) (Result, error) {
	runs, budget := o.Runs, o.Budget
	if runs == 0 {
		runs = 7
	}
	if budget == 0 {
		budget = 500 * time.Millisecond
	}
	n := int64(batch)
	for _, d := range m.Inputs {
		n *= d
	}
	random := rand.New(rand.NewPCG(2, uint64(n)))
	input := make([]float32, n)
	for i := range input {
		input[i] = float32(random.NormFloat64())
	}
	var all []float64
	spent := time.Duration(0)
	for i := 0; i <= runs && (i <= 3 || spent < budget); i++ {
		took, err := r.Infer(ctx, m, batch, input)
		if err != nil {
			return Result{}, fmt.Errorf("batch %d: %w", batch, err)
		}
		if i > 0 {
			all = append(all, took.Seconds())
			spent += took
		}
		if o.Idle > 0 {
			if err := o.Clock.Sleep(ctx, time.Duration(o.Idle*float64(took))); err != nil {
				return Result{}, err
			}
		}
	}
	slices.Sort(all)
	value := all[min(int(o.Quantile*float64(len(all))), len(all)-1)]
	return Result{Model: m.Name, Batch: batch, Share: o.share(), Seconds: value, Spread: all[len(all)/2] / max(all[0], 1e-9), Runs: len(all)}, nil
}

func (s *State) read(path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, s); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// write replaces the file at once, so that what was measured survives whatever ends the process.
func (s *State) write(path string) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".calibration-*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}
