// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

// overload offers conch multiples of what its emulated GPU can do: its goodput must stay near its peak and its memory flat. The model is slow
// enough that a few hundred requests a second are more than it can do, so that the load generator is never what limits.
func (b *bench) overload(ctx context.Context, r *figure.Report) (err error) {
	r.Emulated = "GPU time: one model of 10 ms a row and 20 ms a batch, on one emulated GPU, embedded in conch"
	models := rig.Copies(zoo.Profile{Model: "overloaded", GPUType: zoo.A100, Alpha: 10 * time.Millisecond, Beta: 20 * time.Millisecond, SLO: 500 * time.Millisecond}, 1, 1, 16)
	conch, err := rig.StartConch(ctx, rig.ConchOptions{
		Bin: b.bin, Models: models, GPUs: 1, Late: "drop",
		Settings: map[string]any{"limits": map[string]any{"queueRequests": 2000, "queueBytes": "64MiB"}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()

	const length, warm = 5 * time.Second, 2 * time.Second
	measure := func(rate float64) (trial *rig.Trial, resident int, err error) {
		trial, err = rig.Measure(ctx, conch, loadgen.Load{Models: models.Load(), Rate: rate, Warmup: warm, Measure: length, Patience: 2 * time.Second, Seed: b.seed})
		if err != nil {
			return nil, 0, err
		}
		if _, wrong, first := trial.Faults(); wrong > 0 {
			return nil, 0, fmt.Errorf("%d wrong answers, the first: %w", wrong, first)
		}
		if resident, err = residentBytes(conch.Pid()); err != nil {
			return nil, 0, err
		}
		late := float64(trial.Models[0].Late) / length.Seconds()
		b.say(fmt.Sprintf("%.0f req/s offered: goodput %.0f req/s, %.0f late, mean batch %.1f, GPU busy %.0f%%, %d MiB resident; sleeps of this process end up to %v late",
			rate, trial.Goodput(), late, trial.MeanBatch, 100*trial.BusyShare, resident>>20, trial.Lateness.Round(100*time.Microsecond)))
		return trial, resident, nil
	}
	// A batch of 16 rows takes 180 ms: 89 a second are the most.
	const ceiling = 16 / 0.180
	peak, sustained := 0.0, 0.0
	for _, of := range []float64{0.6, 0.8, 0.9, 1, 1.2} {
		trial, _, err := measure(of * ceiling)
		if err != nil {
			return err
		}
		peak = max(peak, trial.Goodput())
		if trial.Bad() <= rig.Limit || sustained == 0 {
			sustained = of * ceiling
		}
	}
	var threefold []float64
	for range b.roundsOr(3) {
		trial, _, err := measure(3 * peak)
		if err != nil {
			return err
		}
		threefold = append(threefold, trial.Goodput()/peak)
	}
	// Only now has conch made more garbage than the collector lets lie. Before, its memory grows at any rate, and a comparison with it would say
	// nothing about this one.
	_, resident, err := measure(sustained)
	if err != nil {
		return err
	}
	ten, tenfold, err := measure(10 * sustained)
	if err != nil {
		return err
	}
	after, _, err := measure(0.6 * ceiling)
	if err != nil {
		return err
	}
	r.AddRuns("overload.peak_goodput", []float64{peak}, "req/s", "the best of offered loads from 0.6 to 1.2 of what the GPU can do")
	r.AddRuns("overload.goodput_ratio_3x", threefold, "ratio", "goodput at three times the peak over the peak")
	r.AddRuns("overload.goodput_ratio_10x", []float64{ten.Goodput() / peak}, "ratio", "goodput at ten times the highest rate that was sustained over the peak")
	r.AddRuns("overload.rss_ratio_10x", []float64{float64(tenfold) / float64(resident)}, "ratio",
		"resident memory at ten times the highest rate that was sustained over that at this rate right before, when the heap had grown to the collector's bound")
	r.AddRuns("overload.recovered_ratio", []float64{after.Goodput() / after.Offered()}, "ratio", "goodput over the offered load at 0.6 of what the GPU can do, right after")
	return nil
}

// residentBytes is how much memory of a process is resident.
func residentBytes(pid int) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("memory of conch: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if after, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			if fields := strings.Fields(after); len(fields) > 0 {
				kib, err := strconv.Atoi(fields[0])
				return kib << 10, err
			}
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no VmRSS", pid)
}
