// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/procfs"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

// What is watched, by how many, under which load.
const (
	watchedModels = 50
	watchedGPUs   = 8
	watchedRate   = 5000.0
	watchers      = 10
)

// watching measures what it costs conch to be watched: its processor time with ten watchers of every topic less that without, in turns under one load.
func (b *bench) watching(ctx context.Context, r *figure.Report) (err error) {
	r.Emulated = fmt.Sprintf("GPU time: %d models of 1 ms a batch and 0.1 ms a row, on %d emulated GPUs, embedded in conch", watchedModels, watchedGPUs)
	models := rig.Copies(zoo.Profile{Model: "watched", GPUType: zoo.A100, Alpha: 100 * time.Microsecond, Beta: time.Millisecond, SLO: 100 * time.Millisecond}, watchedModels, 1, 16)
	conch, err := rig.StartConch(ctx, rig.ConchOptions{Bin: b.bin, Models: models, GPUs: watchedGPUs, Settings: map[string]any{"interval": "1h"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	process, err := procfs.NewProc(conch.Pid())
	if err != nil {
		return fmt.Errorf("processor time of conch: %w", err)
	}
	turn, rounds := 10*time.Second, b.roundsOr(16)
	if b.quick {
		turn, rounds = 2*time.Second, 3
	}
	type load struct {
		trial *rig.Trial
		err   error
	}
	loaded, enough := make(chan load, 1), make(chan struct{})
	const warm = 5 * time.Second
	go func() {
		trial, err := rig.Measure(ctx, conch, loadgen.Load{
			Models: models.Load(), Rate: watchedRate, Warmup: warm, Measure: time.Duration(3*rounds) * turn, Until: enough, Patience: 5 * time.Second, Seed: b.seed,
		})
		loaded <- load{trial, err}
	}()
	end := sync.OnceFunc(func() { close(enough) })
	defer end()
	time.Sleep(warm)
	var alone, watched, more, sent []float64
	for i := range rounds {
		var used [2]float64
		for t := range 2 {
			with := (i+t)%2 == 1 // the order alternates
			seconds, bytes, err := b.watchedTurn(ctx, conch, process, with, turn)
			if err != nil {
				return err
			}
			if with {
				used[1] = seconds
				sent = append(sent, bytes/turn.Seconds()/watchers/1e3)
			} else {
				used[0] = seconds
			}
		}
		percent := 100 / turn.Seconds()
		alone, watched, more = append(alone, percent*used[0]), append(watched, percent*used[1]), append(more, percent*(used[1]-used[0]))
	}
	end()
	l := <-loaded
	if l.err != nil {
		return l.err
	}
	if failed, wrong, first := l.trial.Faults(); failed+wrong > 0 {
		return fmt.Errorf("%d requests failed and %d answers were wrong, the first: %w", failed, wrong, first)
	}
	b.say(fmt.Sprintf("%.0f req/s answered in time, mean batch %.1f; conch takes %.1f%% of a core alone and %.1f%% watched; a watcher gets %.0f kB/s",
		l.trial.Goodput(), l.trial.MeanBatch, median(alone), median(watched), median(sent)))
	what := fmt.Sprintf("%d watchers of every topic over the unix socket, %d models, %g req/s offered", watchers, watchedModels, watchedRate)
	r.AddRuns("watch.core_percent", more, "%", "processor time of conch with "+what+", less that without watchers, in turns of "+turn.String()+", of one core")
	r.AddRuns("watch.alone_core_percent", alone, "%", "processor time of conch without watchers")
	r.AddRuns("watch.watched_core_percent", watched, "%", "processor time of conch with them")
	r.AddRuns("watch.kilobytes_per_second", sent, "kB/s", "what one watcher gets")
	r.AddRuns("watch.answered_in_time", []float64{l.trial.Goodput()}, "req/s", "of "+fmt.Sprintf("%g", watchedRate)+" offered, watched half of the time")
	return nil
}

// watchedTurn lets a time pass with watchers or without, and gives the processor time of conch in it, and what the watchers got.
func (b *bench) watchedTurn(ctx context.Context, conch *rig.Conch, process procfs.Proc, with bool, turn time.Duration) (seconds, bytes float64, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var got atomic.Int64
	failed := make(chan error, watchers)
	var readers sync.WaitGroup
	if with {
		for range watchers {
			readers.Go(func() {
				if err := readWatch(ctx, conch.Admin, &got); err != nil && ctx.Err() == nil {
					failed <- err
				}
			})
		}
	}
	settle := time.NewTimer(time.Second) // the whole state has come
	defer settle.Stop()
	select {
	case <-settle.C:
	case err := <-failed:
		return 0, 0, err
	}
	before, err := process.Stat()
	if err != nil {
		return 0, 0, fmt.Errorf("processor time of conch: %w", err)
	}
	begun := got.Load()
	timer := time.NewTimer(turn)
	defer timer.Stop()
	select {
	case <-timer.C:
	case err := <-failed:
		return 0, 0, fmt.Errorf("a watcher: %w", err)
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	after, err := process.Stat()
	if err != nil {
		return 0, 0, fmt.Errorf("processor time of conch: %w", err)
	}
	bytes = float64(got.Load() - begun)
	stop()
	readers.Wait()
	return after.CPUTime() - before.CPUTime(), bytes, nil
}

// readWatch reads the stream of state and counts its bytes. What they say is not looked at: reading costs this process, not conch.
func readWatch(ctx context.Context, admin string, got *atomic.Int64) error {
	socket := strings.TrimPrefix(admin, "unix://")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://conch/v1/watch", nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", request.URL, response.Status)
	}
	buffer := make([]byte, 64<<10)
	for {
		n, err := response.Body.Read(buffer)
		got.Add(int64(n))
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF // conch ended the stream
		}
		if err != nil {
			return err
		}
	}
}
