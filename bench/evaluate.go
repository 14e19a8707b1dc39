// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
)

// What a policy may ask at once: so many plans of so many models on so many partitions, under so many requests a second in all.
const (
	evaluatedModels     = 8
	evaluatedPartitions = 8
	evaluatedRate       = 2000.0
	evaluatedSeconds    = 10
)

// evaluating measures how long the process that evaluates plans takes, and whether the request path notices it: the 99th percentile of the
// latency through conch while plans are evaluated without a pause, over that while none is, in turns.
func (b *bench) evaluating(ctx context.Context, r *figure.Report) (err error) {
	r.Emulated = "GPU time: one model of 2 ms a batch, on one emulated GPU, embedded in conch"
	plans := evaluatedPlans(rand.New(rand.NewPCG(b.seed, 0)))
	// Conch's own command, started as conch starts it: one core, the lowest priority. A process group of its own is what it lowers.
	child := evaluate.NewChild(func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "conch"), "evaluate")
		cmd.Env = []string{}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd
	}, nil)
	defer func() { err = errors.Join(err, child.Close()) }()
	var seconds, processor []float64
	snapshot := evaluatedWorld(b.seed)
	for range b.roundsOr(5) {
		before, err := ofEndedChildren()
		if err != nil {
			return err
		}
		began := time.Now()
		outcomes, err := child.Evaluate(ctx, snapshot, plans)
		if err != nil {
			return err
		}
		seconds = append(seconds, time.Since(began).Seconds())
		for i, o := range outcomes {
			if len(o.GetViolations()) > 0 || o.GetGoodput() == 0 {
				return fmt.Errorf("plan %d was not evaluated: goodput %g, %v", i, o.GetGoodput(), o.GetViolations())
			}
		}
		if err := child.Close(); err != nil { // the next question starts another
			return err
		}
		after, err := ofEndedChildren()
		if err != nil {
			return err
		}
		processor = append(processor, (after - before).Seconds())
	}
	b.say(fmt.Sprintf("%d plans in %.2f s, %.2f s of processor time", len(plans), median(seconds), median(processor)))
	r.AddRuns("evaluate.seconds", seconds, "s", fmt.Sprintf("from the question to the outcomes of %d plans of %d models on %d partitions, %d s of %g req/s, by a process of one core at nice 19; its start and the drawing of the traffic included",
		len(plans), evaluatedModels, evaluatedPartitions, evaluatedSeconds, evaluatedRate))
	r.AddRuns("evaluate.processor_seconds", processor, "s", "processor time of that process, which a busy machine changes less")
	return b.evaluatingBeside(ctx, r, func(ctx context.Context) error {
		_, err := child.Evaluate(ctx, snapshot, plans)
		return err
	})
}

// evaluatingBeside measures the request path with evaluations and without.
func (b *bench) evaluatingBeside(ctx context.Context, r *figure.Report, ask func(context.Context) error) (err error) {
	models := rig.Copies(zoo.Profile{Model: "beside", GPUType: zoo.A100, Beta: 2 * time.Millisecond, SLO: 100 * time.Millisecond}, 1, 1, 16)
	conch, err := rig.StartConch(ctx, rig.ConchOptions{
		Bin: b.bin, Models: models, GPUs: 1,
		// A discipline that defers would hide what the path takes. The plan does not change, and no other evaluation runs.
		Settings: map[string]any{"defaults": map[string]any{"discipline": "eager"}, "interval": "1h"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	// 2,500 requests a run: the 99th percentile of 1,250 varied by a tenth from run to run, as much as what is looked for.
	const rate, warm, length = 250, time.Second, 10 * time.Second
	evaluations := 0
	measure := func(evaluate bool, seed uint64) (p99 float64, err error) {
		asked := make(chan error, 1)
		within, stop := context.WithCancel(ctx)
		go func() {
			var err error
			for evaluate && err == nil && within.Err() == nil {
				if err = ask(within); err == nil {
					evaluations++
				}
			}
			if within.Err() != nil { // the question that the end of the load ended
				err = nil
			}
			asked <- err
		}()
		trial, err := rig.Measure(ctx, conch, loadgen.Load{Models: models.Load(), Rate: rate, Warmup: warm, Measure: length, Patience: 5 * time.Second, Seed: seed})
		stop()
		if err = errors.Join(err, <-asked); err != nil {
			return 0, err
		}
		if failed, wrong, first := trial.Faults(); failed+wrong > 0 {
			return 0, fmt.Errorf("%d requests failed and %d answers were wrong, the first: %w", failed, wrong, first)
		}
		latency, ok := trial.Models[0].Quantile(.99)
		if !ok {
			return 0, fmt.Errorf("more than 1%% of %d requests were not answered", trial.Models[0].Sent)
		}
		return float64(latency) / float64(time.Millisecond), nil
	}
	// The callers run on the same processors as Conch and the evaluation. Once they run first, as callers on other machines do; once they
	// wait for a processor themselves, which their latency has in it, too.
	for _, callers := range []struct {
		name, of string
		first    bool
	}{
		{"evaluate.p99", "callers run first (SCHED_RR), as if on another machine", true},
		{"evaluate.shared_p99", "callers share the processors and wait for them, too", false},
	} {
		var alone, beside, ratio []float64
		for i := range b.roundsOr(10) {
			var p99 [2]float64
			for turn := range 2 {
				with := (i+turn)%2 == 1 // the order alternates, too
				got, err := prioritised(callers.first, func() (float64, error) { return measure(with, b.seed+uint64(i)) })
				if err != nil {
					return err
				}
				if with {
					p99[1] = got
				} else {
					p99[0] = got
				}
			}
			alone, beside, ratio = append(alone, p99[0]), append(beside, p99[1]), append(ratio, p99[1]/p99[0])
			b.say(fmt.Sprintf("p99 %.2f ms alone, %.2f ms beside evaluations (%s)", p99[0], p99[1], callers.name))
		}
		if evaluations == 0 {
			return errors.New("no evaluation ended while requests were served: there is nothing to compare")
		}
		r.AddRuns(callers.name+"_ratio", ratio, "ratio", fmt.Sprintf("p99 through conch at %d req/s while plans are evaluated, over that while none is, in turns with the same arrivals; %s", rate, callers.of))
		r.AddRuns(callers.name+"_alone_ms", alone, "ms", "while nothing is evaluated")
		r.AddRuns(callers.name+"_beside_ms", beside, "ms", "while plans are evaluated")
	}
	return nil
}

// prioritised measures with this process's threads before all others, or among them.
func prioritised(first bool, measure func() (float64, error)) (float64, error) {
	if first {
		stop, err := runsFirst()
		if err != nil {
			return 0, fmt.Errorf("the load generator cannot run first: %w; run as root, or with CAP_SYS_NICE", err)
		}
		defer stop()
	}
	return measure()
}

// ofEndedChildren is the processor time of this process's children that have ended.
func ofEndedChildren() (time.Duration, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &used); err != nil {
		return 0, fmt.Errorf("processor time of the evaluating process: %w", err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}

// evaluatedWorld is a snapshot with traffic of models of l(b) = b + 5 ms, each with an SLO of 25 ms.
func evaluatedWorld(seed uint64) *policy.Snapshot {
	s := &policy.Snapshot{Revision: 1, Seed: seed, Evaluations: policy.MaxEvaluatePlans, Nodes: []*policy.Node{{Name: "n"}}}
	for i := range evaluatedPartitions {
		s.Nodes[0].Gpus = append(s.Nodes[0].Gpus, &policy.GPU{Id: fmt.Sprint("gpu", i), Type: "emulated", Index: uint32(i), Emulated: true})
	}
	for i := range evaluatedModels {
		name := fmt.Sprint("m", i)
		const rate = evaluatedRate / evaluatedModels
		s.Models = append(s.Models, &policy.Model{
			Name: name, SloUs: 25_000, MaxBatchSize: 16, Batchable: true, Rate: rate, RowRate: rate, Burstiness: 1, Late: policy.LatePolicy_LATE_POLICY_DROP,
		})
		p := &policy.Profile{Model: name, GpuType: "emulated", Usable: true}
		for _, batch := range []uint32{1, 16} {
			l := 1000*float64(batch) + 5000
			p.Points = append(p.Points, &policy.ProfilePoint{Batch: batch, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: l}, LatencyUpperUs: l})
		}
		s.Profiles = append(s.Profiles, p)
	}
	s.Traffic = evaluate.Promise(s, evaluatedSeconds*time.Second)
	return s
}

// evaluatedPlans are as many plans as a policy may ask about at once, all different: seven of eight instances that could be are there.
func evaluatedPlans(random *rand.Rand) (plans []*policy.Plan) {
	for range policy.MaxEvaluatePlans {
		p := &policy.Plan{SnapshotRevision: 1}
		for g := range evaluatedPartitions {
			id := fmt.Sprint("gpu", g)
			part := &policy.Partition{Id: id, Node: "n", Gpus: []string{id}, ThreadPercentage: 100, Rank: uint32(g)}
			for m := range evaluatedModels {
				if m == g || random.IntN(evaluatedPartitions) > 0 { // every model has a place
					part.Instances = append(part.Instances, policy.ModelInstance(fmt.Sprint("m", m), 0))
				}
			}
			p.Partitions = append(p.Partitions, part)
		}
		plans = append(plans, p)
	}
	return plans
}
