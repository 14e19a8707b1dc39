// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/minitriton"
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

// proxy measures conch in front of a server that takes no time, against the same calls to that server itself.
func (b *bench) proxy(ctx context.Context, r *figure.Report) (err error) {
	r.Emulated = "the server: minitriton with a model that takes no time, embedded in conch; straight calls go to its own port"
	repository, err := os.MkdirTemp("", "conch-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(repository)) }()
	for _, p := range payloads {
		model := zoo.Model{Name: p.name, Profile: zoo.Profile{Model: p.name, GPUType: zoo.A100, SLO: time.Second}, MaxBatchSize: 64, Dims: []int64{int64(p.elements)}}
		if err := zoo.Write(repository, model); err != nil {
			return err
		}
	}
	conch, err := rig.StartConch(ctx, rig.ConchOptions{
		Bin: b.bin, Repository: repository, GPUs: 1,
		// A discipline that defers would have every caller wait for others: that is not the cost of the path.
		Settings: map[string]any{"defaults": map[string]any{"discipline": "eager", "slo": "1s"}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	straight, err := partition(ctx, conch)
	if err != nil {
		return err
	}
	for _, protocol := range []string{"grpc", "http"} {
		for _, p := range payloads {
			for _, callers := range []int{1, 64} {
				if err := b.compare(ctx, r, conch, straight, protocol, p, callers); err != nil {
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

// compare measures one kind of call straight and through conch, in turns.
func (b *bench) compare(ctx context.Context, r *figure.Report, conch *rig.Conch, straight client.Partition, protocol string, p payload, callers int) error {
	through, closeThrough, err := b.caller(protocol, conch.GRPC, conch.HTTP, p, callers)
	if err != nil {
		return err
	}
	defer closeThrough()
	direct, closeDirect, err := b.caller(protocol, straight.GRPC, straight.HTTP, p, callers)
	if err != nil {
		return err
	}
	defer closeDirect()

	var added, ratios, straightP50, throughP50 []float64
	clock := minitriton.SystemClock()
	length := 200 * time.Millisecond // the first round only warms up
	for range b.roundsOr(7) + 1 {
		s, err := loadgen.Closed(ctx, callers, length, direct, clock)
		if err != nil {
			return fmt.Errorf("straight: %w", err)
		}
		c, err := loadgen.Closed(ctx, callers, length, through, clock)
		if err != nil {
			return fmt.Errorf("through conch: %w", err)
		}
		if length == time.Second {
			us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
			straightP50, throughP50 = append(straightP50, us(s.Quantile(0.5))), append(throughP50, us(c.Quantile(0.5)))
			added = append(added, us(c.Quantile(0.5)-s.Quantile(0.5)))
			ratios = append(ratios, c.PerSecond()/s.PerSecond())
		}
		length = time.Second
	}
	name := fmt.Sprintf("proxy.%s.%s.c%d", protocol, p.name, callers)
	r.AddRuns(name+".added_p50_us", added, "us", "median latency through conch less straight, in turns")
	r.AddRuns(name+".throughput_ratio", ratios, "ratio", "calls per second through conch over straight, in turns")
	r.AddRuns(name+".straight_p50_us", straightP50, "us", "")
	r.AddRuns(name+".through_p50_us", throughP50, "us", "")
	b.say(fmt.Sprintf("%s: straight %.0f us, through conch %.0f us", name, straightP50[len(straightP50)/2], throughP50[len(throughP50)/2]))
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
