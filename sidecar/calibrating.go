// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/calibrate"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/merger"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/calibration"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/merging"
	"github.com/conch-serving/conch/sidecar/observe"
)

// newCalibration makes what executes orders to measure, with a driver of its own where conch starts servers. Bundles of earlier orders are the book's.
func (s *server) newCalibration(ctx context.Context, node *policy.Node, store *repo.Store, scratch driver.Driver, recorder *observe.Recorder) ([]*estimator.Bundle, error) {
	var bundles []*estimator.Bundle
	var err error
	s.calibration, bundles, err = calibration.New(ctx, calibration.Options{
		Driver: scratch, Dir: filepath.Join(s.config.State, "calibration"), Nodes: []*policy.Node{node}, Clock: machineClock{}, Logger: s.log.With("part", "calibration"),
		Busy: func(gpu string) float64 {
			l := s.control.Look()
			busy := 0.0
			for _, p := range l.Plan.GetPartitions() {
				if p.GPU() == gpu {
					busy += l.BusyShares[p.GetId()] * float64(p.GetThreadPercentage()) / 100
				}
			}
			return busy
		},
		Cordoned: s.cordoned,
		Used:     func(model string) bool { return recorder.Rates(model, time.Now()).Window > 0 },
		Stage: func(ctx context.Context, model, dir string) (*tritonpb.ModelConfig, error) {
			files, err := store.Current()
			if err != nil {
				return nil, err
			}
			m := files.Model(model)
			if m == nil {
				return nil, fmt.Errorf("%w: no model is called %q in the repository", calibration.ErrRefused, model)
			}
			if err := m.Err(); err != nil {
				return nil, err
			}
			return m.Config, store.Stage(ctx, files.ID, []string{model}, dir)
		},
		Found: func(b *estimator.Bundle) { s.control.Calibrated(b) },
		Calibrated: func(model, gpuType string, share uint32, batches []warmup.Timed) {
			var samples []observe.Sample
			for _, b := range batches {
				samples = append(samples, observe.Sample{Rows: b.Rows, Duration: b.Duration})
			}
			recorder.Calibrated(model, gpuType, share, samples)
		},
	})
	return bundles, err
}

// cordoned reports whether nothing new may come to a GPU.
func (s *server) cordoned(gpu string) bool {
	_, cordoned := s.control.Look().Cordons[gpu]
	return cordoned
}

// scratchDriver starts the servers of scratch partitions; nil where conch starts none.
func (s *server) scratchDriver(o driver.ProcessOptions) (driver.Driver, error) {
	if s.config.Driver.Kind != config.DriverProcess {
		return nil, nil
	}
	// No later conch takes over a scratch server.
	o.Dir, o.OrphanGrace, o.Logger = filepath.Join(s.config.State, "calibration", "servers"), time.Second, s.log.With("part", "calibration")
	d, err := driver.NewProcesses(o)
	if err != nil {
		return nil, err
	}
	s.later(d.Close)
	return d, nil
}

// Calibrate implements admin.API.
func (d doors) Calibrate(ctx context.Context, r api.CalibrateRequest, progress func(api.CalibrateProgress)) (api.Calibrated, error) {
	o := calibration.Order{
		GPUType: r.GPUType, Shares: r.Shares, Disturbance: r.Disturbance, Limit: time.Duration(r.LimitSeconds * float64(time.Second)), Python: r.Python,
	}
	tell := func(p calibration.Progress) {
		progress(api.CalibrateProgress{Share: p.Share, Done: p.Done, All: p.All, What: p.What})
	}
	out := api.Calibrated{GPUType: r.GPUType}
	if r.Model != "" {
		shares, err := d.s.calibration.Model(ctx, r.Model, o, tell)
		for _, s := range shares {
			share := api.CalibratedShare{ThreadPercentage: s.Percentage}
			for _, b := range s.Batches {
				share.Batches = append(share.Batches, api.MeasuredBatch{Rows: b.Rows, Seconds: b.Duration.Seconds(), Repeats: b.Repeats})
			}
			out.Shares = append(out.Shares, share)
		}
		return out, calibrationError(err)
	}
	b, err := d.s.calibration.Device(ctx, o, tell)
	if err != nil {
		return out, calibrationError(err)
	}
	out.GPUType, out.Server, out.Measurements, out.Median, out.P90 = b.Sheet.Name, b.Server, b.Measurements+b.Shares, b.Median, b.P90
	out.Bundle, err = json.Marshal(b)
	return out, err
}

// VerifyMerge implements admin.API.
func (d doors) VerifyMerge(ctx context.Context, r api.MergeVerifyRequest, progress func(api.MergeProgress)) (api.MergeVerified, error) {
	if d.s.groups == nil {
		return api.MergeVerified{}, &api.Error{Code: api.CodeRefused, Message: "this conch has no repository of models to merge"}
	}
	o := merger.VerifyOptions{Bound: r.Bound, Open: r.Open, Seed: r.Seed}
	m, err := d.s.groups.Verify(ctx, r.Members, o, func(done, all int, what string) {
		progress(api.MergeProgress{Done: done, All: all, What: what})
	})
	var refused *merging.RefusedError
	switch {
	case errors.As(err, &refused):
		return api.MergeVerified{}, &api.Error{Code: api.CodeRefused, Message: err.Error()}
	case err != nil:
		return api.MergeVerified{}, &api.Error{Code: api.CodeUnavailable, Message: err.Error()}
	}
	return api.MergeVerified{
		Members: r.Members, Digest: m.Digest, Runner: m.Verification.Runner, Runs: m.Verification.Runs, MaxDifference: m.Verification.MaxDifference,
		Bound: m.Verification.Bound, SharedBytes: m.SharedBytes, MergedBytes: m.MergedBytes, SeparateBytes: m.SeparateBytes,
	}, nil
}

func calibrationError(err error) error {
	switch {
	case errors.Is(err, calibration.ErrRefused):
		return &api.Error{Code: api.CodeRefused, Message: err.Error()}
	case errors.Is(err, calibrate.ErrTimeIsUp), errors.Is(err, calibration.ErrTimeIsUp), errors.Is(err, calibration.ErrInUse):
		return &api.Error{Code: api.CodeUnavailable, Message: err.Error()}
	}
	return err
}

// machineClock is this machine's time.
type machineClock struct{}

func (machineClock) Now() time.Time { return time.Now() }

func (machineClock) Sleep(ctx context.Context, d time.Duration) error {
	sleep(ctx, d)
	return ctx.Err()
}
