// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package calibrate_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/calibrate"
	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/estimator/lower"
)

// still is a clock that moves only when a caller sleeps or the server computes.
type still struct{ now time.Time }

func (c *still) Now() time.Time { return c.now }

func (c *still) Sleep(_ context.Context, d time.Duration) error {
	c.now = c.now.Add(d)
	return nil
}

// roof is a server whose kernels run at fixed rates: 40 GFLOP/s, 5 GB/s, 20 us per operator, 300 us per execution.
type roof struct {
	clock          *still
	loaded, served int
	fails          string
	known          map[string]time.Duration
}

func (r *roof) Server() string { return "roof 1" }

func (r *roof) Load(_ context.Context, m calibrate.Model, _ []byte) error {
	if m.Name == r.fails {
		return errors.New("no room")
	}
	r.loaded++
	return nil
}

func (r *roof) Unload(context.Context, calibrate.Model) error { r.loaded--; return nil }

func (r *roof) Infer(_ context.Context, m calibrate.Model, batch int, _ []float32) (time.Duration, error) {
	took, err := r.took(m, batch)
	r.served++
	r.clock.now = r.clock.now.Add(took)
	return took, err
}

// took is the time of a batch, worked out once.
func (r *roof) took(m calibrate.Model, batch int) (time.Duration, error) {
	key := fmt.Sprintf("%s/%d", m.Name, batch)
	if took, ok := r.known[key]; ok {
		return took, nil
	}
	samples, err := calibrate.Samples([]calibrate.Result{{Model: m.Name, Batch: batch, Seconds: 1}}, []calibrate.Model{m}, lower.ONNXRuntime())
	if err != nil {
		return 0, err
	}
	seconds := 300e-6
	for _, l := range samples[0].Launches {
		seconds += 20e-6
		if l.Family == kernel.Product || l.Family == kernel.Convolution {
			seconds += l.FLOPs / 40e9
		} else {
			seconds += l.Bytes() / 5e9
		}
	}
	if r.known == nil {
		r.known = map[string]time.Duration{}
	}
	r.known[key] = time.Duration(seconds * 1e9)
	return r.known[key], nil
}

func small() []calibrate.Model {
	var some []calibrate.Model
	for _, m := range calibrate.Micros() {
		if m.Name == "null_1" || m.Name == "copy" || m.Name == "norm_32_128" {
			some = append(some, m)
		}
	}
	return some
}

func TestABundlePredictsWhatItNeverSaw(t *testing.T) {
	clock := &still{}
	server := &roof{clock: clock}
	o := calibrate.Options{Clock: clock, Runs: 3}
	// The largest weights take the longest to make and say nothing here.
	micros := slices.DeleteFunc(calibrate.Micros(), func(m calibrate.Model) bool {
		return strings.Contains(m.Name, "1024") || strings.Contains(m.Name, "2048")
	})
	state, err := calibrate.Measure(t.Context(), server, micros, o)
	require.NoError(t, err)
	require.Zero(t, server.loaded, "every model is unloaded")
	bundle, err := calibrate.Fit(state, calibrate.CPU(16e9), lower.ONNXRuntime())
	require.NoError(t, err)
	require.InDelta(t, 300e-6, bundle.Factors.Fixed, 30e-6)
	require.InDelta(t, 20e-6, bundle.Factors.Floor, 5e-6)

	whole, err := calibrate.Measure(t.Context(), server, calibrate.Whole(), o)
	require.NoError(t, err)
	samples, err := calibrate.Samples(whole.Results, calibrate.Whole(), bundle.Runtime)
	require.NoError(t, err)
	d, err := bundle.Device()
	require.NoError(t, err)
	errs := estimator.Errors(&d, samples, bundle.Factors)
	require.Less(t, estimator.Median(errs), .1)
	require.Less(t, estimator.P90(errs), .4)
}

func TestMeasuringGoesOnWhereItEnded(t *testing.T) {
	clock := &still{}
	server := &roof{clock: clock}
	o := calibrate.Options{Clock: clock, Runs: 3, State: filepath.Join(t.TempDir(), "state.json"), Idle: 1}
	o.Limit = time.Millisecond
	state, err := calibrate.Measure(t.Context(), server, small(), o)
	require.ErrorIs(t, err, calibrate.ErrTimeIsUp)
	require.NotEmpty(t, state.Results)
	done, served := len(state.Results), server.served

	o.Limit = 0
	state, err = calibrate.Measure(t.Context(), server, small(), o)
	require.NoError(t, err)
	require.Len(t, state.Results, 1+2+3)
	require.Equal(t, served+4*(len(state.Results)-done), server.served, "what was measured is not measured again")
}

func TestAModelThatDoesNotLoadIsNamed(t *testing.T) {
	clock := &still{}
	_, err := calibrate.Measure(t.Context(), &roof{clock: clock, fails: "copy"}, small(), calibrate.Options{Clock: clock})
	require.ErrorContains(t, err, "copy: no room")
}

func TestWithoutOverheadsThereIsNoBundle(t *testing.T) {
	_, err := calibrate.Fit(&calibrate.State{}, calibrate.CPU(1e9), lower.ONNXRuntime())
	require.ErrorContains(t, err, "null_1")
}
