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

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
)

// advise asks `tritonctl advise` what Conch would gain on each of some of the ten loads, before anything of them is measured.
func (b *bench) advise(ctx context.Context, set mixSet, r *figure.Report) error {
	r.Emulated = emulatedMix
	return b.eachMix(ctx, set, r, func(m mix) error {
		var a advice
		err := b.before(ctx, m, func(server *rig.Tritons) (err error) {
			a, err = b.adviceOf(ctx, m, server)
			return err
		})
		if err != nil {
			return err
		}
		name := "advise." + m.name + "."
		if !a.Enough {
			r.Add(name+"answered", 0, "bool", "too little is known: "+strings.Join(a.Missing, "; "))
			return nil
		}
		r.Add(name+"answered", 1, "bool", fmt.Sprintf("eight models, Zipf .9, 600 KB rows, times x%.1f, SLOs x%.1f", m.stretch, mixSLO*m.stretch))
		for _, of := range mixSides {
			if g := a.of(of.name); g.Ratio > 0 {
				r.Add(name+of.name+".predicted", g.Ratio, "ratio", "rate that "+of.is+" would hold over what the server holds")
				r.Add(name+of.name+".predicted_low", g.Low, "ratio", "the answer's range")
				r.Add(name+of.name+".predicted_high", g.High, "ratio", "the answer's range")
			}
		}
		return nil
	})
}

// advice is the part of the advice that is compared.
type advice struct {
	Enough  bool
	Missing []string
	adviceGain
	Own adviceGain
}

// adviceGain is a ratio of rates with its range; 0 where advise gives none.
type adviceGain struct {
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"ratio_low"`
	High  float64 `json:"ratio_high"`
}

// of is what advise says of one of mixSides.
func (a advice) of(side string) adviceGain {
	if side == "own" {
		return a.Own
	}
	return a.adviceGain
}

// adviceOf asks for advice while clients send single rows, at a quarter of what the GPUs can do in batches of eight, to a server that a conch observes.
func (b *bench) adviceOf(ctx context.Context, m mix, server *rig.Tritons) (out advice, err error) {
	c := b.mixContest(m)
	conch, err := rig.ConchSetup{Attach: mixGPUs, Observe: true}.StartBefore(ctx, c, server)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	caller, err := loadgen.NewGRPC(conch.Endpoints(), m.models.Load(), loadgen.Emulated(mixElements))
	if err != nil {
		return out, err
	}
	sending, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	const most = 5 * time.Minute
	given, err := m.arrivals(adviceRate, b.seed, most)
	if err != nil {
		stop()
		return out, errors.Join(err, caller.Close())
	}
	go func() {
		defer close(done)
		// It ends with the advice; what came of the requests is not what is measured.
		_, _ = loadgen.Run(sending, loadgen.Load{Models: m.models.Load(), Given: given, Measure: most, Patience: time.Second}, caller, clock.System())
	}()
	defer func() { stop(); <-done; err = errors.Join(err, caller.Close()) }()

	b.say(fmt.Sprintf("%s: tritonctl advise --measure at %d req/s, for %v", m.name, adviceRate, adviceLook))
	limited, cancel := context.WithTimeout(ctx, adviceLimit)
	defer cancel()
	command := exec.CommandContext(limited, filepath.Join(b.bin, "tritonctl"), "--admin", conch.Admin, "advise", "--measure", "--share", fmt.Sprint(adviceShare), "--yes", "--within", adviceWithin.String(), "--for", adviceLook.String(), "--seeds", "3", "-o", "json")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	text, err := command.Output()
	if limited.Err() != nil && ctx.Err() == nil {
		b.say(fmt.Sprintf("%s: no advice within %v", m.name, adviceLimit))
		return advice{Missing: []string{fmt.Sprintf("there was no answer within %v", adviceLimit)}}, nil
	}
	if err != nil && !json.Valid(text) {
		return out, fmt.Errorf("tritonctl advise: %w\n%s", err, stderr.Bytes())
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return out, fmt.Errorf("tritonctl advise: %w", err)
	}
	b.say(fmt.Sprintf("%s: advised %.2f (%.2f to %.2f) attached, %.2f (%.2f to %.2f) with servers of its own, missing %v", m.name, out.Ratio, out.Low, out.High, out.Own.Ratio, out.Own.Low, out.Own.High, out.Missing))
	return out, nil
}
