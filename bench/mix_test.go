// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/triton"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// simulatedMix is one of the drawn loads, with the times that the emulation has.
type simulatedMix struct {
	mix
	t        *testing.T
	profiles []zoo.Profile
}

func simulateMix(t *testing.T, number int) simulatedMix {
	m, err := drawMix(number)
	require.NoError(t, err)
	all, err := zoo.Profiles(zoo.GTX1080Ti)
	require.NoError(t, err)
	s := simulatedMix{mix: m, t: t}
	for _, name := range m.names {
		for _, p := range all {
			if p.Model == name {
				s.profiles = append(s.profiles, p.Stretched(m.stretch))
			}
		}
	}
	return s
}

// requests are those of a trial, after those that are learnt from.
func (s simulatedMix) requests(rate float64, seed uint64, learn, length time.Duration) []workload.Stream {
	var all []workload.Arrival
	add := func(rate float64, seed uint64, from, length time.Duration) {
		arrivals, err := s.arrivals(rate, seed, length)
		require.NoError(s.t, err)
		for _, a := range arrivals {
			all = append(all, workload.Arrival{At: from + a.At, Model: int32(a.Model), Rows: 1}) //nolint:gosec // eight
		}
	}
	if learn > 0 {
		add(.7*rate, seed+2_000_003, 0, learn)
	}
	add(rate, seed, learn, length)
	return []workload.Stream{workload.Slice(all...)}
}

func trialLength(rate float64) time.Duration {
	return time.Second + min(time.Duration(mixRequests/rate*float64(time.Second)), mixLength)
}

// triton is what one server over all GPUs makes of a trial.
func (s simulatedMix) triton(rate float64, seed uint64) *sim.Result {
	server := triton.Server{ID: "server", GPU: "gpu", GPUs: mixGPUs}
	w := triton.World{Duration: trialLength(rate), Warmup: time.Second, Seed: seed, Streams: s.requests(rate, seed, 0, trialLength(rate))}
	for _, p := range s.profiles {
		w.Models = append(w.Models, triton.Model{Name: p.Model, SLO: mixSLO * p.SLO, MaxBatch: 32, Dynamic: true})
		latency := make([]time.Duration, 33)
		for rows := 1; rows < len(latency); rows++ {
			latency[rows] = p.Latency(rows)
		}
		server.Latency = append(server.Latency, latency)
	}
	w.Servers = []triton.Server{server}
	r, err := triton.Run(s.t.Context(), w)
	require.NoError(s.t, err)
	return r.Result
}

// conch is what Conch makes of it, in front of that server or with a server for each GPU.
func (s simulatedMix) conch(rate float64, seed uint64, attached bool) *sim.Result {
	world := &policy.Snapshot{Revision: 1, Nodes: []*policy.Node{{Name: "n"}}}
	plan, node := &policy.Plan{}, []string{}
	for i := range mixGPUs {
		id := fmt.Sprint("gpu", i)
		world.Nodes[0].Gpus = append(world.Nodes[0].Gpus, &policy.GPU{Id: id, Type: zoo.GTX1080Ti, Index: uint32(i)}) //nolint:gosec // four
		p := &policy.Partition{Id: id, Node: "n", Gpus: []string{id}, ThreadPercentage: 100, Rank: uint32(i)}         //nolint:gosec // four
		for _, name := range s.names {
			p.Instances = append(p.Instances, policy.ModelInstance(name, 0))
		}
		plan.Partitions, node = append(plan.Partitions, p), append(node, id)
	}
	for _, p := range s.profiles {
		world.Models = append(world.Models, &policy.Model{Name: p.Model, SloUs: (mixSLO * p.SLO).Microseconds(), MaxBatchSize: 32, Batchable: true, Late: policy.LatePolicy_LATE_POLICY_DROP})
		profile := &policy.Profile{Model: p.Model, GpuType: zoo.GTX1080Ti, Usable: true}
		for _, rows := range []int{1, 32} {
			us := float64(p.Latency(rows).Microseconds())
			profile.Points = append(profile.Points, &policy.ProfilePoint{Batch: uint32(rows), ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us}) //nolint:gosec // two
		}
		world.Profiles = append(world.Profiles, profile)
		plan.Dispatch = append(plan.Dispatch, &policy.Dispatch{Model: p.Model, Discipline: "adaptive"})
	}
	w := sim.World{
		Snapshot: world, Plan: plan, Duration: mixLearn + trialLength(rate), Warmup: mixLearn + time.Second, Seed: seed, Knowledge: sim.LearnDelays,
		Streams: s.requests(rate, seed, mixLearn, trialLength(rate)),
	}
	if attached {
		w.Nodes = [][]string{node}
	}
	r, err := sim.Run(s.t.Context(), w)
	require.NoError(s.t, err)
	return r
}

// holds searches as the measurement does: each rate twice, with other arrivals.
func (s simulatedMix) holds(start float64, trial func(rate float64, seed uint64) *sim.Result) float64 {
	rate, err := loadgen.Search{Start: start, Step: 2, Resolution: .1}.Highest(s.t.Context(), func(_ context.Context, rate float64) (bool, error) {
		return trial(rate, 1).WorstBadRate() <= .01 || trial(rate, 1+3_000_017).WorstBadRate() <= .01, nil
	})
	require.NoError(s.t, err)
	return rate
}

// TestSimulatedMixesHoldWhatWasMeasured simulates the trials of the loads that were measured, request by request: what is held lies within these factors of what
// was measured. Of mix2 and mix7 with servers of Conch's own it is several times as much, and why is not known (docs/comparison.md).
func TestSimulatedMixesHoldWhatWasMeasured(t *testing.T) {
	reports, err := figure.Read("../results")
	require.NoError(t, err)
	measured := byNameOf(reports)
	for number := range 8 {
		s := simulateMix(t, number)
		of := func(side string) float64 {
			f, ok := measured["mix."+s.name+"."+side+".goodput"]
			require.True(t, ok, side)
			return f.Value
		}
		alone := s.holds(adviceRate, s.triton)
		attached := s.holds(alone, func(rate float64, seed uint64) *sim.Result { return s.conch(rate, seed, true) })
		own := s.holds(alone, func(rate float64, seed uint64) *sim.Result { return s.conch(rate, seed, false) })
		t.Logf("%s: Triton %.0f (measured %.0f), attached %.0f (%.0f), own %.0f (%.0f) req/s", s.name, alone, of("triton"), attached, of("attached"), own, of("own"))
		factor := func(simulated, measured, least, most float64) {
			require.GreaterOrEqual(t, simulated/measured, least)
			require.LessOrEqual(t, simulated/measured, most)
		}
		factor(alone, of("triton"), .8, 1.5)
		factor(attached, of("attached"), .5, 1.35)
		if number != 2 && number != 7 {
			factor(own, of("own"), .8, 1.25)
		}
	}
}
