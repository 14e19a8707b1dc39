// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/loadgen"
)

// System is what is measured: Tritons or a Conch.
type System interface {
	Endpoints() []string
	// Serving lists, for each model, the indexes of the endpoints that serve it; nil means that all of them serve every model.
	Serving() [][]int
	// Affine says that callers send a model's requests to the first of its endpoints while that has no more than a fair share of what is outstanding.
	Affine() bool
	Usage(ctx context.Context) (Usage, error)
	BusyShare(u Usage, over time.Duration) float64
}

// Trial is what a system made of one load.
type Trial struct {
	*loadgen.Result
	// MeanBatch is rows per execution, BusyShare the part of the time that the GPUs executed something.
	MeanBatch, BusyShare float64
	// Lateness is by how much sleeps of this process ended late meanwhile, 99th percentile: what the machine alone adds to latencies.
	Lateness time.Duration
}

// Measure offers the load to the system, in rows of 16 elements.
func Measure(ctx context.Context, s System, l loadgen.Load) (*Trial, error) {
	return measure(ctx, s, l, loadgen.Emulated(16))
}

func measure(ctx context.Context, s System, l loadgen.Load, row loadgen.Tensor) (*Trial, error) {
	if serving := s.Serving(); serving != nil {
		l.Models = slices.Clone(l.Models)
		for i := range l.Models {
			l.Models[i].Endpoints, l.Models[i].Affine = serving[i], s.Affine()
		}
	}
	caller, err := loadgen.NewGRPC(s.Endpoints(), l.Models, row)
	if err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	defer caller.Close()
	before, err := s.Usage(ctx)
	if err != nil {
		return nil, err
	}
	lateness := watchLateness()
	start := time.Now()
	result, err := loadgen.Run(ctx, l, caller, clock.System())
	elapsed, late := time.Since(start), lateness()
	if err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	after, err := s.Usage(ctx)
	if err != nil {
		return nil, err
	}
	used := after.Since(before)
	return &Trial{Result: result, MeanBatch: used.MeanBatch(), BusyShare: s.BusyShare(used, elapsed), Lateness: late}, nil
}

// watchLateness sleeps over and over for two milliseconds until the function that it returns is called, which says how late the sleeps
// ended.
func watchLateness() (stop func() time.Duration) {
	const nap = 2 * time.Millisecond
	machine := clock.System()
	quit, done := make(chan struct{}), make(chan time.Duration)
	go func() {
		var late []time.Duration
		for {
			before := machine.Now()
			machine.Sleep(nap)
			late = append(late, machine.Now().Sub(before)-nap)
			select {
			case <-quit:
				slices.Sort(late)
				done <- late[len(late)*99/100]
				return
			default:
			}
		}
	}()
	return func() time.Duration {
		close(quit)
		return <-done
	}
}
