// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

const (
	// disturbedFor is how long busy loops take the cores, from the first request on.
	disturbedFor = 6 * time.Second
	// settleFor is how long after that nothing counts.
	settleFor = 20 * time.Second
	// disturbedRate is offered meanwhile and after, in req/s of all eight models.
	disturbedRate = 150
	// loopsPerCore are the busy loops of a disturbance.
	loopsPerCore = 2
)

// disturbed compares a conch whose first seconds were disturbed with one that was left alone: eight models on four GPUs, under load from the
// moment at which it is ready. What it learns of the models in these seconds is wrong.
func (b *bench) disturbed(ctx context.Context, r *figure.Report, p zoo.Profile) error {
	if !strings.Contains("live.disturbed", b.only) {
		return nil
	}
	s := liveScenario{name: "disturbed", models: 8, gpus: 4, measure: 20 * time.Second}
	c := b.contest(s, p)
	c.Warmup = disturbedFor + settleFor
	var quiet, disturbed, ratios []float64
	for round := range b.roundsOr(2) {
		c.Seed = b.seed + uint64(round)
		alone, err := startUnderLoad(ctx, c, nil)
		if err != nil {
			return fmt.Errorf("live.disturbed, left alone: %w", err)
		}
		after, err := startUnderLoad(ctx, c, busyLoops)
		if err != nil {
			return fmt.Errorf("live.disturbed: %w", err)
		}
		quiet, disturbed, ratios = append(quiet, alone.Goodput()), append(disturbed, after.Goodput()), append(ratios, after.Goodput()/alone.Goodput())
	}
	note := fmt.Sprintf("%d models on %d GPUs, %d req/s from the start on; %d busy loops for %v; goodput from %v after that on", s.models, s.gpus, disturbedRate, loopsPerCore*runtime.NumCPU(), disturbedFor, settleFor)
	r.AddRuns("live.disturbed.goodput_ratio", ratios, "ratio", "disturbed over left alone; "+note)
	r.AddRuns("live.disturbed.goodput", disturbed, "req/s", note)
	r.AddRuns("live.disturbed.quiet_goodput", quiet, "req/s", "the same without busy loops")
	return nil
}

// startUnderLoad starts conch and offers it the load at once, disturbed by what disturb starts, if anything.
func startUnderLoad(ctx context.Context, c *rig.Contest, disturb func(context.Context) (wait func() error, err error)) (_ rig.Standing, err error) {
	setup := rig.ConchSetup{}
	conch, err := setup.Start(ctx, c)
	if err != nil {
		return rig.Standing{}, err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	if disturb != nil {
		wait, err := disturb(ctx)
		if err != nil {
			return rig.Standing{}, err
		}
		defer func() { err = errors.Join(err, wait()) }()
	}
	return c.TrialOf(ctx, setup, conch, disturbedRate)
}

// busyLoops starts a process of busy loops.
func busyLoops(ctx context.Context) (wait func() error, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	busy := exec.CommandContext(ctx, program, "spin", disturbedFor.String())
	busy.Stderr = os.Stderr
	if err := busy.Start(); err != nil {
		return nil, fmt.Errorf("busy loops: %w", err)
	}
	return busy.Wait, nil
}

// spinCommand keeps every core busy for a while.
func spinCommand() *cobra.Command {
	return &cobra.Command{
		Use: "spin DURATION", Short: "Busy loops on every core, for measurements of disturbances", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			d, err := time.ParseDuration(args[0])
			if err != nil || d <= 0 {
				return fmt.Errorf("%q is no time to be busy for, such as 6s", args[0])
			}
			loops := loopsPerCore * runtime.NumCPU()
			runtime.GOMAXPROCS(loops) // a thread each, as processes of others have
			end := time.Now().Add(d)
			var all sync.WaitGroup
			for range loops {
				all.Go(func() {
					for time.Now().Before(end) {
					}
				})
			}
			all.Wait()
			return nil
		},
	}
}
