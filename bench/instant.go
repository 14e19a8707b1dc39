// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

// instant measures a real tritonserver with a python model that takes no time, many callers: the server alone, with its own batching, and
// behind conch; and conch with and without shared memory.
func (b *bench) instant(ctx context.Context, r *figure.Report) error {
	if b.server == "" {
		return errors.New("no tritonserver: run `make bench`, or say --tritonserver")
	}
	for _, p := range payloads {
		if err := b.instantPayload(ctx, r, p); err != nil {
			return err
		}
	}
	return nil
}

// instantWays are the servers that are compared: what Triton does by itself first.
var instantWays = [...]string{"alone", "dynamic_batching", "conch", "conch_socket"}

func (b *bench) instantPayload(ctx context.Context, r *figure.Report, p payload) (err error) {
	const callers = 64
	models := rig.Instant(p.name, p.elements, callers)
	var addresses [len(instantWays)]string
	for i, dynamic := range []*zoo.DynamicBatching{nil, {}} {
		servers, err := rig.StartTritons(ctx, rig.TritonOptions{Server: b.server, Models: models, GPUs: 1, Dynamic: dynamic})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, servers.Close()) }()
		addresses[i] = servers.GRPC[0]
	}
	for i, limits := range []map[string]any{{}, {"sharedMemory": 0}} {
		conch, err := rig.StartConch(ctx, rig.ConchOptions{
			Bin: b.bin, Server: b.server, Models: models, GPUs: 1,
			Settings: map[string]any{"defaults": map[string]any{"discipline": "eager", "slo": "1s"}, "limits": limits},
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, conch.Close()) }()
		addresses[2+i] = conch.GRPC
	}
	var perSecond [len(instantWays)][]float64
	machine := clock.System()
	length := 500 * time.Millisecond // the first round only warms up
	for range b.roundsOr(5) + 1 {
		for i, address := range addresses {
			caller, err := loadgen.NewGRPC([]string{address}, models.Load(), loadgen.Emulated(p.elements))
			if err != nil {
				return err
			}
			got, err := loadgen.Closed(ctx, callers, length, caller, machine)
			if err := errors.Join(err, caller.Close()); err != nil {
				return fmt.Errorf("%s: %w", instantWays[i], err)
			}
			if length == instantTime {
				perSecond[i] = append(perSecond[i], got.PerSecond())
			}
		}
		length = instantTime
	}
	over := func(i, j int) (ratios []float64) {
		for k := range perSecond[i] {
			ratios = append(ratios, perSecond[i][k]/perSecond[j][k])
		}
		return ratios
	}
	name := fmt.Sprintf("proxy.triton.%s.c%d", p.name, callers)
	r.AddRuns(name+".throughput_ratio", over(2, 0), "ratio", "calls per second through conch over the server alone, a real tritonserver with an instant python model, in turns")
	r.AddRuns(name+".to_dynamic_batching", over(2, 1), "ratio", "calls per second through conch over the server with its own dynamic batching")
	r.AddRuns(name+".shared_memory", over(2, 3), "ratio", "calls per second through conch with shared memory over without")
	r.AddRuns(name+".alone_per_second", perSecond[0], "req/s", "")
	b.say(fmt.Sprintf("%s: %.0f", name, perSecond))
	return nil
}

const instantTime = 2 * time.Second
