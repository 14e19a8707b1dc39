// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/sidecar/handon"
)

// hop measures a call to the replica that owns against the same call to another replica, which hands it on, in turns. Each replica is a process of its own on this
// machine: there is no network in between.
func (b *bench) hop(ctx context.Context, r *figure.Report) (err error) {
	r.Emulated = "the server: minitriton with a model that takes no time, in a process of its own; both replicas are on one machine"
	defer runtime.KeepAlive(slack())
	directory, launcher, err := newLauncher("")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conch, _, err := b.startEager(starting, directory, launcher)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	replica, err := startPeer(ctx, "replica", conch.GRPC, conch.HTTP)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, replica.Close()) }()
	owner := way{name: "owner", grpc: conch.GRPC, http: conch.HTTP, pids: pids{os.Getpid(), 0, conch.Pid()}}
	handed := way{name: "handed_on", grpc: replica.Addresses[0], http: replica.Addresses[1], pids: pids{os.Getpid(), replica.Pid(), conch.Pid()}}
	for _, protocol := range []string{"grpc", "http"} {
		for _, p := range payloads {
			for _, callers := range []int{1, 64} {
				if err := b.overHop(ctx, r, [2]way{owner, handed}, protocol, p, callers); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// overHop measures one kind of call on both ways, in turns.
func (b *bench) overHop(ctx context.Context, r *figure.Report, ways [2]way, protocol string, p payload, callers int) error {
	name := fmt.Sprintf("hop.%s.%s.c%d", protocol, p.name, callers)
	if !strings.Contains(name, b.only) {
		return nil
	}
	var calls [len(ways)]loadgen.Caller
	for i, w := range ways {
		c, closeCaller, err := b.caller(protocol, w.grpc, w.http, p, callers)
		if err != nil {
			return err
		}
		defer closeCaller()
		calls[i] = c
	}
	var p50, perSecond [len(ways)][]float64
	var times [len(ways)]account
	machine := clock.System()
	length := 200 * time.Millisecond // the first round only warms up
	for range b.roundsOr(5) + 1 {
		for i, w := range ways {
			before, err := w.pids.processorTime()
			if err != nil {
				return err
			}
			got, err := loadgen.Closed(ctx, callers, length, calls[i], machine)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", name, w.name, err)
			}
			after, err := w.pids.processorTime()
			if err != nil {
				return err
			}
			if length != trialTime {
				continue
			}
			p50[i] = append(p50[i], float64(got.Quantile(.5))/float64(time.Microsecond))
			perSecond[i] = append(perSecond[i], got.PerSecond())
			times[i].add(before, after, got.Calls)
		}
		length = trialTime
	}
	if callers == 1 {
		r.AddRuns(name+".added_p50_us", pairwise(p50[1], p50[0], func(a, b float64) float64 { return a - b }), "us", "median latency through another replica less that of the owner, in turns")
	} else {
		r.AddRuns(name+".throughput_ratio", pairwise(perSecond[1], perSecond[0], func(a, b float64) float64 { return a / b }), "ratio", "calls per second through another replica over those of the owner, in turns; all of it on the same processors")
		r.AddRuns(name+".owner_per_second", perSecond[0], "req/s", "straight to the owner")
	}
	r.AddRuns(name+".replica_cpu_us", times[1][proxyProcess], "us/req", "processor time of the replica that hands on, user and system")
	r.AddRuns(name+".owner_cpu_us", times[0][serverProcess], "us/req", "processor time of the owner where clients call it")
	b.say(fmt.Sprintf("%s: owner %.0f us, %.0f per second; handed on %.0f us, %.0f per second", name, median(p50[0]), median(perSecond[0]), median(p50[1]), median(perSecond[1])))
	return nil
}

// replicaPeer is a replica that hands on. It takes the owner's addresses, prints its own, and ends with its standard input.
func replicaPeer() *cobra.Command {
	return &cobra.Command{
		Use: "replica GRPC HTTP", Short: "A replica that hands requests on, for measurements", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			defer runtime.KeepAlive(slack())
			front, err := handon.New(handon.Options{
				Name: "replica", GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", Requests: 10_000, Bytes: 1 << 30, Connections: 1000, Stall: 30 * time.Second, MessageBytes: 64 << 20,
				Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
			})
			if err != nil {
				return err
			}
			front.Follow(handon.Owner{Name: "owner", GRPC: args[0], HTTP: args[1]})
			fmt.Println(front.Address("grpc"), front.Address("http"))
			_, err = io.Copy(io.Discard, os.Stdin) // it ends with the process that measures
			return errors.Join(err, front.Close(time.Second))
		},
	}
}
