// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/pymodels"
	"github.com/conch-serving/conch/sidecar/apply/mps"
)

// gpuNetworks are what a real GPU executes (internal/pymodels/torch), gpuRows the batches.
var (
	gpuNetworks = []string{"resnet50", "encoder"}
	gpuRows     = []int{1, 2, 4, 8, 16, 32}
)

const (
	// gpuAtOnce is the most executions at once that are measured, in streams of a process and in processes.
	gpuAtOnce = 8
	// gpuMoment is for how long each cell is measured.
	gpuMoment = 300 * time.Millisecond
)

// gpu measures one real GPU: l(b) of two networks, what executions at once bring in streams of a process and in processes with and without MPS, l(b, share)
// and pairs of shares side by side under MPS.
func (b *bench) gpu(ctx context.Context, r *figure.Report) error {
	g := &gpuBench{bench: b, r: r, alone: map[gpuAlone]float64{}}
	if err := g.describe(ctx); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "conch-gpu-")
	if err != nil {
		return fmt.Errorf("gpu: %w", err)
	}
	defer os.RemoveAll(dir)
	g.dir = dir
	if err := g.streams(ctx); err != nil {
		return fmt.Errorf("gpu: executions in streams: %w", err)
	}
	if err := g.processes(ctx, "turns", nil); err != nil {
		return fmt.Errorf("gpu: processes without MPS: %w", err)
	}
	daemon, stop, err := g.startMPS(ctx)
	if err != nil {
		b.say(fmt.Sprintf("no shares are measured: %v", err))
		r.Versions["mps"] = "none: " + err.Error()
		return nil
	}
	defer stop()
	r.Versions["mps"] = fmt.Sprintf("control daemon of the driver, default thread percentage %g", daemon.ThreadPercentage)
	if err := g.processes(ctx, "mps", g.share(daemon, 100)); err != nil {
		return fmt.Errorf("gpu: processes with MPS: %w", err)
	}
	if err := g.shares(ctx, daemon); err != nil {
		return fmt.Errorf("gpu: shares: %w", err)
	}
	return nil
}

// gpuBench is one run of [bench.gpu].
type gpuBench struct {
	*bench
	r   *figure.Report
	dir string
	// alone has what a worker executes a second when no other does.
	alone map[gpuAlone]float64
}

// gpuAlone is what one worker was measured with by itself.
type gpuAlone struct {
	worker  *gpuWorker
	network string
	rows    int
}

// describe has what GPU this is in the report.
func (g *gpuBench) describe(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=name,driver_version,memory.total,mig.mode.current", "--format=csv,noheader").Output()
	if err != nil {
		return fmt.Errorf("gpu: this command needs an NVIDIA GPU, its driver, and a python3 with PyTorch and torchvision: nvidia-smi: %w", err)
	}
	g.r.Versions["gpu"] = strings.TrimSpace(string(out))
	return nil
}

// startMPS starts a control daemon in a directory of its own; stop ends it.
func (g *gpuBench) startMPS(ctx context.Context) (daemon mps.Daemon, stop func(), err error) {
	pipes := filepath.Join(g.dir, "mps")
	if err := os.MkdirAll(pipes, 0o700); err != nil {
		return mps.Daemon{}, nil, fmt.Errorf("gpu: %w", err)
	}
	command := func(ctx context.Context, arguments ...string) *exec.Cmd {
		c := exec.CommandContext(ctx, mps.ControlProgram, arguments...)
		c.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+pipes, "CUDA_MPS_LOG_DIRECTORY="+pipes)
		return c
	}
	if err := command(ctx, "-d").Run(); err != nil {
		return mps.Daemon{}, nil, fmt.Errorf("%s -d: %w", mps.ControlProgram, err)
	}
	stop = func() {
		quit := command(context.WithoutCancel(ctx))
		quit.Stdin = strings.NewReader("quit\n")
		if err := quit.Run(); err != nil {
			g.say(fmt.Sprintf("the MPS control daemon does not end: %v", err))
		}
	}
	for range 50 {
		if daemon = mps.Detect(ctx, pipes, ""); daemon.Running {
			return daemon, stop, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	stop()
	return daemon, nil, errors.New(daemon.Reason)
}

// share is the environment of a process with this share of the GPU.
func (*gpuBench) share(daemon mps.Daemon, percentage int) []string {
	return []string{"CUDA_MPS_PIPE_DIRECTORY=" + daemon.PipeDirectory, fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", percentage)}
}

// streams measures executions one after the other, and several at a time in streams of one process.
func (g *gpuBench) streams(ctx context.Context) error {
	workers, err := g.start(ctx, gpuAtOnce, nil)
	if err != nil {
		return err
	}
	defer workers.stop()
	w := workers[0]
	for _, network := range gpuNetworks {
		latency := map[int]float64{}
		for _, rows := range gpuRows {
			a, err := w.ask(gpuQuestion{Do: "alone", Network: network, Rows: rows, Seconds: gpuMoment.Seconds()})
			if err != nil {
				return err
			}
			latency[rows] = a.MS
			g.add(fmt.Sprintf("gpu.%s.alone.b%d_ms", network, rows), a.MS, "ms", fmt.Sprintf("median of %d executions one after the other, 99th percentile %.3g", a.N, a.P99MS))
		}
		for _, rows := range gpuRows {
			for _, k := range []int{1, 2, 4, gpuAtOnce} {
				a, err := w.ask(gpuQuestion{Do: "streams", Network: network, Rows: rows, Seconds: gpuMoment.Seconds(), Streams: k})
				if err != nil {
					return err
				}
				cell := fmt.Sprintf("gpu.%s.streams%d.b%d", network, k, rows)
				g.add(cell+"_gain", a.PerSecond*latency[rows]/1e3, "ratio", fmt.Sprintf("executions a second with %d at a time, each in a stream of its own, over one after the other; one takes %.3g ms", k, a.MS))
			}
		}
	}
	return nil
}

// processes measures executions at once in processes of their own, as Triton's python backend has one for every instance.
func (g *gpuBench) processes(ctx context.Context, how string, environment []string) error {
	environments := make([][]string, gpuAtOnce)
	for i := range environments {
		environments[i] = environment
	}
	workers, err := g.start(ctx, 1, environments...)
	if err != nil {
		return err
	}
	defer workers.stop()
	for _, network := range gpuNetworks {
		for _, rows := range []int{1, 8, 32} {
			var alone float64
			for _, k := range []int{1, 2, 4, gpuAtOnce} {
				var all []gpuQuestion
				for range k {
					all = append(all, gpuQuestion{Network: network, Rows: rows})
				}
				answers, err := workers.beside(all...)
				if err != nil {
					return err
				}
				sum := 0.
				for _, a := range answers {
					sum += a.PerSecond
				}
				if k == 1 {
					alone = sum
					continue
				}
				g.add(fmt.Sprintf("gpu.%s.%s%d.b%d_gain", network, how, k, rows), sum/alone, "ratio", fmt.Sprintf("executions a second of %d processes side by side over one alone (%.4g)", k, alone))
			}
		}
	}
	return nil
}

// shares measures l(b, share), and networks side by side that have parts of the GPU.
func (g *gpuBench) shares(ctx context.Context, daemon mps.Daemon) error {
	list := []int{10, 20, 40, 50, 60, 80, 100}
	again := map[int]int{50: len(list), 100: len(list) + 1} // the second worker of a share that a pair has twice
	var environments [][]string
	for _, s := range append(slices.Clone(list), 50, 100) {
		environments = append(environments, g.share(daemon, s))
	}
	workers, err := g.start(ctx, 1, environments...)
	if err != nil {
		return err
	}
	defer workers.stop()
	for i, s := range list {
		a, err := workers[i].ask(gpuQuestion{Do: "sms"})
		if err != nil {
			return err
		}
		g.add(fmt.Sprintf("gpu.share%d.sms", s), float64(a.SMs), "multiprocessors", "that a process with this thread percentage may use")
		for _, network := range gpuNetworks {
			for _, rows := range gpuRows {
				a, err := workers[i].ask(gpuQuestion{Do: "alone", Network: network, Rows: rows, Seconds: gpuMoment.Seconds() / 2})
				if err != nil {
					return err
				}
				g.add(fmt.Sprintf("gpu.%s.share%d.b%d_ms", network, s, rows), a.MS, "ms", fmt.Sprintf("median of %d executions one after the other under MPS", a.N))
			}
		}
	}
	for _, pair := range [][2]string{{"resnet50", "encoder"}, {"resnet50", "resnet50"}, {"encoder", "encoder"}} {
		for _, s := range []int{20, 40, 50, 60, 80, 100} {
			other := 100 - s
			if s == 100 {
				other = 100
			}
			if pair[0] == pair[1] && s != 50 && s != 100 {
				continue
			}
			second := slices.Index(list, other)
			if s == other {
				second = again[other]
			}
			for _, rows := range [][2]int{{1, 1}, {8, 8}, {32, 32}, {8, 32}, {32, 8}} {
				if err := g.pair(gpuWorkers{workers[slices.Index(list, s)], workers[second]}, pair, rows, fmt.Sprintf("gpu.beside.%s_%d.%s_%d", pair[0], s, pair[1], other)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// pair measures two networks side by side, and each alone with the same share.
func (g *gpuBench) pair(workers gpuWorkers, networks [2]string, rows [2]int, name string) error {
	var alone [2]float64
	for i := range workers {
		key := gpuAlone{workers[i], networks[i], rows[i]}
		if g.alone[key] == 0 {
			a, err := gpuWorkers{workers[i]}.beside(gpuQuestion{Network: networks[i], Rows: rows[i]})
			if err != nil {
				return err
			}
			g.alone[key] = a[0].PerSecond
		}
		alone[i] = g.alone[key]
	}
	both, err := workers.beside(gpuQuestion{Network: networks[0], Rows: rows[0]}, gpuQuestion{Network: networks[1], Rows: rows[1]})
	if err != nil {
		return err
	}
	for i, a := range both {
		g.add(fmt.Sprintf("%s.b%d_b%d.kept%d", name, rows[0], rows[1], i+1), a.PerSecond/alone[i], "ratio",
			fmt.Sprintf("executions a second of %s beside the other, over those alone with the same share (%.4g)", networks[i], alone[i]))
	}
	return nil
}

func (g *gpuBench) add(name string, value float64, unit, note string) {
	g.r.Add(name, value, unit, note)
	g.say(fmt.Sprintf("%s %s %s (%s)", name, figure.Number(value), unit, note))
}

// start starts a worker with each of the environments, with so many instances of each network, all at the same time.
func (g *gpuBench) start(ctx context.Context, instances int, environments ...[]string) (gpuWorkers, error) {
	program := filepath.Join(g.dir, "worker.py")
	err := os.WriteFile(program, pymodels.TorchWorker, 0o600)
	for name, module := range pymodels.TorchModules() {
		err = errors.Join(err, os.WriteFile(filepath.Join(g.dir, name), module, 0o600))
	}
	if err != nil {
		return nil, fmt.Errorf("gpu: %w", err)
	}
	var all gpuWorkers
	for _, environment := range environments {
		w, err := startGPUWorker(ctx, program, instances, environment)
		if err != nil {
			all.stop()
			return nil, err
		}
		all = append(all, w)
	}
	for _, w := range all {
		a, err := w.answer()
		if err != nil {
			all.stop()
			return nil, err
		}
		g.r.Versions["torch"] = a.Torch
	}
	return all, nil
}
