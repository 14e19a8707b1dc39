// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
)

// keepBusy loads conch until ctx ends, so that there is something to look at. What it gives is closed then.
func (d *demo) keepBusy(ctx context.Context, conch *rig.Conch, rate float64) <-chan struct{} {
	done := make(chan struct{})
	models := d.scenario.contest.Models.Load()
	go func() {
		defer close(done)
		calls, err := loadgen.NewGRPC(conch.Endpoints(), models, loadgen.Emulated(16))
		if err != nil {
			d.say("conch is left without load: " + err.Error())
			return
		}
		_, err = loadgen.Run(ctx, loadgen.Load{Models: models, Rate: rate, Measure: 365 * 24 * time.Hour, Until: ctx.Done(), Seed: d.scenario.contest.Seed, Patience: time.Second}, calls, clock.System())
		if err = errors.Join(err, calls.Close()); err != nil && ctx.Err() == nil {
			d.say("the load ended: " + err.Error())
		}
	}()
	return done
}

// openConsole runs tritonctl ui until ctx ends, and gives its link. What it gives besides is closed then.
func (d *demo) openConsole(ctx context.Context, conch *rig.Conch) (link string, ended <-chan struct{}, err error) {
	ctl := exec.CommandContext(ctx, filepath.Join(d.bin, "tritonctl"), "--admin", conch.Admin, "ui", "--expires", "24h")
	ctl.Cancel = func() error { return ctl.Process.Signal(os.Interrupt) }
	var complaint strings.Builder
	ctl.Stderr = &complaint
	out, err := ctl.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := ctl.Start(); err != nil {
		return "", nil, fmt.Errorf("the console: %w", err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		return "", nil, fmt.Errorf("tritonctl ui printed no link: %w: %s", ctl.Wait(), &complaint)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = ctl.Wait() // it was asked to end, or conch has gone
	}()
	return lines.Text(), done, nil
}
