// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// piped is a world whose models are asked for by one pipeline only.
func (s small) piped(t testing.TB, slo time.Duration, rate float64, steps ...*policy.PipelineStep) sim.World {
	t.Helper()
	s.rate = 0
	w := s.world(t)
	w.Snapshot.Pipelines = []*policy.Pipeline{{Name: "pipe", SloUs: slo.Microseconds(), Rate: rate, Steps: steps}}
	w.Streams = nil
	stream, err := workload.Renewal{Model: int32(s.models), Curve: workload.Constant(rate), Random: workload.Seed(s.seed, "arrivals", "pipe")}.Stream() //nolint:gosec // few
	require.NoError(t, err)
	w.Streams = append(w.Streams, stream)
	return w
}

// step of a model, by its number.
func step(model int, after ...uint32) *policy.PipelineStep {
	return &policy.PipelineStep{Model: fmt.Sprintf("m%02d", model), After: after}
}

// chain of so many models.
func chain(n int) (steps []*policy.PipelineStep) {
	for i := range n {
		if i == 0 {
			steps = append(steps, step(i))
			continue
		}
		steps = append(steps, step(i, uint32(i-1))) //nolint:gosec // few
	}
	return steps
}

func diamond() []*policy.PipelineStep {
	return []*policy.PipelineStep{step(0), step(1, 0), step(2, 0), step(3, 1, 2)}
}

// TestALonePipelineTakesItsLongestPath: steps that do not need each other run at the same time.
func TestALonePipelineTakesItsLongestPath(t *testing.T) {
	for name, c := range map[string]struct {
		steps []*policy.PipelineStep
		takes time.Duration
	}{
		"chain of three":     {chain(3), 30 * time.Millisecond},
		"diamond":            {diamond(), 30 * time.Millisecond},
		"two beside another": {[]*policy.PipelineStep{step(0), step(1)}, 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			s := small{models: 4, gpus: 4, beta: 9 * time.Millisecond, alpha: time.Millisecond, batch: 8, discipline: "eager", drop: "none", duration: time.Second, seed: 1}
			w := s.piped(t, time.Second, 1, c.steps...)
			w.Streams = []workload.Stream{workload.Slice(workload.Arrival{At: time.Millisecond, Model: 4})}
			r := run(t, w)
			require.EqualValues(t, 1, r.Pipelines[0].Good)
			require.InEpsilon(t, float64(c.takes.Microseconds()), r.Pipelines[0].Latency.MaxUs, .01)
			require.EqualValues(t, 1, r.Total.Arrivals, "a request of a pipeline is one")
		})
	}
}

// TestNoRequestOfAPipelineIsLost: under three times the load, with breakdowns, each ends exactly once, and equal worlds give equal results.
func TestNoRequestOfAPipelineIsLost(t *testing.T) {
	for _, rule := range []sim.StepDeadlines{sim.StepsByLoss, sim.StepsByPresent, sim.StepsLeft, sim.StepsWaiting, sim.StepsByShare, sim.StepsAtEnd} {
		s := resnet50()
		s.models, s.gpus, s.slo, s.duration, s.discipline, s.drop = 4, 4, 0, 10*time.Second, "adaptive", ""
		once := func() *sim.Result {
			steps := diamond()
			steps[1].Rows = 1.5
			w := s.piped(t, 150*time.Millisecond, 2000, steps...)
			w.StepDeadlines = rule
			w.Breakdowns = sim.Breakdowns{Between: 2 * time.Second, Repair: 100 * time.Millisecond}
			return run(t, w)
		}
		r := once()
		p := r.Pipelines[0]
		require.Positive(t, p.Good)
		require.Positive(t, p.Dropped)
		require.Equal(t, p.Arrivals, p.Good+p.Late+p.Dropped+p.Failed+p.Refused+p.Unanswered)
		require.Zero(t, p.Unanswered)
		require.Equal(t, r, once())
	}
}

// TestAPipelineGivesUpEarly: under overload, requests that cannot make it are dropped at the first step and not at the last, whose work would be for nothing.
func TestAPipelineGivesUpEarly(t *testing.T) {
	s := resnet50()
	s.models, s.gpus, s.slo, s.duration, s.discipline, s.drop = 3, 3, 0, 20*time.Second, "adaptive", ""
	ended := func(rule sim.StepDeadlines) (first, last float64) {
		w := s.piped(t, 100*time.Millisecond, 2500, chain(3)...)
		w.StepDeadlines = rule
		p := run(t, w).Pipelines[0]
		return float64(p.Ended[0]) / float64(p.Dropped), float64(p.Ended[2]) / float64(p.Dropped)
	}
	first, last := ended(sim.StepsByLoss)
	require.Greater(t, first, .8)
	require.Less(t, last, .05)
	firstByPresent, _ := ended(sim.StepsByPresent)
	firstAtEnd, _ := ended(sim.StepsAtEnd)
	require.Less(t, firstByPresent, first)
	require.Less(t, firstAtEnd, firstByPresent)
}

func TestPipelinesThatMakeNoSense(t *testing.T) {
	for name, p := range map[string]*policy.Pipeline{
		"no steps":                  {SloUs: 1e6},
		"no SLO":                    {Steps: chain(1)},
		"a model that is not there": {SloUs: 1e6, Steps: chain(9)},
		"a step after itself":       {SloUs: 1e6, Steps: []*policy.PipelineStep{step(0, 0)}},
		"rows below 0":              {SloUs: 1e6, Steps: []*policy.PipelineStep{{Model: "m00", Rows: -1}}},
	} {
		w := resnet50().world(t)
		w.Snapshot.Pipelines = []*policy.Pipeline{p}
		_, err := sim.Run(t.Context(), w)
		require.ErrorIs(t, err, sim.ErrWorld, name)
	}
	w := resnet50().world(t)
	w.StepDeadlines = 99
	_, err := sim.Run(t.Context(), w)
	require.ErrorIs(t, err, sim.ErrWorld)
}
