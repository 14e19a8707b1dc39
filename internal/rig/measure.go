// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"time"

	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/minitriton"
)

// System is what is measured: Tritons or a Conch.
type System interface {
	Endpoints() []string
	Usage(ctx context.Context) (Usage, error)
	BusyShare(u Usage, over time.Duration) float64
}

// Trial is what a system made of one load.
type Trial struct {
	*loadgen.Result
	// MeanBatch is rows per execution, BusyShare the part of the time that the GPUs executed something.
	MeanBatch, BusyShare float64
}

// Measure offers the load to the system.
func Measure(ctx context.Context, s System, l loadgen.Load) (*Trial, error) {
	caller, err := loadgen.NewGRPC(s.Endpoints(), l.Models, loadgen.Emulated(16))
	if err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	defer caller.Close()
	before, err := s.Usage(ctx)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	result, err := loadgen.Run(ctx, l, caller, minitriton.SystemClock())
	if err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	elapsed := time.Since(start)
	after, err := s.Usage(ctx)
	if err != nil {
		return nil, err
	}
	used := after.Since(before)
	return &Trial{Result: result, MeanBatch: used.MeanBatch(), BusyShare: s.BusyShare(used, elapsed)}, nil
}
