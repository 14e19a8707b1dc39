// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/calibration"
	"github.com/conch-serving/conch/sidecar/component/servers"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/observe"
)

// Options of NewCalibration and NewGroups.
type Options struct {
	Config *config.Config
	Node   *policy.Node
	Store  *repo.Store
	// Servers start scratch partitions, where they start any.
	Servers  *servers.Servers
	Recorder *observe.Recorder
	// Look shows the plan way, and Calibrated is told of a bundle for a device.
	Look       func() control.Look
	Calibrated func(*estimator.Bundle)
	Log        *slog.Logger
}

// cordoned reports whether nothing new may come to a GPU.
func (o Options) cordoned(gpu string) bool {
	_, cordoned := o.Look().Cordons[gpu]
	return cordoned
}

// NewCalibration makes what executes orders to measure, and returns the bundles of
// earlier orders.
func NewCalibration(ctx context.Context, o Options) (*calibration.Calibration, []*estimator.Bundle, error) {
	return calibration.New(ctx, calibration.Options{
		Driver: o.Servers.Scratch, Dir: filepath.Join(o.Config.State, "calibration"), Nodes: []*policy.Node{o.Node}, Clock: clock.Interruptible{}, Logger: o.Log.With("part", "calibration"),
		Busy: func(gpu string) float64 {
			l := o.Look()
			busy := 0.0
			for _, p := range l.Plan.GetPartitions() {
				if p.GPU() == gpu {
					busy += l.BusyShares[p.GetId()] * float64(p.GetThreadPercentage()) / 100
				}
			}
			return busy
		},
		Cordoned: o.cordoned,
		Used:     func(model string) bool { return o.Recorder.Rates(model, time.Now()).Window > 0 },
		Stage: func(ctx context.Context, model, dir string) (*tritonpb.ModelConfig, error) {
			files, err := o.Store.Current()
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
			return m.Config, o.Store.Stage(ctx, files.ID, []string{model}, dir)
		},
		Found: o.Calibrated,
		Calibrated: func(model, gpuType string, share uint32, batches []warmup.Timed) {
			var samples []observe.Sample
			for _, b := range batches {
				samples = append(samples, observe.Sample{Rows: b.Rows, Duration: b.Duration})
			}
			o.Recorder.Calibrated(model, gpuType, share, samples)
		},
	})
}
