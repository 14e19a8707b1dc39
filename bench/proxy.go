// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/pymodels"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

// payload is a size of request that is measured: one row of FP32.
type payload struct {
	name     string
	elements int
}

var payloads = []payload{{"1KB", 256}, {"600KB", 150 * 1024}}

// trialTime is how long each way is measured before it is the next one's turn.
const trialTime = time.Second

// way is one way to the server.
type way struct {
	name, grpc, http string
	pids             pids
}

// The ways, in the order of their turns.
const (
	straight = iota
	forwarded
	libraries
	through
)

// proxy measures a call straight to a server that takes no time, through a plain TCP forwarder, through a proxy of nothing but the libraries
// that conch is made with, and through conch, in turns, each in a process of its own.
func (b *bench) proxy(ctx context.Context, r *figure.Report) (err error) {
	defer runtime.KeepAlive(slack())
	r.Emulated = "the server: minitriton with a model that takes no time, in a process of its own"
	directory, err := os.MkdirTemp("", "conch-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	launcher, err := writeLauncher(directory, program)
	if err != nil {
		return err
	}
	repository := filepath.Join(directory, "models")
	for _, p := range payloads {
		model := zoo.Model{Name: p.name, Profile: zoo.Profile{Model: p.name, GPUType: zoo.A100, SLO: time.Second}, MaxBatchSize: 64, Dims: []int64{int64(p.elements)}, ModelPy: pymodels.Emulate}
		if err := zoo.Write(repository, model); err != nil {
			return err
		}
	}
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conch, err := rig.StartConch(starting, rig.ConchOptions{
		Bin: b.bin, Repository: repository, GPUs: 1, Server: launcher,
		// A discipline that defers would have every caller wait for others: that is not the cost of the path.
		Settings: map[string]any{"defaults": map[string]any{"discipline": "eager", "slo": "1s"}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	server, err := partition(ctx, conch)
	if err != nil {
		return err
	}
	forwarder, err := startPeer(ctx, program, "forward", server.GRPC, server.HTTP)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, forwarder.Close()) }()
	library, err := startPeer(ctx, program, "library", server.GRPC, server.HTTP)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, library.Close()) }()
	own := os.Getpid()
	served, err := serverPID(directory)
	if err != nil {
		return err
	}
	ways := make([]way, 4)
	ways[straight] = way{"straight", server.GRPC, server.HTTP, pids{own, 0, served}}
	ways[forwarded] = way{"forwarder", forwarder.Addresses[0], forwarder.Addresses[1], pids{own, forwarder.Pid(), served}}
	ways[libraries] = way{"libraries", library.Addresses[0], library.Addresses[1], pids{own, library.Pid(), served}}
	ways[through] = way{"conch", conch.GRPC, conch.HTTP, pids{own, conch.Pid(), served}}
	for _, protocol := range []string{"grpc", "http"} {
		for _, p := range payloads {
			for _, callers := range []int{1, 64} {
				if err := b.compare(ctx, r, conch, ways, protocol, p, callers); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// partition is where conch's only partition is reached.
func partition(ctx context.Context, conch *rig.Conch) (client.Partition, error) {
	admin, err := client.New(conch.Admin)
	if err != nil {
		return client.Partition{}, err
	}
	defer admin.Close()
	gpus, err := admin.GPUs(ctx)
	if err != nil {
		return client.Partition{}, err
	}
	if len(gpus) != 1 || len(gpus[0].Partitions) != 1 {
		return client.Partition{}, fmt.Errorf("conch has %d GPUs; one with one partition was asked for", len(gpus))
	}
	return gpus[0].Partitions[0], nil
}

// compare measures one kind of call on all ways, in turns.
func (b *bench) compare(ctx context.Context, r *figure.Report, conch *rig.Conch, ways []way, protocol string, p payload, callers int) error {
	name := fmt.Sprintf("proxy.%s.%s.c%d", protocol, p.name, callers)
	if !strings.Contains(name, b.only) {
		return nil
	}
	calls := make([]loadgen.Caller, len(ways))
	for i, w := range ways {
		c, closeCaller, err := b.caller(protocol, w.grpc, w.http, p, callers)
		if err != nil {
			return err
		}
		defer closeCaller()
		calls[i] = c
	}
	var p50, perSecond [through + 1][]float64
	var cost spending
	var times [through + 1]account
	clock := minitriton.SystemClock()
	length := 200 * time.Millisecond // the first round only warms up
	for range b.roundsOr(7) + 1 {
		for i, w := range ways {
			before, err := readRuntime(ctx, conch)
			if err != nil {
				return err
			}
			timesBefore, err := w.pids.processorTime()
			if err != nil {
				return err
			}
			got, err := loadgen.Closed(ctx, callers, length, calls[i], clock)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			if length != trialTime {
				continue
			}
			timesAfter, err := w.pids.processorTime()
			if err != nil {
				return err
			}
			times[i].add(timesBefore, timesAfter, got.Calls)
			p50[i] = append(p50[i], float64(got.Quantile(0.5))/float64(time.Microsecond))
			perSecond[i] = append(perSecond[i], got.PerSecond())
			if i == through {
				after, err := readRuntime(ctx, conch)
				if err != nil {
					return err
				}
				cost.add(before, after, got.Calls)
			}
		}
		length = trialTime
	}
	var added, forwarderAdded, librariesAdded, addedRatio, ratio, forwarderRatio, toForwarder, librariesToForwarder []float64
	for i := range p50[straight] {
		added = append(added, p50[through][i]-p50[straight][i])
		forwarderAdded = append(forwarderAdded, p50[forwarded][i]-p50[straight][i])
		librariesAdded = append(librariesAdded, p50[libraries][i]-p50[straight][i])
		addedRatio = append(addedRatio, added[i]/forwarderAdded[i])
		ratio = append(ratio, perSecond[through][i]/perSecond[straight][i])
		forwarderRatio = append(forwarderRatio, perSecond[forwarded][i]/perSecond[straight][i])
		toForwarder = append(toForwarder, perSecond[through][i]/perSecond[forwarded][i])
		librariesToForwarder = append(librariesToForwarder, perSecond[libraries][i]/perSecond[forwarded][i])
	}
	if callers == 1 {
		r.AddRuns(name+".added_to_forwarder", addedRatio, "ratio", "median latency that conch adds over what the forwarder adds, in turns")
		r.AddRuns(name+".added_p50_us", added, "us", "median latency through conch less straight")
		r.AddRuns(name+".forwarder_added_p50_us", forwarderAdded, "us", "median latency through the forwarder less straight")
		r.AddRuns(name+".libraries_added_p50_us", librariesAdded, "us", "median latency through a proxy of nothing but the libraries less straight")
		r.AddRuns(name+".straight_p50_us", p50[straight], "us", "")
	} else {
		r.AddRuns(name+".throughput_to_forwarder", toForwarder, "ratio", "calls per second through conch over through the forwarder, in turns")
		r.AddRuns(name+".libraries_to_forwarder", librariesToForwarder, "ratio", "calls per second through a proxy of nothing but the libraries over through the forwarder")
		r.AddRuns(name+".throughput_ratio", ratio, "ratio", "calls per second through conch over straight")
		r.AddRuns(name+".forwarder_throughput_ratio", forwarderRatio, "ratio", "calls per second through the forwarder over straight")
		r.AddRuns(name+".straight_per_second", perSecond[straight], "req/s", "")
	}
	for i, w := range ways {
		times[i].report(r, name+"."+w.name, w.pids)
	}
	cost.report(r, name)
	if callers == 1 && p.elements*4 >= 16*shortestMove {
		if err := b.copies(ctx, r, conch.Pid(), name, calls[through], p); err != nil {
			return err
		}
	}
	mid := len(added) / 2
	b.say(fmt.Sprintf("%s: p50 straight %.0f us, forwarder +%.0f, libraries +%.0f, conch +%.0f; per second %.0f, %.0f, %.0f, %.0f", name, p50[straight][mid], forwarderAdded[mid],
		librariesAdded[mid], added[mid], perSecond[straight][mid], perSecond[forwarded][mid], perSecond[libraries][mid], perSecond[through][mid]))
	return nil
}

func (b *bench) caller(protocol, grpcAddress, httpAddress string, p payload, callers int) (c loadgen.Caller, closeCaller func(), err error) {
	if protocol == "http" {
		h, err := loadgen.NewHTTP(httpAddress, p.name, loadgen.Emulated(p.elements), callers)
		if err != nil {
			return nil, nil, err
		}
		return h, h.Close, nil
	}
	g, err := loadgen.NewGRPC([]string{grpcAddress}, []loadgen.Model{{Name: p.name}}, loadgen.Emulated(p.elements))
	if err != nil {
		return nil, nil, err
	}
	return g, func() { _ = g.Close() }, nil // all calls have ended: there is nothing to lose
}
