// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// delays are what lies around executions, measured with requests that are alone: each of them starts at once.
type delays struct {
	// request is from the caller's send to its arrival at conch, control from there to the call of the server, reply from when conch has the
	// answer to the caller: means.
	request, control, reply time.Duration
	// call is what conch has learnt that a call of the server with one row takes at the whole GPU, emulated what of it the GPU takes.
	call, emulated time.Duration
	// deviation is the standard deviation of the latency.
	deviation   time.Duration
	machineLoad float64
	restored    time.Duration // how long a killed server was away; 0: none was killed
	// lone are those requests, since start.
	lone  []loadgen.Entry
	start time.Time
}

// loneEvery is between two lone requests, before the stretch; there are loneRequests of them.
const (
	loneEvery    = 16 * time.Millisecond
	loneRequests = 32
)

func (d *delays) measure(ctx context.Context, conch *rig.Conch, admin *client.Client, models rig.Models, every time.Duration) error {
	first, long := models.Load()[:1], loneRequests*every
	var lone []loadgen.Arrival
	for i := range loneRequests {
		lone = append(lone, loadgen.Arrival{At: time.Duration(i) * every})
	}
	var trace bytes.Buffer
	recorded := make(chan error, 1)
	go func() {
		_, err := admin.Record(ctx, long+2*time.Second, &trace)
		recorded <- err
	}()
	before, err := conch.Usage(ctx)
	if err != nil {
		return errors.Join(err, <-recorded)
	}
	trial, err := rig.Measure(ctx, conch, loadgen.Load{Models: first, Given: lone, Measure: long, Patience: time.Second, Log: true})
	if err := errors.Join(err, <-recorded); err != nil {
		return err
	}
	after, err := conch.Usage(ctx)
	if err != nil {
		return err
	}
	if bad := trial.Models[0].Sent - len(latencies(trial.Log)); bad > 0 {
		return fmt.Errorf("%d of %d requests that were alone had no answer", bad, trial.Models[0].Sent)
	}
	used := after.Since(before)[first[0].Name]
	if used.Requests == 0 {
		return errors.New("conch counts no request of those that were alone")
	}
	d.lone, d.start = trial.Log, trial.Start
	d.control = time.Duration(used.Queued) * time.Microsecond / time.Duration(used.Requests)
	if d.request, err = travelled(&trace, trial.Result, every); err != nil {
		return err
	}
	raw, err := admin.Snapshot(ctx)
	if err != nil {
		return err
	}
	if d.call, err = learnt(raw, first[0].Name); err != nil {
		return err
	}
	d.emulated = models.Latency(1)
	all := latencies(trial.Log)
	// Both means are of the same requests: what delayed one of them in conch or its server is in both.
	within := time.Duration(used.Within) * time.Microsecond / time.Duration(used.Requests)
	d.reply = max(0, mean(all)-within-d.request)
	d.deviation = deviation(all)
	return nil
}

// travelled is the mean time from when a request was sent until conch had it, by conch's own recording.
func travelled(trace *bytes.Buffer, result *loadgen.Result, every time.Duration) (time.Duration, error) {
	r, err := workload.NewReader(trace)
	if err != nil {
		return 0, err
	}
	var all []time.Duration
	for a := (workload.Arrival{}); r.Next(&a); {
		at := r.Header.Start.Add(a.At)
		for _, e := range result.Log {
			// Both are readings of this machine's clock. Lone requests are too far apart to be taken for each other.
			if d := at.Sub(result.Start.Round(0).Add(e.Sent)); d > -every/4 && d < every/2 {
				all = append(all, max(0, d))
			}
		}
	}
	if err := r.Err(); err != nil {
		return 0, err
	}
	if len(all) < loneRequests/2 {
		return 0, fmt.Errorf("conch recorded only %d of %d requests that were alone", len(all), len(result.Log))
	}
	return mean(all), nil
}

// learnt is what conch has learnt that a call with one row takes, at the whole GPU.
func learnt(raw []byte, model string) (time.Duration, error) {
	s, err := scenario.FromSnapshot(raw, nil)
	if err != nil {
		return 0, err
	}
	w, err := s.World(scenario.Options{})
	if err != nil {
		return 0, err
	}
	for _, p := range w.Snapshot.GetProfiles() {
		if us, ok := p.Latency(1, 100); ok && p.GetModel() == model {
			return time.Duration(us * float64(time.Microsecond)), errors.Join(w.Close())
		}
	}
	return 0, errors.Join(fmt.Errorf("conch has no profile of model %s", model), w.Close())
}

// addDelays writes what was measured of one kind of Triton over all scenarios, and by how much the one that differs most does.
func addDelays(r *figure.Report, name string, all []comparison) {
	if len(all) == 0 {
		return
	}
	worst, which := 0.0, ""
	for _, c := range all {
		for what, value := range map[string]func(side) float64{"goodput": goodput, "p99": tail} {
			if ratio := c.over(value); math.Abs(ratio-1) > worst {
				worst, which = math.Abs(ratio-1), "the largest difference of a ratio from 1: "+what+" of "+c.name+c.disturbed()
			}
		}
	}
	r.Add(name+".worst_difference", worst, "ratio", which)
	note := "requests that are alone; each scenario's own is what its simulation is given"
	add := func(what, unit, note string, value func(comparison) float64) {
		var runs []float64
		for _, c := range all {
			if v := value(c); !math.IsNaN(v) {
				runs = append(runs, v)
			}
		}
		r.AddRuns(name+"."+what, runs, unit, note)
	}
	micros := func(d time.Duration) float64 { return float64(d) / 1e3 }
	add("request_us", "us", note+"; from the caller to conch", func(c comparison) float64 { return micros(c.delays.request) })
	add("control_us", "us", note+"; from conch's receiving a request to its call of the server", func(c comparison) float64 { return micros(c.delays.control) })
	add("call_us", "us", note+"; what the call takes beyond the emulated time, which is part of the learnt profile", func(c comparison) float64 { return micros(c.delays.call - c.delays.emulated) })
	add("reply_us", "us", note+"; from when conch has the answer to the caller", func(c comparison) float64 { return micros(c.delays.reply) })
	add("jitter_us", "us", "standard deviation of a lone request's latency, the outermost twentieths pulled in", func(c comparison) float64 { return micros(c.delays.deviation) })
	add("execution_jitter", "ratio", "standard deviation of executions under load over their mean, by the learnt profile; the simulation has none", func(c comparison) float64 { return c.jitter })
	add("restart_s", "s", "from SIGKILL of a server until conch has it up again with its models", func(c comparison) float64 {
		if c.delays.restored == 0 {
			return math.NaN()
		}
		return c.delays.restored.Seconds()
	})
	add("timer_lateness_p99_ms", "ms", "of sleeps in the load generator: what the machine alone adds", func(c comparison) float64 { return float64(c.lateness) / 1e6 })
	add("send_lateness_p99_ms", "ms", "requests were sent this late; the simulation is given when they really were", func(c comparison) float64 { return float64(c.sendLateness()) / 1e6 })
	add("machine_load", "threads", "that wanted a processor, in the minute before each scenario", func(c comparison) float64 { return c.delays.machineLoad })
}
