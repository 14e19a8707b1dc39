// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

// advised holds what `tritonctl advise` says of real tritonservers, after a minute of traffic of single rows, against what these servers and
// Conch hold.
func (b *bench) advised(ctx context.Context, r *figure.Report, p zoo.Profile) error {
	for _, s := range liveScenarios() {
		name := "fidelity.advise." + s.name
		if !strings.Contains(name, b.only) {
			continue
		}
		c := b.contest(s, p)
		c.Seed, c.Confirm = b.seed, 0
		dynamic := rig.Delays(0)
		advised, err := b.adviceOf(ctx, c, .75*s.start)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		triton, err := c.Highest(ctx, dynamic, s.start)
		if err != nil {
			return err
		}
		conch, err := c.Highest(ctx, []rig.Setup{rig.ConchSetup{}}, 1.25*triton.Rate)
		if err != nil {
			return err
		}
		gain := conch.Held() / triton.Held()
		r.Add(name+".triton_ratio", advised.Triton.Rate/triton.Held(), "ratio", fmt.Sprintf("what the advice says that Triton holds, %.0f req/s, over what it holds; %v", advised.Triton.Rate, triton.Setup))
		r.Add(name+".gain_advised", advised.Ratio, "ratio", fmt.Sprintf("Conch over Triton; the range of the advice is %.2f to %.2f", advised.Low, advised.High))
		r.Add(name+".gain_measured", gain, "ratio", "in the same run")
		r.Add(name+".gain_ratio", advised.Ratio/gain, "ratio", "advised over measured")
	}
	return nil
}

// advice is the part of the advice that is compared.
type advice struct {
	Enough  bool
	Missing []string
	Triton  struct{ Rate float64 }
	Ratio   float64 `json:"ratio"`
	Low     float64 `json:"ratio_low"`
	High    float64 `json:"ratio_high"`
}

// adviceOf asks for advice while clients send single rows, at a rate, to servers that a conch observes.
func (b *bench) adviceOf(ctx context.Context, c *rig.Contest, rate float64) (out advice, err error) {
	tritons, err := rig.StartTritons(ctx, rig.TritonOptions{Server: c.Server, Models: c.Models, GPUs: c.GPUs, Dynamic: &zoo.DynamicBatching{}})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, tritons.Close()) }()
	var endpoints []map[string]any
	for i := range tritons.GRPC {
		endpoints = append(endpoints, map[string]any{"grpc": tritons.GRPC[i], "http": tritons.HTTP[i], "metrics": tritons.Metrics[i]})
	}
	conch, err := rig.StartConch(ctx, rig.ConchOptions{
		Bin: b.bin, Models: c.Models, GPUs: c.GPUs, Mode: "observe",
		Settings: map[string]any{"driver": map[string]any{"kind": "attach", "endpoints": endpoints}, "gpus": "auto", "repository": nil},
	})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	caller, err := loadgen.NewGRPC(conch.Endpoints(), c.Models.Load(), loadgen.Emulated(16))
	if err != nil {
		return out, err
	}
	sending, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// It ends with the advice; what came of the requests is not what is measured.
		_, _ = loadgen.Run(sending, loadgen.Load{Models: c.Models.Load(), Rate: rate, Measure: time.Hour, Patience: time.Second, Seed: b.seed}, caller, minitriton.SystemClock())
	}()
	defer func() { stop(); <-done; err = errors.Join(err, caller.Close()) }()

	b.say(fmt.Sprintf("tritonctl advise --measure at %.0f req/s", rate))
	command := exec.CommandContext(ctx, filepath.Join(b.bin, "tritonctl"), "--admin", conch.Admin, "advise", "--measure", "--yes", "--for", "45s", "--seeds", "3", "-o", "json")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	text, err := command.Output()
	if err != nil {
		return out, fmt.Errorf("tritonctl advise: %w\n%s", err, stderr.Bytes())
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return out, fmt.Errorf("tritonctl advise: %w", err)
	}
	if !out.Enough {
		return out, fmt.Errorf("tritonctl advise: too little is known: %v", out.Missing)
	}
	b.say(fmt.Sprintf("advised: Triton %.0f req/s, Conch %.2f times that (%.2f to %.2f)", out.Triton.Rate, out.Ratio, out.Low, out.High))
	return out, nil
}
