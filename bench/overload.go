// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

const (
	// overloadCeiling is what the GPU can do, in req/s: a batch of 16 rows takes 180 ms.
	overloadCeiling = 16 / .180
	overloadSLO     = 500 * time.Millisecond
	// overloadLength of what counts of a load is long enough that a batch more or less at its ends is half a percent, overloadSeeds of arrivals there are.
	overloadLength = 30 * time.Second
	overloadSeeds  = 5
)

// overload offers conch multiples of what its emulated GPU can do: its goodput must stay near its peak and its memory flat. The model is slow
// enough that a few hundred requests a second are more than it can do, so that the load generator is never what limits.
func (b *bench) overload(ctx context.Context, r *figure.Report) (err error) {
	r.Emulated = "GPU time: one model of 10 ms a row and 20 ms a batch, on one emulated GPU: embedded in conch, in minitriton in the rows of triton, in a real tritonserver in those of policy"
	models := rig.Copies(zoo.Profile{Model: "overloaded", GPUType: zoo.A100, Alpha: 10 * time.Millisecond, Beta: 20 * time.Millisecond, SLO: overloadSLO}, 1, 1, 16)
	conch, err := rig.StartConch(ctx, rig.ConchOptions{
		Bin: b.bin, Models: models, GPUs: 1, Late: "drop",
		Settings: map[string]any{"limits": map[string]any{"queueRequests": 2000, "queueBytes": "64MiB"}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()

	peaks := map[uint64]float64{}
	var threefold, tenfold, memory, recovered []float64
	sustained := .9 * overloadCeiling
	for round := range b.roundsOr(overloadSeeds) {
		seed := b.seed + uint64(round) //nolint:gosec // few
		for _, of := range []float64{.9, 1, 1.2} {
			trial, err := b.offer(ctx, conch, models, of*overloadCeiling, seed)
			if err != nil {
				return err
			}
			peaks[seed] = max(peaks[seed], trial.Goodput())
		}
		three, err := b.offer(ctx, conch, models, 3*peaks[seed], seed)
		if err != nil {
			return err
		}
		// Only now has conch made more garbage than the collector lets lie. Before, its memory grows at any rate.
		if _, err := b.offer(ctx, conch, models, sustained, seed); err != nil {
			return err
		}
		resident, err := residentBytes(conch.Pid())
		if err != nil {
			return err
		}
		ten, err := b.offer(ctx, conch, models, 10*sustained, seed)
		if err != nil {
			return err
		}
		after, err := residentBytes(conch.Pid())
		if err != nil {
			return err
		}
		again, err := b.offer(ctx, conch, models, .6*overloadCeiling, seed)
		if err != nil {
			return err
		}
		threefold, tenfold = append(threefold, three.Goodput()/peaks[seed]), append(tenfold, ten.Goodput()/peaks[seed])
		memory, recovered = append(memory, float64(after)/float64(resident)), append(recovered, again.Goodput()/again.Offered())
	}
	var highest []float64
	for _, seed := range slices.Sorted(maps.Keys(peaks)) {
		highest = append(highest, peaks[seed])
	}
	r.AddRuns("overload.peak_goodput", highest, "req/s", fmt.Sprintf("the best of offered loads from .9 to 1.2 of what the GPU can do, which is %.1f", overloadCeiling))
	r.AddRuns("overload.goodput_ratio_3x", threefold, "ratio", "goodput at three times the peak over the peak")
	r.AddRuns("overload.goodput_ratio_10x", tenfold, "ratio", "goodput at ten times nine tenths of what the GPU can do, over the peak")
	r.AddRuns("overload.rss_ratio_10x", memory, "ratio", "resident memory after that, over that at nine tenths right before, when the heap had grown to the collector's bound")
	r.AddRuns("overload.recovered_ratio", recovered, "ratio", "goodput over the offered load at 0.6 of what the GPU can do, right after")
	if err := b.overloadTriton(ctx, r, models, peaks); err != nil {
		return err
	}
	return b.overloadPolicy(ctx, r, models, peaks)
}

// overloadTimeout is for how long a request may wait by the queue policy of the model with timeouts.
const overloadTimeout = overloadSLO / 2

// overloadPolicy compares, on real tritonservers, who keeps the queue policy of the model's config.pbtxt: Triton's own queue, or Conch's.
func (b *bench) overloadPolicy(ctx context.Context, r *figure.Report, models rig.Models, peaks map[uint64]float64) (err error) {
	if b.server == "" {
		b.say("no tritonserver: queue policies are not compared (--tritonserver)")
		return nil
	}
	policy := &zoo.DynamicBatching{QueueTimeout: overloadTimeout}
	tritons, err := rig.StartTritons(ctx, rig.TritonOptions{Server: b.server, Models: models, GPUs: 1, Dynamic: policy})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tritons.Close()) }()
	conch, err := rig.StartConch(ctx, rig.ConchOptions{Bin: b.bin, Server: b.server, Models: models, GPUs: 1, Late: "drop", Dynamic: policy})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	var own, kept, over []float64
	for _, seed := range slices.Sorted(maps.Keys(peaks)) {
		triton, err := b.offer(ctx, tritons, models, 3*peaks[seed], seed)
		if err != nil {
			return err
		}
		trial, err := b.offer(ctx, conch, models, 3*peaks[seed], seed)
		if err != nil {
			return err
		}
		own, kept = append(own, triton.Goodput()/peaks[seed]), append(kept, trial.Goodput()/peaks[seed])
		over = append(over, trial.Goodput()/triton.Goodput())
	}
	r.AddRuns("overload.policy.goodput_ratio_3x", kept, "ratio", "goodput at three times the peak over the peak, real tritonserver, a queue policy that refuses after half of the SLO, kept by Conch")
	r.AddRuns("overload.policy.triton.goodput_ratio_3x", own, "ratio", "the same kept by Triton's own queue, without Conch")
	r.AddRuns("overload.policy.over_triton", over, "ratio", "the former over the latter")
	return nil
}

// overloadTriton offers the same to the same emulated GPU without Conch: with Triton's dynamic batching, which gives nobody up, and with its queue policy
// that refuses whoever has waited for most of the SLO.
func (b *bench) overloadTriton(ctx context.Context, r *figure.Report, models rig.Models, peaks map[uint64]float64) error {
	for _, c := range []struct {
		name, note string
		dynamic    zoo.DynamicBatching
	}{
		{"triton", "dynamic batching", zoo.DynamicBatching{}},
		{"triton_timeout", "dynamic batching, and a queue policy that refuses after half of the SLO", zoo.DynamicBatching{QueueTimeout: overloadTimeout}},
	} {
		tritons, err := rig.StartTritons(ctx, rig.TritonOptions{Models: models, GPUs: 1, Dynamic: &c.dynamic})
		if err != nil {
			return err
		}
		var ratios []float64
		for _, seed := range slices.Sorted(maps.Keys(peaks)) {
			trial, err := b.offer(ctx, tritons, models, 3*peaks[seed], seed)
			if err != nil {
				return errors.Join(err, tritons.Close())
			}
			ratios = append(ratios, trial.Goodput()/peaks[seed])
		}
		if err := tritons.Close(); err != nil {
			return err
		}
		r.AddRuns("overload."+c.name+".goodput_ratio_3x", ratios, "ratio", "goodput at three times Conch's peak over that peak, without Conch: "+c.note)
	}
	return nil
}

// offer offers a rate to what serves the overloaded model.
func (b *bench) offer(ctx context.Context, s rig.System, models rig.Models, rate float64, seed uint64) (*rig.Trial, error) {
	length := overloadLength
	if b.quick {
		length /= 5
	}
	trial, err := rig.Measure(ctx, s, loadgen.Load{Models: models.Load(), Rate: rate, Warmup: 2 * time.Second, Measure: length, Patience: 2 * time.Second, Seed: seed})
	if err != nil {
		return nil, err
	}
	if _, wrong, first := trial.Faults(); wrong > 0 {
		return nil, fmt.Errorf("%d wrong answers, the first: %w", wrong, first)
	}
	b.say(fmt.Sprintf("%.0f req/s offered: goodput %.1f req/s, mean batch %.1f, GPU busy %.0f%%; sleeps of this process end up to %v late",
		rate, trial.Goodput(), trial.MeanBatch, 100*trial.BusyShare, trial.Lateness.Round(100*time.Microsecond)))
	return trial, nil
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
