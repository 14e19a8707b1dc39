// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
	"github.com/conch-serving/conch/sidecar/sim/try"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

func TestArrivalsOfStages(t *testing.T) {
	for _, s := range stages() {
		s.stretch = 8
		models := make([]loadgen.Model, s.models)
		for i := range models {
			models[i].Name = string(rune('a' + i))
		}
		all, err := s.arrivals(models, 1)
		require.NoError(t, err)
		again, err := s.arrivals(models, 1)
		require.NoError(t, err)
		require.Equal(t, all, again, s.name)
		require.True(t, slices.IsSortedFunc(all, func(a, b loadgen.Arrival) int { return int(a.At - b.At) }), s.name)
		require.Less(t, all[len(all)-1].At, fidelityWarmup+s.measure())
		during := 0
		for _, a := range all {
			if from := fidelityWarmup + s.measure()/2; a.At >= from && a.At < from+s.measure()/10 {
				during++
			}
		}
		want := s.rate / s.stretch * max(1, s.burst) * s.measure().Seconds() / 10
		require.InEpsilon(t, want, during, .3, s.name)
	}
}

// TestTravelled: what a recording says of when requests arrived, against when they were sent.
func TestTravelled(t *testing.T) {
	const every = 100 * time.Millisecond
	start := time.Now()
	result := &loadgen.Result{Start: start}
	var trace bytes.Buffer
	w, err := workload.NewWriter(&trace, workload.Header{Start: start.Add(-time.Second)})
	require.NoError(t, err)
	model, err := w.Model(workload.TraceModel{Name: "m"})
	require.NoError(t, err)
	for i := range loneRequests {
		sent := time.Duration(i) * every
		result.Log = append(result.Log, loadgen.Entry{Sent: sent})
		if i%8 > 0 { // some were lost
			require.NoError(t, w.Write(workload.Arrival{At: time.Second + sent + 700*time.Microsecond, Model: model, Rows: 1}))
		}
	}
	require.NoError(t, w.Flush())
	whole := trace.Bytes()
	d, err := travelled(bytes.NewBuffer(whole), result, every)
	require.NoError(t, err)
	require.InDelta(t, 700, d.Microseconds(), 2)
	result.Start = start.Add(time.Hour)
	_, err = travelled(bytes.NewBuffer(whole), result, every)
	require.ErrorContains(t, err, "only 0 of")
}

// snapshotOfOne is what a conch says that serves one model of 10 ms a row and 20 ms a batch, which was up to a tenth slower, on two GPUs.
const snapshotOfOne = `{"revision": "3", "nodes": [{"name": "n", "gpus": [{"id": "gpu0", "type": "A100"}, {"id": "gpu1", "type": "A100"}]}],
"models": [{"name": "m-0", "sloUs": "200000", "late": "LATE_POLICY_DROP", "maxBatchSize": 16, "batchable": true}],
"profiles": [{"model": "m-0", "gpuType": "A100", "usable": true, "points": [
  {"batch": 1, "threadPercentage": 100, "observations": "30", "latencyUs": {"value": 30000}, "latencyUpperUs": 33000},
  {"batch": 16, "threadPercentage": 100, "latencyUs": {"value": 180000}, "latencyUpperUs": 180000}]}],
"current": {"snapshotRevision": "2", "policy": "static", "partitions": [
  {"id": "gpu0", "node": "n", "gpus": ["gpu0"], "threadPercentage": 100, "rank": 1, "instances": [{"model": "m-0"}]},
  {"id": "gpu1", "node": "n", "gpus": ["gpu1"], "threadPercentage": 100, "instances": [{"model": "m-0"}]}]}}`

// TestComparison: a live run of which every request took as long as the simulator says compares as equal, and one that lost a tenth as less.
func TestComparison(t *testing.T) {
	models := rig.Copies(zoo.Profile{Model: "m", GPUType: zoo.A100, Alpha: 10 * time.Millisecond, Beta: 20 * time.Millisecond, SLO: 200 * time.Millisecond}, 1, 1, 16)
	c := comparison{name: "test", slo: 200 * time.Millisecond, stage: stage{name: "test", models: 1, rate: 50, stretch: 8}, start: time.Unix(1, 0), delays: delays{start: time.Unix(0, 0), lone: []loadgen.Entry{{}}, request: time.Millisecond, control: time.Millisecond, reply: 2 * time.Millisecond}}
	for at := time.Duration(0); at < fidelityWarmup+c.stage.measure(); at += 50 * time.Millisecond {
		c.log = append(c.log, loadgen.Entry{Arrival: loadgen.Arrival{At: at}, Sent: at + time.Millisecond, Latency: 34 * time.Millisecond})
	}
	require.NoError(t, c.simulate(t.Context(), []byte(snapshotOfOne), models, 0, 0, 1))
	require.InDelta(t, .1, c.jitter, 1e-9)
	c.live.seconds = c.stage.measure().Seconds()
	c.live.count(c.log, models.Load(), fidelityWarmup)
	c.live.batch = 1
	require.Equal(t, 200, c.live.arrived)
	require.InDelta(t, 1, c.over(goodput), .001)
	require.InDelta(t, 34, tail(c.live), .01)
	require.Equal(t, 200, c.simulated.good)
	require.InDelta(t, 34, tail(c.simulated), .5, "what was learnt, that some were a tenth slower, is not known there")
	for i := range c.log {
		if i%10 == 0 {
			c.log[i].Err = errors.New("dropped")
		}
	}
	c.live = side{seconds: c.live.seconds, batch: 1}
	c.live.count(c.log, models.Load(), fidelityWarmup)
	require.InDelta(t, .9, c.over(goodput), .001)
	require.Equal(t, time.Millisecond, c.sendLateness())

	r := &figure.Report{File: "fidelity"}
	addComparisons(r, "fidelity.test.minitriton", []comparison{c})
	addDelays(r, "fidelity.minitriton", []comparison{c})
	require.NoError(t, r.Validate())
	require.Len(t, r.Figures, 6+1+9, "no restart, for nothing was killed")
	require.Equal(t, "fidelity.minitriton.worst_difference", r.Figures[6].Name)
	require.InDelta(t, .1, r.Figures[6].Value, .001, "the tenth of goodput")
	require.Contains(t, r.Figures[6].Note, "goodput of test")
	require.Len(t, c.lines(), 3)
	c.lateness = 5 * time.Millisecond
	require.Contains(t, c.lines()[2], "DISTURBED")

	// The other partition takes over.
	require.NoError(t, c.simulate(t.Context(), []byte(snapshotOfOne), models, fidelityWarmup, 2*time.Second, 1))
	require.Equal(t, 200, c.simulated.good)
	require.Error(t, c.simulate(t.Context(), []byte("{"), models, 0, 0, 1))
}

func TestQuantileAndDeviation(t *testing.T) {
	require.Zero(t, quantile(nil, .99))
	list := make([]time.Duration, 100)
	for i := range list {
		list[i] = time.Duration(i + 1)
	}
	require.Equal(t, time.Duration(99), quantile(list, .99))
	require.Equal(t, time.Duration(50), quantile(list, .5))
	list[99] = time.Hour
	require.InDelta(t, 28, float64(deviation(list)), 1, "a stall is pulled in")
}

// TestStagesAreNearSaturation: in the simulator some requests of every stage are bad, and not most of them, so that live and simulated could differ.
func TestStagesAreNearSaturation(t *testing.T) {
	cases, err := zoo.Cases()
	require.NoError(t, err)
	for _, s := range stages() {
		t.Run(s.name, func(t *testing.T) {
			s.stretch = defaultStretch
			models := rig.Copies(cases[0].Profile, s.models, s.stretch, 32)
			world := &policy.Snapshot{Revision: 1, Seed: 1, Nodes: []*policy.Node{{Name: "n"}}}
			for i := range s.gpus {
				world.Nodes[0].Gpus = append(world.Nodes[0].Gpus, &policy.GPU{Id: fmt.Sprintf("gpu%d", i), Type: zoo.A100, Index: uint32(i), MemoryBytes: 1 << 34, Emulated: true}) //nolint:gosec // few
			}
			traffic := &evaluate.Traffic{Length: fidelityWarmup + s.measure(), Names: models.Names()}
			for _, m := range models.Load() {
				world.Models = append(world.Models, &policy.Model{
					Name: m.Name, SloUs: m.SLO.Microseconds(), MaxBatchSize: 32, Batchable: true, Burstiness: 1, Late: policy.LatePolicy_LATE_POLICY_DROP,
				})
				world.Profiles = append(world.Profiles, &policy.Profile{Model: m.Name, GpuType: zoo.A100, Usable: true})
			}
			raw, err := protojson.Marshal(world)
			require.NoError(t, err)
			raw, err = declared(raw, models)
			require.NoError(t, err)
			require.NoError(t, protojson.Unmarshal(raw, world))
			given, err := s.arrivals(models.Load(), 1)
			require.NoError(t, err)
			for _, a := range given {
				traffic.Arrivals = append(traffic.Arrivals, workload.Arrival{At: a.At, Model: int32(a.Model), Rows: 1}) //nolint:gosec // few
			}
			session, err := try.Open(t.Context(), try.Options{Policy: "static", Parameters: map[string]string{"partitions": s.partitions}})
			require.NoError(t, err)
			trial, err := session.Run(t.Context(), world)
			require.NoError(t, err)
			require.Empty(t, trial.Error)
			w := evaluate.New(world, traffic).World(trial.Plan)
			w.Warmup, w.Duration = fidelityWarmup, traffic.Length
			if s.lost {
				w.Failures = []sim.Failure{{At: fidelityWarmup + s.measure()/4, For: 3 * time.Second, Partition: lostPartition}}
			}
			r, err := sim.Run(t.Context(), w)
			require.NoError(t, err)
			t.Logf("%.0f req/s, bad %.2f%%", r.Total.Goodput, 100*r.Total.BadRate)
			require.Greater(t, r.Total.BadRate, .01)
			require.Less(t, r.Total.BadRate, .3)
		})
	}
}
