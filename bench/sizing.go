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
	"sync"
	"syscall"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/pymodels"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

const (
	// few and many are the numbers of connections between which the memory of one is measured: what conch needs without any, and the collector's
	// slack, which is the same for both, is not in the difference.
	few, many = 1000, 5000
	// settling is how long memory is left alone before it is read.
	settling = 2 * time.Second
	// sizingCallers call at once while processor time is measured.
	sizingCallers = 64
)

// sizing measures what a machine needs for conch: processor time per request and per byte, and memory per connection, idle and with a request that waits.
func (b *bench) sizing(ctx context.Context, r *figure.Report) (err error) {
	defer runtime.KeepAlive(slack())
	r.Emulated = "the server: minitriton with a model that takes no time, in a process of its own"
	directory, launcher, err := newLauncher("")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	// Memory is measured with the model of small messages alone: the batches of a large one, with which it is warmed up, leave more of it behind.
	both, small := filepath.Join(directory, "both"), filepath.Join(directory, "small")
	for i, p := range payloads {
		model := zoo.Model{Name: p.name, Profile: zoo.Profile{Model: p.name, GPUType: zoo.A100, SLO: time.Second}, MaxBatchSize: 64, Dims: []int64{int64(p.elements)}, ModelPy: pymodels.Emulate}
		if err := zoo.Write(both, model); err != nil {
			return err
		}
		if i == 0 {
			if err := zoo.Write(small, model); err != nil {
				return err
			}
		}
	}
	start := func(repository string) (*rig.Conch, error) {
		starting, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return rig.StartConch(starting, rig.ConchOptions{
			Bin: b.bin, Repository: repository, GPUs: 1, Server: launcher,
			Settings: map[string]any{"defaults": map[string]any{"discipline": "eager", "slo": "1s"}, "limits": map[string]any{"connections": 2 * many}},
		})
	}
	var base []float64
	for _, protocol := range []string{"grpc", "http"} {
		if !strings.Contains("sizing."+protocol, b.only) {
			continue
		}
		if err := b.processorTime(ctx, r, protocol, func() (*rig.Conch, error) { return start(both) }); err != nil {
			return fmt.Errorf("%s: %w", protocol, err)
		}
		var idle, active []float64
		for range b.roundsOr(3) {
			m, err := b.memory(ctx, protocol, directory, func() (*rig.Conch, error) { return start(small) })
			if err != nil {
				return fmt.Errorf("%s: %w", protocol, err)
			}
			base, idle, active = append(base, m.base), append(idle, m.idle), append(active, m.active)
			b.say(fmt.Sprintf("%s: %.0f MiB without clients, %.1f KiB an idle connection, %.1f KiB an active one", protocol, m.base, m.idle, m.active))
		}
		name := "sizing." + protocol
		r.AddRuns(name+".idle_connection_kib", idle, "KiB", fmt.Sprintf("resident memory of conch for an idle connection that had a request: from %d to %d of them", few, many))
		r.AddRuns(name+".active_connection_kib", active, "KiB", fmt.Sprintf("resident memory of conch for a connection whose request of 1 KB waits: %d of them", many))
	}
	r.AddRuns("sizing.base_mib", base, "MiB", "resident memory of conch before its first client")
	return nil
}

// processorTime measures calls of both payloads in turns: what the larger ones cost more is for their bytes.
func (b *bench) processorTime(ctx context.Context, r *figure.Report, protocol string, start func() (*rig.Conch, error)) (err error) {
	conch, err := start()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	calls := make([]loadgen.Caller, len(payloads))
	for i, p := range payloads {
		c, closeCaller, err := b.caller(protocol, conch.GRPC, conch.HTTP, p, sizingCallers)
		if err != nil {
			return err
		}
		defer closeCaller()
		calls[i] = c
	}
	seconds := make([][]float64, len(payloads)) // of processor time per request
	own := pids{proxyProcess: conch.Pid()}
	for round := range b.roundsOr(5) + 1 {
		for i := range payloads {
			before, err := own.processorTime()
			if err != nil {
				return err
			}
			got, err := loadgen.Closed(ctx, sizingCallers, trialTime, calls[i], clock.System())
			if err != nil {
				return err
			}
			after, err := own.processorTime()
			if err != nil {
				return err
			}
			if round > 0 { // the first only warms up
				seconds[i] = append(seconds[i], (after[proxyProcess]-before[proxyProcess])/float64(max(1, got.Calls)))
			}
		}
	}
	small, large := payloads[0], payloads[1]
	const sizeOfFP32, bothWays = 4, 2
	megabytes := float64((large.elements-small.elements)*sizeOfFP32*bothWays) / 1e6
	thousand := pairwise(seconds[0], seconds[0], func(a, _ float64) float64 { return 1000 * a })
	perMB := pairwise(seconds[1], seconds[0], func(large, small float64) float64 { return (large - small) / megabytes })
	name := "sizing." + protocol
	r.AddRuns(name+".cores_per_1000", thousand, "cores", fmt.Sprintf("processor time of conch for 1,000 requests of 1 KB a second, by %d callers", sizingCallers))
	r.AddRuns(name+".cores_per_mb", perMB, "cores", "processor time of conch for each further MB/s of tensors, requests and answers together: 600 KB each way less 1 KB each way")
	b.say(fmt.Sprintf("%s: %.4f cores for 1,000 requests a second, %.5f for a MB/s", protocol, median(thousand), median(perMB)))
	return nil
}

// occupied is what conch's memory holds: MiB without clients, and KiB for each connection that is idle, or whose request waits.
type occupied struct{ base, idle, active float64 }

// memory measures one conch's life. While requests are to wait, the server is stopped.
func (b *bench) memory(ctx context.Context, protocol, directory string, start func() (*rig.Conch, error)) (m occupied, err error) {
	conch, err := start()
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	admin, err := client.New(conch.Admin)
	if err != nil {
		return m, err
	}
	defer admin.Close()
	resident := func() (bytes float64) {
		if err == nil {
			var n int
			time.Sleep(settling)
			n, err = residentBytes(conch.Pid())
			bytes = float64(n)
		}
		return bytes
	}
	base := resident()
	connections := make([]connection, 0, many)
	defer func() {
		for _, c := range connections {
			c.close()
		}
	}()
	grow := func(to int) {
		for err == nil && len(connections) < to {
			var c connection
			if c, err = connect(ctx, protocol, conch); err == nil {
				connections = append(connections, c)
				err = c.infer(ctx)
			}
		}
	}
	grow(few)
	atFew := resident()
	grow(many)
	atMany := resident()
	if err != nil {
		return m, err
	}
	server, err := serverPID(directory)
	if err != nil {
		return m, err
	}
	if err := syscall.Kill(server, syscall.SIGSTOP); err != nil {
		return m, fmt.Errorf("the server is to wait: %w", err)
	}
	answered := make(chan error, many)
	var all sync.WaitGroup
	for _, c := range connections {
		all.Go(func() { answered <- c.infer(ctx) })
	}
	for ready := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		model, failed := admin.Model(ctx, payloads[0].name)
		if failed != nil || time.Now().After(ready) {
			err = fmt.Errorf("%d of %d requests wait: %w", model.Queued, many, errors.Join(failed, errors.New("more were expected")))
			break
		}
		if model.Queued >= many-sizingCallers { // a batch is with the server
			break
		}
	}
	waiting := resident()
	err = errors.Join(err, syscall.Kill(server, syscall.SIGCONT))
	all.Wait()
	close(answered)
	for failure := range answered {
		if err == nil && failure != nil {
			err = fmt.Errorf("a request that waited: %w", failure)
		}
	}
	idle := (atMany - atFew) / (many - few)
	return occupied{base / (1 << 20), idle / (1 << 10), (idle + (waiting-atMany)/many) / (1 << 10)}, err
}
