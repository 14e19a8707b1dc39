// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/rig"
)

// demo is one run.
type demo struct {
	scenario scenario
	bin      string
	results  string
	stay     time.Duration // 0 means until ctx ends
	out      io.Writer
	progress io.Writer
	start    time.Time
}

// rows of the table, in order.
type rows struct{ tritonSame, conchSame, tritonHighest, conchHighest rig.Standing }

func (d *demo) run(ctx context.Context) error {
	d.start = time.Now()
	c := &d.scenario.contest
	c.Bin, c.Progress = d.bin, d.say
	d.say(fmt.Sprintf("%d models of Symphony's zoo on %d emulated GPUs, Poisson arrivals: %s", len(models), gpus, strings.Join(models[:], ", ")))

	var r rows
	var err error
	d.say("1/4 Triton's dynamic batching at the same load, best of several max_queue_delay")
	if r.tritonSame, err = c.At(ctx, d.scenario.triton, d.scenario.offered); err != nil {
		return err
	}
	d.say("2/4 Triton's highest load with at most 1% bad")
	if r.tritonHighest, err = c.Highest(ctx, d.scenario.triton, d.scenario.start); err != nil {
		return err
	}
	conch, err := rig.ConchSetup{}.Start(ctx, c)
	if err != nil {
		return err
	}
	return errors.Join(d.withConch(ctx, conch, &r), conch.Close())
}

func (d *demo) withConch(ctx context.Context, conch *rig.Conch, r *rows) error {
	c := &d.scenario.contest
	var err error
	d.say("3/4 Conch at the same load")
	if r.conchSame, err = c.TrialOf(ctx, rig.ConchSetup{}, conch, d.scenario.offered); err != nil {
		return err
	}
	d.say("4/4 Conch's highest load with at most 1% bad")
	if r.conchHighest, err = c.HighestOf(ctx, rig.ConchSetup{}, conch, 1.25*d.scenario.offered); err != nil {
		return err
	}
	if err := d.report(ctx, r); err != nil {
		return err
	}
	return d.leaveRunning(ctx, conch)
}

// say prints a line of progress with the seconds since the start.
func (d *demo) say(line string) {
	fmt.Fprintf(d.progress, "[%5.1fs] %s\n", time.Since(d.start).Seconds(), line)
}

// report prints the table and the figures, and keeps the figures.
func (d *demo) report(ctx context.Context, r *rows) error {
	fmt.Fprintf(d.out, "\nEMULATED %s.\nServers: %s. Bad = late against the SLO, failed or dropped, of all requests; counted alike on both sides.\n",
		d.scenario.emulated, d.scenario.what)
	fmt.Fprintf(d.out, "Triton: every model on every GPU, callers balance by least outstanding; the best of max_queue_delay %v.\n", d.scenario.delays)
	fmt.Fprintf(d.out, "Conch: defaults, and `late: drop`.\n\n")
	table(d.out, []section{
		{fmt.Sprintf("the same load, %.0f req/s", d.scenario.offered), []line{{"Triton", r.tritonSame}, {"Conch", r.conchSame}}},
		{"each one's highest load with at most 1% bad", []line{{"Triton", r.tritonHighest}, {"Conch", r.conchHighest}}},
	})
	ratio := r.conchHighest.Held() / r.tritonHighest.Held()
	fmt.Fprintf(d.out, "\nConch holds %.2f times the load of Triton's best setting.\n", ratio)
	late, ofSLO := d.scenario.contest.Lateness()
	fmt.Fprintf(d.out, "The machine: sleeps ended late by at most %.1f ms (99%% of them, worst trial), %.0f%% of the shortest SLO.\n", float64(late)/1e6, 100*ofSLO)
	if ofSLO > 0.1 {
		fmt.Fprintln(d.out, "It is too busy for these times: run the demo again when it is quieter, and read these numbers with care.")
	}
	fmt.Fprintln(d.out)

	report := &figure.Report{
		Command: "make demo", File: "demo", When: d.start, Seed: d.scenario.contest.Seed,
		Machine: figure.ThisMachine(), Versions: map[string]string{"go": runtime.Version()}, Emulated: d.scenario.emulated,
	}
	if d.scenario.contest.Server != "" {
		report.Command, report.File = "make demo TRITON=real", "demo-real"
	}
	report.Stamp(ctx, ".")
	name := d.scenario.figure
	best := "Triton: " + r.tritonHighest.Setup.String()
	report.Add(name+".goodput_ratio", ratio, "ratio", "highest load with at most 1% bad, Conch over Triton; "+best)
	report.Add(name+".triton.goodput", r.tritonHighest.Held(), "req/s", best)
	report.Add(name+".conch.goodput", r.conchHighest.Held(), "req/s", "")
	offered := fmt.Sprintf("offered %.0f req/s", d.scenario.offered)
	report.Add(name+".same_load.triton.goodput", r.tritonSame.Goodput(), "req/s", offered+"; Triton: "+r.tritonSame.Setup.String())
	report.Add(name+".same_load.conch.goodput", r.conchSame.Goodput(), "req/s", offered)
	report.Add(name+".timer_lateness_p99_ms", float64(late)/1e6, "ms", "worst trial")
	if err := report.Print(d.out); err != nil {
		return err
	}
	if d.results == "" {
		return nil // a trial changes no file that pages cite
	}
	return report.Write(d.results)
}

// leaveRunning says how to reach conch and waits.
func (d *demo) leaveRunning(ctx context.Context, conch *rig.Conch) error {
	address := "--admin " + conch.Admin
	ctx, end := context.WithCancel(ctx)
	defer end()
	rate := d.scenario.offered / 2
	load := d.keepBusy(ctx, conch, rate)
	defer func() { end(); <-load }()
	fmt.Fprintf(d.out, "\nconch keeps running under %.0f req/s: gRPC %s, HTTP http://%s, metrics http://%s/metrics\nTry:\n", rate, conch.GRPC, conch.HTTP, conch.Metrics)
	for _, command := range []string{
		fmt.Sprintf("bin/tritonctl %s model ls", address),
		fmt.Sprintf("bin/tritonctl %s plan explain %s", address, models[0]),
		fmt.Sprintf("curl -s http://%s/v2/models/%s/infer -d '{\"inputs\":[{\"name\":\"INPUT\",\"datatype\":\"FP32\",\"shape\":[1,16],"+
			"\"data\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]}]}'", conch.HTTP, models[0]),
	} {
		fmt.Fprintln(d.out, "  "+command)
	}
	link, console, err := d.openConsole(ctx, conch)
	if err != nil {
		return err
	}
	defer func() { end(); <-console }()
	fmt.Fprintf(d.out, "See it in a browser (the link opens once; bin/tritonctl %s ui prints another):\n  %s\n", address, link)
	if d.stay > 0 {
		fmt.Fprintf(d.out, "It ends in %v (DEMO_SECONDS), or with Ctrl-C.\n", d.stay)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.stay)
		defer cancel()
	} else {
		fmt.Fprintln(d.out, "It ends with Ctrl-C.")
	}
	select {
	case <-ctx.Done():
		return nil
	case <-conch.Exited():
		return fmt.Errorf("conch ended by itself (%w):\n%s", conch.ExitError(), conch.LogTail())
	}
}
