// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// ErrWorld is wrapped by errors about worlds that make no sense.
var ErrWorld = errors.New("sim: the world cannot be simulated")

// World is what is simulated. It is used up by one [Run]: streams are read.
type World struct {
	// Snapshot holds GPUs, models with their SLOs and the rates that the first plan is made for, profiles, interference coefficients,
	// offers, what changes cost, constraints, and the policy's parameters. An execution takes Profile.Latency; the queue plans with
	// Profile.Upper. It is not changed.
	Snapshot *policy.Snapshot
	// Plan is in force from the start; nil means that Policy is asked for it.
	Plan *policy.Plan
	// Nodes are servers over several GPUs, each the ids of the partitions that stand for its GPUs, of equal type: the server itself chooses the GPU of a batch,
	// where other models' may be before it.
	Nodes [][]string
	// Policy is asked for plans; nil means that Plan stays. A policy in this process and one in a process of its own (policyhost.Host) do
	// equally.
	Policy Policy
	// Replan says when Policy is asked again.
	Replan Replan
	// StepDeadlines says how the deadlines of the steps of the snapshot's pipelines follow from theirs.
	StepDeadlines StepDeadlines
	// Streams are the arrivals; Arrival.Model is the model's index in Snapshot.Models, or that of a pipeline after the last model.
	Streams []workload.Stream
	// Duration is how long requests arrive. Those that arrive before Warmup do not count. What is queued at the end is still served, for at
	// most Drain (0: a minute).
	Duration, Warmup, Drain time.Duration
	// Seed of everything random but the streams.
	Seed uint64
	// Delays lie between callers, Conch and the partitions.
	Delays Delays
	// Knowledge says what the queue knows of them, and of what is late.
	Knowledge Knowledge
	// Jitter is the standard deviation of an execution's time, as a fraction of it (a multiplicative normal, never below a tenth).
	Jitter float64
	// Expect says what slowdown by co-runners the queue's profiles include.
	Expect Expectation
	// Adaptive is what the constants of the discipline adaptive are instead of its own, to measure what each brings; nil means its own.
	Adaptive *adaptive.Params
	// Failures are planned, Breakdowns random.
	Failures   []Failure
	Breakdowns Breakdowns
	// RateWindow is the queue's (queue.Options); 0 means its default.
	RateWindow time.Duration
	// Bins is the number of intervals of the result's history; 0 means 60.
	Bins int
	// Timeline asks for single batches in the result.
	Timeline Timeline
	// Progress is called now and then with how far virtual time is; it may be nil. The result does not depend on it.
	Progress func(now time.Duration)
}

// Policy is what the simulator needs of a policy.Policy, and of a host of one.
type Policy interface {
	Plan(context.Context, *policy.Snapshot) (*policy.Plan, error)
}

// Delays are one-way times between a caller and Conch, and between Conch and a partition.
type Delays struct {
	// Request is from the caller to the queue, Reply from Conch to the caller. Latencies and SLOs are the caller's: they include both. No
	// partition waits for either.
	Request, Reply time.Duration
	// Control is from the decision to the partition, for a batch without data; DataPerRow is added for each row.
	Control, DataPerRow time.Duration
	// Response is from the end of the execution to Conch, which then answers the callers and sees that the partition is free.
	Response time.Duration
	// Jitter is added to Control and to Response, evenly from 0 up to it.
	Jitter time.Duration
}

// Knowledge says what the queue plans with.
type Knowledge uint8

const (
	// KnowDelays tells the queue all delays: profiles include those to the partition and twice their jitter, and Reply is kept back from
	// deadlines.
	KnowDelays Knowledge = iota
	// LearnDelays does what a live Conch does, by the same code (package forecast): a deadline is the SLO from when Conch has the request,
	// less forecast.ResponseBudget and the margin that the lateness of earlier batches asks for; profiles include what Control was so far
	// (forecast.Budget), and DataPerRow and Response as a live profile, which is measured around the call, has them. In front of Nodes l(b) itself is learnt,
	// by package curve: what batches wait there for each other is part of it.
	LearnDelays
)

// Replan says when the policy is asked again. The zero value means never.
type Replan struct {
	// Every so often; 0 means that only the other triggers count.
	Every time.Duration
	// RateUp and RateDown are fractions of the rate that the plan was made for, RateUpBy requests per second (gpulet's rule): whatever of
	// the first two is less. 0 switches a trigger off. A change within two standard deviations of Poisson noise is none.
	RateUp, RateUpBy, RateDown float64
	// BadRate of a model over the rate window; 0 switches the trigger off.
	BadRate float64
	// OnFailure: when a GPU or partition fails or comes back, or a rented GPU arrives.
	OnFailure bool
	// Hold is how long a threshold must stay crossed, Cooldown the least time between plans because of thresholds.
	Hold, Cooldown time.Duration
	// Takes is how long the policy thinks, in virtual time.
	Takes time.Duration
}

// Expectation says what slowdown by co-runners the queue plans with. A live Conch learns it; the simulator computes it from the plan.
type Expectation uint8

const (
	// ExpectWorst plans with the worst batch that the plan can put beside each partition.
	ExpectWorst Expectation = iota
	// ExpectNone plans as if every partition were alone.
	ExpectNone
)

// Failure takes a GPU or a partition away for a while.
type Failure struct {
	// At is when, For how long; For 0 means for ever.
	At, For time.Duration
	// GPU is "node/id", or "id" where that names one GPU; Partition is a partition's id. One of them is given.
	GPU, Partition string
}

// Breakdowns makes every GPU fail at random: the times to failure and to repair are exponentially distributed.
type Breakdowns struct {
	// Between is the mean time from a GPU's recovery to its next failure, 0 for none; Repair the mean time until it is back.
	Between, Repair time.Duration
}

// Timeline selects batches for Result.Timeline.
type Timeline struct {
	// From and To bound the starts; Max the number of batches, the first ones stay. Max 0 means none.
	From, To time.Duration
	Max      int
}

func (w *World) check() error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrWorld, fmt.Sprintf(format, args...))
	}
	switch {
	case w.Snapshot == nil || len(w.Snapshot.GetModels()) == 0:
		return wrong("it has no models")
	case w.Plan == nil && w.Policy == nil:
		return wrong("it has neither a plan nor a policy")
	case w.Duration <= 0 || w.Warmup < 0 || w.Warmup >= w.Duration:
		return wrong("duration %v must be above warmup %v, and that not below 0", w.Duration, w.Warmup)
	case !(w.Jitter >= 0 && w.Jitter <= 1):
		return wrong("jitter %g is not from 0 to 1", w.Jitter)
	case w.Delays.Request < 0 || w.Delays.Reply < 0 || w.Delays.Control < 0 || w.Delays.DataPerRow < 0 || w.Delays.Response < 0 || w.Delays.Jitter < 0:
		return wrong("a delay is below 0")
	case w.StepDeadlines > StepsAtEnd:
		return wrong("there is no rule %d for the deadlines of steps", w.StepDeadlines)
	case w.Knowledge > LearnDelays:
		return wrong("there is no knowledge %d", w.Knowledge)
	case w.Breakdowns.Between < 0 || w.Breakdowns.Repair < 0 || w.Breakdowns.Between > 0 && w.Breakdowns.Repair == 0:
		return wrong("breakdowns need a time between them and a time of repair above 0")
	case w.Bins < 0 || w.Bins > 1e6 || w.Timeline.Max < 0:
		return wrong("%d bins and %d batches of timeline", w.Bins, w.Timeline.Max)
	}
	if err := w.Snapshot.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrWorld, err)
	}
	for i, f := range w.Failures {
		if (f.GPU == "") == (f.Partition == "") || f.At < 0 || f.For < 0 {
			return wrong("failure %d needs a GPU or a partition, and times not below 0", i+1)
		}
	}
	return nil
}
