// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"context"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/sidecar/sim/triton"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// asIs simulates the Triton servers as they are: one for each partition of the present placement, or with every model on each of so many GPUs
// where gpus is not 0.
func (w *world) asIs(ctx context.Context, gpus int, rate float64, seed uint64) (*triton.Result, error) {
	length := w.length(rate)
	return w.servers(ctx, gpus, length, length/20, seed, func(s *policy.Snapshot) ([]workload.Stream, error) { return w.streams(s, rate, length, seed) })
}

// servers simulates the Triton servers with the given arrivals, of which those after the warm-up count.
func (w *world) servers(ctx context.Context, gpus int, length, warmup time.Duration, seed uint64, arrivals func(*policy.Snapshot) ([]workload.Stream, error)) (*triton.Result, error) {
	made, err := w.prepare(gpus, length, seed)
	if err != nil {
		return nil, err
	}
	s := made.Snapshot
	x := policy.NewIndex(s)
	servers := triton.World{Duration: length, Warmup: warmup, Seed: seed, Jitter: jitter}
	for _, m := range s.GetModels() {
		b := w.in.Batching[m.GetName()]
		model := triton.Model{Name: m.GetName(), SLO: time.Duration(m.GetSloUs()) * time.Microsecond, MaxBatch: int(max(1, m.GetMaxBatchSize())), Dynamic: b.Dynamic, Delay: b.Delay}
		servers.Models = append(servers.Models, model)
	}
	servers.Pipelines = triton.Pipelines(s)
	gpuTypes := map[string]string{}
	for _, n := range s.GetNodes() {
		for _, g := range n.GetGpus() {
			gpuTypes[n.GetName()+"/"+g.GetId()] = g.GetType()
		}
	}
	for _, p := range made.Plan.GetPartitions() {
		server := triton.Server{ID: p.GetId(), GPU: p.GetNode() + "/" + p.GPU(), GPUs: x.AtOnce(p), Latency: make([][]time.Duration, len(servers.Models))}
		gpuType := gpuTypes[p.GetNode()+"/"+p.GPU()]
		for i, m := range s.GetModels() {
			if !serves(p, m.GetName()) {
				continue
			}
			l, ok := latencies(x.UsableProfile(m.GetName(), gpuType), servers.Models[i].MaxBatch, p.GetThreadPercentage())
			if ok {
				server.Latency[i] = l
			}
		}
		servers.Servers = append(servers.Servers, server)
	}
	if servers.Streams, err = arrivals(s); err != nil {
		return nil, err
	}
	return triton.Run(ctx, servers)
}

func serves(p *policy.Partition, model string) bool {
	for _, i := range p.GetInstances() {
		if i.GetModel() == model {
			return true
		}
	}
	return false
}

func latencies(p *policy.Profile, maxBatch int, share uint32) ([]time.Duration, bool) {
	if p == nil {
		return nil, false
	}
	all := make([]time.Duration, maxBatch+1)
	for b := 1; b <= maxBatch; b++ {
		us, ok := p.Latency(uint32(b), share)
		if !ok {
			return nil, false
		}
		all[b] = time.Duration(us * float64(time.Microsecond))
	}
	return all, true
}

// executionsOf are the mean times of the executions of a model, by rows, in microseconds. Where several types of GPU serve it, those of all
// of them are one.
func executionsOf(r *triton.Result, s *policy.Snapshot, model string) map[int]float64 {
	means := map[int]float64{}
	for i, m := range s.GetModels() {
		if m.GetName() != model {
			continue
		}
		for _, e := range r.Executions[i] {
			means[e.Rows] = microseconds(e.Mean)
		}
	}
	return means
}

// prepare is the world of one run, with the present placement where gpus is 0. Its plan has no dispatch.
func (w *world) prepare(gpus int, length time.Duration, seed uint64) (*scenario.World, error) {
	encoded, err := encode(w.snapshot)
	if err != nil {
		return nil, err
	}
	s, err := scenario.FromSnapshot(encoded, nil)
	if err != nil {
		return nil, err
	}
	s.Duration, s.Warmup = scenario.Duration(length), scenario.Duration(length/20)
	made, err := s.World(scenario.Options{Seed: seed, GPUs: gpus})
	if err != nil {
		return nil, err
	}
	made.Jitter = jitter
	made.Plan.Dispatch = nil
	return made, nil
}
