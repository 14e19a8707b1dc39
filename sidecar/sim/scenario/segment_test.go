// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// abacus is two models of one GPU, each of which leaves half of it idle: what Abacus is for.
const abacus = `apiVersion: conch-sim/v1
duration: 20s
warmup: 1s
gpus: [{type: X}]
models:
  - {name: a, operators: 20, profile: {alpha: 1ms, beta: 19ms, creq: .5}, slo: 120ms, maxBatch: 1, rate: 30, late: drop}
  - {name: b, operators: 10, profile: {alpha: 1ms, beta: 18ms, creq: .5}, slo: 150ms, maxBatch: 2, rate: 30, late: drop, arrivals: {rows: 2}}
`

func simulated(t *testing.T, text string, seed uint64) *sim.Result {
	t.Helper()
	s, err := scenario.Parse("abacus.yaml", []byte(text))
	require.NoError(t, err)
	r, err := s.Run(t.Context(), scenario.Options{Seed: seed})
	require.NoError(t, err)
	return r
}

// Overlapped queries of two models serve more than the same queries one after the other, which is what eager does without batches. No query is
// late: those that would be are dropped. Requests add up, and equal seeds give equal bytes.
func TestSegment(t *testing.T) {
	overlapped := simulated(t, abacus+"dispatch: {discipline: segment}\n", 1)
	alone := simulated(t, abacus+"dispatch: {discipline: eager}\n", 1)
	require.Equal(t, alone.Total.Arrivals, overlapped.Total.Arrivals, "the same requests arrive")
	require.Greater(t, overlapped.Total.Goodput, 1.05*alone.Total.Goodput)
	require.Less(t, overlapped.Total.BadRate, .05)
	for i, m := range overlapped.Models {
		require.Equal(t, m.Arrivals, m.Good+m.Late+m.Dropped)
		require.Equal(t, []int{1, 2}[i], m.MedianBatch, "a query is a request")
		require.Positive(t, m.Latency.P50Us)
		require.Less(t, m.Latency.P99Us, 1.01*float64(m.SLOUs))
	}
	require.Zero(t, overlapped.Total.Late, "predictions are exact here")
	require.Len(t, overlapped.History, 60)
	sum := uint64(0)
	for _, h := range overlapped.History {
		sum += h.Arrivals
	}
	require.Greater(t, sum, overlapped.Total.Arrivals, "the warm-up is in the history too")

	first, err := json.Marshal(overlapped)
	require.NoError(t, err)
	second, err := json.Marshal(simulated(t, abacus+"dispatch: {discipline: segment}\n", 1))
	require.NoError(t, err)
	require.Equal(t, string(first), string(second))
	third, err := json.Marshal(simulated(t, abacus+"dispatch: {discipline: segment}\n", 2))
	require.NoError(t, err)
	require.NotEqual(t, string(first), string(third))
}

// Where predictions are off, some that were let in are late; a margin trades them for drops.
func TestSegmentWithErrors(t *testing.T) {
	busy := strings.ReplaceAll(abacus, "rate: 30", "rate: 45")
	bold := simulated(t, busy+"jitter: .1\ndispatch: {discipline: segment, parameters: {margin: '0'}}\n", 1)
	careful := simulated(t, busy+"jitter: .1\ndispatch: {discipline: segment, parameters: {margin: '.3'}}\n", 1)
	require.Greater(t, bold.Total.Late, careful.Total.Late)
}

// A model that the plan leaves out is refused; each GPU decides for its own models.
func TestSegmentOnSeveralGPUs(t *testing.T) {
	two := strings.Replace(abacus, "{type: X}", "{type: X, count: 2}", 1)
	r := simulated(t, two+"plan: {partitions: [{gpu: gpu0, models: [a]}, {gpu: gpu1, models: [b]}]}\ndispatch: {discipline: segment}\n", 1)
	require.Len(t, r.Partitions, 2)
	require.Zero(t, r.Total.Refused)
	r = simulated(t, two+"plan: {partitions: [{gpu: gpu0, models: [a]}]}\ndispatch: {discipline: segment}\n", 1)
	require.Equal(t, r.Models[1].Arrivals, r.Models[1].Refused)
	require.Positive(t, r.Models[0].Good)
}

// Where Abacus's model does not apply, the error gives the reason, and the place in the file if the file alone shows it.
func TestSegmentSaysWhereItCannot(t *testing.T) {
	with := abacus + "dispatch: {discipline: segment}\n"
	for text, want := range map[string]string{
		with + "policy: {name: static}":                "[9:9] discipline \"segment\" cannot be simulated with a policy",
		with + "delays: {request: 1ms}":                "with delays: Abacus decides in the process that runs the operators",
		with + "learnDelays: true":                     "with delays",
		with + "failures: [{at: 1s, gpu: gpu0}]":       "with failures: a group of operators is not run again",
		with + "breakdowns: {between: 1s, repair: 1s}": "with breakdowns",
		with + "jitter: .5":                            "with a jitter of 0.5",
		with + "interference: [{gpuType: X, l2Self: 1, l2Other: 1, bandwidthSelf: 1, bandwidthOther: 1, constant: 1}]": "with interference between partitions",
		strings.Replace(with, "operators: 20, ", "", 1):                                                                "needs the operators of model a",
		strings.Replace(with, "{type: X}", "{type: X, shares: [50, 50]}", 1):                                           "with shares of GPUs",
		strings.Replace(with, "{discipline: segment}", "{discipline: segment, dropPolicy: prefix}", 1):                 "with a drop policy",
		strings.Replace(with, "{discipline: segment}", "{discipline: segment, parameters: {paths: '4'}}", 1):           `no parameter "paths"; it has ways`,
		strings.Replace(with, "{discipline: segment}", "{discipline: segment, parameters: {ways: '0'}}", 1):            "ways is at least 1",
		strings.Replace(with, "{discipline: segment}", "{discipline: segment, parameters: {margin: '+Inf'}}", 1):       "margin is from 0 to 100",
		strings.Replace(with, "{discipline: segment}", "{discipline: segment, parameters: {margin: '1e300'}}", 1):      "margin is from 0 to 100",
		strings.Replace(abacus, "late: drop}", "dispatch: {discipline: segment}}", 1):                                  "a single model or a policy's plan does not",
		strings.Replace(with, "operators: 20", "operators: -1", 1):                                                     "operators -1",
	} {
		_, err := scenario.Parse("abacus.yaml", []byte(text))
		require.ErrorContains(t, err, want, text)
	}
	for text, want := range map[string]string{
		strings.Replace(with, "{type: X}", "{type: X, count: 2}", 1): "on several GPUs",
		strings.Replace(with, ", creq: .5", "", 1):                   "needs the creq of model a",
		strings.Replace(with, "slo: 120ms, ", "", 1):                 "needs the slo of model a",
	} {
		s, err := scenario.Parse("abacus.yaml", []byte(text))
		require.NoError(t, err)
		_, err = s.Run(t.Context(), scenario.Options{})
		require.ErrorContains(t, err, want, text)
	}
}

// However many requests arrive, a run ends with its context: while they are collected, and while they are served.
func TestSegmentEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, rate := range []string{"rate: 1000000000", "rate: 40"} {
		s, err := scenario.Parse("abacus.yaml", []byte(strings.ReplaceAll(abacus, "rate: 30", rate)+"dispatch: {discipline: segment}\n"))
		require.NoError(t, err)
		_, err = s.Run(ctx, scenario.Options{})
		require.ErrorIs(t, err, context.Canceled)
	}
}

// A timeline has the operators of each query in a group as a batch, within its window and as many as asked for, on all GPUs in the order of their starts.
func TestSegmentTimeline(t *testing.T) {
	with := abacus + "dispatch: {discipline: segment}\n"
	require.Empty(t, simulated(t, with, 1).Timeline)
	r := simulated(t, with+"timeline: {from: 2s, to: 4s, max: 10000}\n", 1)
	require.NotEmpty(t, r.Timeline)
	together := 0
	for i, b := range r.Timeline {
		require.True(t, b.Start >= 2e6 && b.Start < 4e6 && b.End > b.Start, "%+v", b)
		require.Equal(t, []int{1, 2}[b.Model], b.Rows)
		require.False(t, b.Late, "predictions are exact here")
		if i > 0 && b.Start == r.Timeline[i-1].Start {
			together++
			require.NotEqual(t, r.Timeline[i-1].Model, b.Model, "one query of a model at a time")
		} else if i > 0 {
			require.GreaterOrEqual(t, b.Start, r.Timeline[i-1].End-1e-3, "one group at a time")
		}
	}
	require.Greater(t, together, 10, "groups of both models")
	require.Equal(t, r.Timeline[:7], simulated(t, with+"timeline: {from: 2s, to: 4s, max: 7}\n", 1).Timeline)

	two := strings.Replace(with, "{type: X}", "{type: X, count: 2}", 1) + "plan: {partitions: [{gpu: gpu0, models: [a]}, {gpu: gpu1, models: [b]}]}\ntimeline: {from: 2s, max: 20}\n"
	r = simulated(t, two, 1)
	require.Len(t, r.Timeline, 20)
	on := map[int]int{}
	for i, b := range r.Timeline {
		on[b.Partition]++
		require.Equal(t, b.Partition, b.Model)
		require.True(t, i == 0 || b.Start >= r.Timeline[i-1].Start)
	}
	require.Len(t, on, 2)

	busy := strings.ReplaceAll(with, "rate: 30", "rate: 45") + "jitter: .1\ntimeline: {max: 10000}\n"
	r = simulated(t, strings.Replace(busy, "{discipline: segment}", "{discipline: segment, parameters: {margin: '0'}}", 1), 1)
	late := uint64(0)
	for _, b := range r.Timeline {
		if b.Late && b.Start >= 1e6 {
			late++
		}
	}
	require.InDelta(t, r.Total.Late, late, 2, "queries of the warm-up's end count apart")
	require.Positive(t, late)
}
