// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// livePhases are how long a scene's parts last: Learn, until conch knows the rates; then, under the policy's plan, the warm-up and what counts.
type livePhases struct{ learn, warmup, counted time.Duration }

func (b *bench) livePhases() livePhases {
	if b.quick {
		return livePhases{learn: 5 * time.Second, warmup: time.Second, counted: 3 * time.Second}
	}
	return livePhases{learn: 12 * time.Second, warmup: 4 * time.Second, counted: 20 * time.Second}
}

// policiesLive runs policies on real tritonservers that emulate partitions with interference, and the simulator with the plan that served, what the
// profile files declare and the same arrivals: nothing that was learnt live but the delays around executions, which are measured before.
func (b *bench) policiesLive(ctx context.Context, r *figure.Report) error {
	if b.server == "" {
		return errors.New("no tritonserver: run `make bench BENCH=policies-live`, or say --tritonserver")
	}
	if !(b.stretch > 0) {
		return fmt.Errorf("stretch %g: a factor above 0 is needed", b.stretch)
	}
	r.Emulated = fmt.Sprintf("GPUs: an execution of b rows on a share sleeps for l(b, share), with latencies that are ours (bench/policies.go) times %g, slowed by what runs on the "+
		"GPU's other partitions when it starts (policy.Interference.Slowdown, gpulet's coefficients), in the python backend of real tritonservers. Rates are a %gth of what unstretched times would give",
		b.stretch, b.stretch)
	worst, which := 0.0, ""
	for _, s := range liveScenes() {
		name := "policies_live." + s.policy
		if !strings.Contains(name, b.only) {
			continue
		}
		s.stretch = b.stretch
		var planned, over []comparison
		for round := range b.roundsOr(1) {
			p, o, err := b.playScene(ctx, s, b.seed+uint64(round)) //nolint:gosec // small
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			planned, over = append(planned, p), append(over, o)
		}
		addLive(r, name, planned)
		addLive(r, name+".overload", over)
		for _, c := range slices.Concat(planned, over) {
			if ratio := c.over(goodput); max(ratio-1, 1-ratio) > worst {
				worst, which = max(ratio-1, 1-ratio), c.name+c.disturbed()
			}
		}
	}
	if b.only == "" {
		r.Add("policies_live.worst_difference", worst, "ratio", "the largest difference of a goodput ratio from 1: "+which)
	}
	return nil
}

// addLive writes the figures of one scene at one load.
func addLive(r *figure.Report, name string, runs []comparison) {
	values := map[string][]float64{}
	var note string
	for _, c := range runs {
		for key, v := range map[string]float64{
			"goodput": goodput(c.live), "simulated_goodput": goodput(c.simulated), "goodput_ratio": c.over(goodput), "p99_ratio": c.over(tail),
			"bad": 100 * c.live.bad(), "simulated_bad": 100 * c.simulated.bad(), "executions": c.executions,
		} {
			values[key] = append(values[key], v)
		}
		note = fmt.Sprintf("%d partitions; sleeps ended %v late, machine load %.1f%s", c.partitions, round(c.lateness), c.delays.machineLoad, c.disturbed())
	}
	r.AddRuns(name+".goodput", values["goodput"], "req/s", "live; "+note)
	r.AddRuns(name+".simulated_goodput", values["simulated_goodput"], "req/s", "")
	r.AddRuns(name+".goodput_ratio", values["goodput_ratio"], "ratio", "live over simulated, same plan and arrivals; "+note)
	r.AddRuns(name+".p99_ratio", values["p99_ratio"], "ratio", "live over simulated")
	r.AddRuns(name+".bad", values["bad"], "%", "live, late or dropped")
	r.AddRuns(name+".simulated_bad", values["simulated_bad"], "%", "")
	r.AddRuns(name+".executions", values["executions"], "1/s", "live")
}

// served starts conch with a scene's models, has the scene's policy take over under load, and calls do once its plan serves; base has what was measured
// of requests that were alone.
func (b *bench) served(ctx context.Context, s liveScene, seed uint64, do func(conch *rig.Conch, base comparison, plan *policy.Plan) error) (err error) {
	models := rig.Emulated(s.models()...)
	await := models.Names()
	if s.app != nil {
		await = []string{s.app.name}
	}
	conch, err := rig.StartConch(ctx, rig.ConchOptions{
		Bin: b.bin, Server: b.server, Models: models, Await: await, GPUs: s.gpus, Late: "drop", Settings: s.settings(),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	admin, err := client.New(conch.Admin)
	if err != nil {
		return err
	}
	defer admin.Close()

	base := comparison{slo: models.Load()[0].SLO, stage: stage{name: s.policy, stretch: s.stretch}}
	for _, m := range models.Load() {
		base.slo = min(base.slo, m.SLO)
	}
	base.delays.machineLoad = loadAverage()
	// Models that still load and warm up take turns with what is to be measured alone.
	if err := awaitReady(ctx, admin); err != nil {
		return err
	}
	if err := base.delays.measure(ctx, conch, admin, models, s.times(float64(loneEvery)/float64(time.Millisecond))); err != nil {
		return err
	}
	plan, err := s.underLoad(ctx, conch, admin, seed, b.livePhases().learn)
	if err != nil {
		return err
	}
	base.partitions = len(plan.GetPartitions())
	b.say(fmt.Sprintf("%s: %s", s.policy, placed(plan)))
	if err := do(conch, base, plan); err != nil {
		return err
	}
	now, err := planOf(ctx, admin)
	if err == nil && placed(now) != placed(plan) {
		err = fmt.Errorf("the plan changed while it was measured: %s, then %s", placed(plan), placed(now))
	}
	return err
}

// playScene serves one scene live and simulates it: at the rates that the plan is for, and over them.
func (b *bench) playScene(ctx context.Context, s liveScene, seed uint64) (planned, over comparison, err error) {
	err = b.served(ctx, s, seed, func(conch *rig.Conch, base comparison, plan *policy.Plan) error {
		if planned, err = b.playAt(ctx, conch, s, base, plan, s.policy, 1, seed+1000); err != nil {
			return err
		}
		over, err = b.playAt(ctx, conch, s, base, plan, s.policy+", overloaded", s.overload, seed+2000)
		return err
	})
	return planned, over, err
}

// playAt offers a scene's load, so many times its rates, live and simulated.
func (b *bench) playAt(ctx context.Context, conch *rig.Conch, s liveScene, c comparison, plan *policy.Plan, name string, times float64, seed uint64) (comparison, error) {
	phases := b.livePhases()
	c.name = name
	given, err := s.arrivals(seed, times, phases.warmup+phases.counted)
	if err != nil {
		return c, err
	}
	if err := c.play(ctx, conch, s, given, phases.warmup, phases.counted); err != nil {
		return c, err
	}
	if err := c.replay(ctx, s, plan, phases.warmup, phases.counted); err != nil {
		return c, err
	}
	for _, line := range c.lines() {
		b.say(line)
	}
	return c, nil
}

// underLoad has a policy take over under load, once conch knows the rates, and returns its plan once that serves.
func (s liveScene) underLoad(ctx context.Context, conch *rig.Conch, admin *client.Client, seed uint64, learn time.Duration) (*policy.Plan, error) {
	const longest = 2 * time.Minute
	given, err := s.arrivals(seed, 1, learn+longest)
	if err != nil {
		return nil, err
	}
	end := make(chan struct{})
	var plan *policy.Plan
	var switching error
	go func() {
		defer close(end)
		plan, switching = s.use(ctx, admin, learn, longest)
	}()
	trial, err := rig.Measure(ctx, conch, loadgen.Load{Models: s.load(), Given: given, Measure: learn + longest, Until: end, Patience: 2 * time.Second})
	<-end
	if err := errors.Join(err, switching); err != nil {
		return nil, err
	}
	if _, wrong, first := trial.Faults(); wrong > 0 {
		return nil, fmt.Errorf("%d wrong answers while policies changed, the first: %w", wrong, first)
	}
	return plan, nil
}

// use waits, swaps the policy, applies what it plans, and waits until that serves.
func (s liveScene) use(ctx context.Context, admin *client.Client, learn, within time.Duration) (*policy.Plan, error) {
	select {
	case <-time.After(learn):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if _, err := admin.UsePolicy(ctx, api.UsePolicyRequest{Name: s.policy, Parameters: s.parameters}); err != nil {
		return nil, err
	}
	if _, err := admin.Apply(ctx, api.ApplyRequest{}); err != nil {
		return nil, err
	}
	if err := awaitReady(ctx, admin); err != nil {
		return nil, fmt.Errorf("policy %s: %w", s.policy, err)
	}
	return planOf(ctx, admin)
}

// awaitReady waits until every partition serves what the plan asks of it, and none is on its way out.
func awaitReady(ctx context.Context, admin *client.Client) error {
	for {
		gpus, err := admin.GPUs(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(gpus, func(g api.GPU) bool { return slices.ContainsFunc(g.Partitions, unready) }) {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the plan does not serve in time: %w", ctx.Err())
		}
	}
}

// unready is a partition that is on its way, or on its way out.
func unready(p api.Partition) bool {
	ready, known := api.ConditionOf(p.Conditions, api.ConditionReady)
	return p.Retiring || !known || !ready.Holds
}

func planOf(ctx context.Context, admin *client.Client) (*policy.Plan, error) {
	shown, err := admin.Plan(ctx)
	if err != nil {
		return nil, err
	}
	plan := &policy.Plan{}
	return plan, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(shown.Plan, plan)
}

// placed is where a plan has models, in a line.
func placed(p *policy.Plan) string {
	var words []string
	for _, part := range p.GetPartitions() {
		var models []string
		for _, in := range part.GetInstances() {
			models = append(models, in.GetModel())
		}
		words = append(words, fmt.Sprintf("%s %d%%: %s", part.GetId(), part.GetThreadPercentage(), strings.Join(models, " ")))
	}
	return strings.Join(words, "; ")
}

// play offers the arrivals live.
func (c *comparison) play(ctx context.Context, conch *rig.Conch, s liveScene, given []loadgen.Arrival, warmup, length time.Duration) error {
	trial, err := rig.Measure(ctx, conch, loadgen.Load{Models: s.load(), Given: given, Warmup: warmup, Measure: length, Patience: 2 * time.Second, Log: true})
	if err != nil {
		return err
	}
	if _, wrong, first := trial.Faults(); wrong > 0 {
		return fmt.Errorf("%d wrong answers, the first: %w", wrong, first)
	}
	c.start, c.log, c.lateness = trial.Start, trial.Log, trial.Lateness
	c.live.seconds, c.live.batch = length.Seconds(), trial.MeanBatch
	c.live.count(trial.Log, s.load(), warmup)
	c.executions = float64(len(latencies(trial.Log))) / trial.MeanBatch / (warmup + length).Seconds()
	return nil
}

// replay simulates the arrivals as they were sent, under the plan that served them.
func (c *comparison) replay(ctx context.Context, s liveScene, plan *policy.Plan, warmup, length time.Duration) error {
	snapshot := s.snapshot()
	for _, part := range plan.GetPartitions() {
		snapshot.Nodes[0].Name = part.GetNode()
	}
	traffic := &evaluate.Traffic{Length: warmup + length}
	for _, m := range s.load() {
		traffic.Names = append(traffic.Names, m.Name)
	}
	for _, e := range c.log {
		traffic.Arrivals = append(traffic.Arrivals, workload.Arrival{At: e.Sent, Model: int32(e.Model), Rows: 1}) //nolint:gosec // small
		traffic.Length = max(traffic.Length, e.Sent+1)
	}
	w := evaluate.New(snapshot, traffic).World(plan)
	w.Warmup, w.Knowledge = warmup, sim.LearnDelays
	w.Delays = sim.Delays{Request: c.delays.request, Control: c.delays.control, Response: max(0, c.delays.call-c.delays.emulated), Reply: c.delays.reply}
	r, err := sim.Run(ctx, w)
	if err != nil {
		return err
	}
	c.simulated = side{
		seconds: length.Seconds(), good: int(r.Total.Good), arrived: int(r.Total.Arrivals), p99: time.Duration(r.Latency.P99Us * 1e3), batch: meanBatch(r),
	}
	return nil
}
