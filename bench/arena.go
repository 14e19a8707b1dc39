// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// arena is one scenario in which placement policies meet: models with profiles on GPUs, and a mix of load.
type arena struct {
	name string
	// world is models and GPUs, without load.
	world func() *policy.Snapshot
	// mix is by how much models are asked for, in proportion.
	mix map[string]float64
	// guess is a load in requests per second to begin a search with.
	guess float64
	// trace has counts by minute to take arrivals from; nil: Poisson.
	trace func(seed uint64) (map[string][]workload.Counts, error)
	// mixed says that the GPUs are of several types, so that the fewest of them say nothing.
	mixed bool
}

// question is what a policy is asked, and what its answer is judged by.
type question struct {
	snapshot *policy.Snapshot
	// recorded is the traffic that the policy may evaluate with; nil: drawn from the snapshot's rates.
	recorded *evaluate.Traffic
	// unseen is the traffic that the plan is judged by.
	unseen *evaluate.Traffic
	// judging is the world of the judge; nil: the snapshot.
	judging *policy.Snapshot
}

// judge simulates a plan under the traffic that the policy did not see.
func (q question) judge(ctx context.Context, p *policy.Plan) (*policy.Outcome, error) {
	all, err := evaluate.New(cmp.Or(q.judging, q.snapshot), q.unseen).Evaluate(ctx, p)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// seen and judgedRequests are how many requests a policy may evaluate with, and is judged by; both bound the seconds that they take, too.
const (
	seen           = 8000
	judgedRequests = 30_000
)

// seconds that so many requests take at a load.
func seconds(requests, load float64) time.Duration {
	return time.Duration(min(20, max(2, requests/load)) * float64(time.Second))
}

// ask makes the question of a load, in requests per second over all models. Change, where there is one, is made to the world. A seed draws the
// arrivals that are seen, another one those that judge.
func (a arena) ask(load float64, seed uint64, part float64, change func(*policy.Snapshot)) (question, error) {
	s := keep(a.world(), a.mix)
	s.Seed = seed
	if change != nil {
		change(s)
	}
	if a.trace != nil {
		return a.replay(s, load, seed, 0, max(1, int(unseenMinutes*part)))
	}
	total := 0.0
	for _, weight := range a.mix {
		total += weight
	}
	for _, m := range s.GetModels() {
		m.Rate = load * a.mix[m.GetName()] / total
		m.RowRate = m.Rate
	}
	s.Traffic = evaluate.Promise(s, seconds(seen*part, load))
	judging := proto.CloneOf(s)
	judging.Seed += 1000
	unseen, err := evaluate.Generate(judging, seconds(judgedRequests*part, load))
	return question{snapshot: s, unseen: unseen}, err
}

// Minutes of a trace: those before, of which a policy knows the rates alone, those that it sees, and those after them that judge. A minute passes in a second.
const (
	pastMinutes   = 12
	seenMinutes   = 3
	unseenMinutes = 10
	traceSpeed    = 60
)

// replay takes arrivals from the trace: from minute first on those that the policy sees, whose mean rates are the snapshot's, and as many more for the
// judge. The load is the mean of the trace's first minutes.
func (a arena) replay(s *policy.Snapshot, load float64, seed uint64, first, judging int) (question, error) {
	functions, err := a.trace(seed)
	if err != nil {
		return question{}, err
	}
	sum := func(model string, from, to int) (n float64) {
		for _, c := range functions[model] {
			for _, requests := range c.PerMinute[pastMinutes+from : pastMinutes+to] {
				n += float64(requests)
			}
		}
		return n
	}
	total := 0.0
	for _, m := range s.GetModels() {
		total += sum(m.GetName(), 0, seenMinutes)
	}
	scale := load * seenMinutes / total * 60 / traceSpeed
	for _, m := range s.GetModels() {
		m.Rate = sum(m.GetName(), first, first+seenMinutes) / total * load
		m.RowRate = m.Rate
		past := &policy.ModelHistory{Model: m.GetName()}
		for minute := first - pastMinutes; minute < first+seenMinutes; minute++ {
			past.Rates = append(past.Rates, sum(m.GetName(), minute, minute+1)*seenMinutes/total*load)
		}
		s.History = append(s.History, past)
	}
	draw := func(from, to int, purpose string) (*evaluate.Traffic, error) {
		t := &evaluate.Traffic{Source: evaluate.SourceRecorded, Length: time.Duration(to-from) * time.Minute / traceSpeed}
		for i, m := range s.GetModels() {
			t.Names = append(t.Names, m.GetName())
			for k, c := range functions[m.GetName()] {
				c.PerMinute = c.PerMinute[pastMinutes+from : pastMinutes+to]
				stream, err := c.Stream(int32(i), scale, traceSpeed, workload.Seed(seed, purpose, fmt.Sprintf("%s %d", m.GetName(), k))) //nolint:gosec // few
				if err != nil {
					return nil, err
				}
				for arrival := (workload.Arrival{}); stream.Next(&arrival); {
					t.Arrivals = append(t.Arrivals, arrival)
				}
			}
		}
		slices.SortStableFunc(t.Arrivals, func(a, b workload.Arrival) int { return cmp.Compare(a.At, b.At) })
		return t, nil
	}
	q := question{snapshot: s}
	if q.recorded, err = draw(first, first+seenMinutes, "seen"); err != nil {
		return q, err
	}
	s.Traffic = q.recorded.Describe()
	q.unseen, err = draw(first+seenMinutes, first+seenMinutes+judging, "unseen")
	return q, err
}

// first leaves the first so many GPUs.
func first(n int) func(*policy.Snapshot) {
	return func(s *policy.Snapshot) { s.Nodes[0].Gpus = s.Nodes[0].Gpus[:min(n, len(s.Nodes[0].Gpus))] }
}

// doubled is a cluster of twice as many GPUs.
func doubled(s *policy.Snapshot) {
	for _, g := range s.Nodes[0].GetGpus() {
		more := proto.CloneOf(g)
		more.Id, more.Index = fmt.Sprintf("gpu%02d", len(s.Nodes[0].Gpus)), uint32(len(s.Nodes[0].Gpus)) //nolint:gosec // few
		s.Nodes[0].Gpus = append(s.Nodes[0].Gpus, more)
	}
}

// kind is what an emulated model is like on a whole GPU.
type kind struct {
	name string
	slo  float64 // ms; a batch of 32 takes half of it, a batch of one 15% of that
	// knee is the share in percent below which a batch of 32 slows down; a batch of one is content with half of it. It is the compute requirement.
	knee float64
	// weights and working memory at a batch of 32, bytes.
	weights, working float64
	l2, dram         float64 // utilisations at a batch of 32
	load             float64 // seconds to load it
}

// latencies makes the profile of a model on a type of GPU that is so many times slower, of so much memory; a slower GPU has a later knee.
func (k kind) latencies(gpu string, slower, later, memory float64) *policy.Profile {
	p := &policy.Profile{Model: k.name, GpuType: gpu, Usable: true, Source: policy.ProfileSource_PROFILE_SOURCE_DECLARED}
	knee := min(100, k.knee*later)
	for _, share := range []uint32{20, 40, 50, 60, 80, 100} {
		for _, batch := range []uint32{1, 2, 4, 8, 16, 32} {
			fill := float64(batch) / 32
			slow := math.Max(1, knee*(.5+.5*fill)/float64(share))
			us := k.slo * 1e3 / 2 * (.15 + .85*fill) * slow * slower
			p.Points = append(p.Points, &policy.ProfilePoint{
				Batch: batch, ThreadPercentage: share, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us,
				Creq: &policy.Estimate{Value: knee / 100 * (.5 + .5*fill)}, Mreq: &policy.Estimate{Value: (k.weights + k.working*fill) / memory},
				L2Utilization: &policy.Estimate{Value: k.l2 * (.3 + .7*fill)}, BandwidthUtilization: &policy.Estimate{Value: k.dram * (.3 + .7*fill)},
			})
		}
	}
	return p
}

// emulated is a world of these models on GPUs of one node; gpulet's interference coefficients for the 2080 Ti, the only ones that are published,
// stand for every type.
func emulated(kinds []kind, groups ...pool) func() *policy.Snapshot {
	return func() *policy.Snapshot {
		s := &policy.Snapshot{Revision: 1, Nodes: []*policy.Node{{Name: "n"}}}
		for _, g := range groups {
			s.Interference = append(s.Interference, policy.GpuletInterference(g.of))
			for range g.count {
				i := len(s.Nodes[0].Gpus)
				s.Nodes[0].Gpus = append(s.Nodes[0].Gpus, &policy.GPU{
					Id: fmt.Sprintf("gpu%02d", i), Type: g.of, Index: uint32(i), MemoryBytes: uint64(g.memory), CostPerHour: g.cost, Emulated: true, SharesEnforced: true, //nolint:gosec // small
				})
			}
		}
		for _, k := range kinds {
			s.Models = append(s.Models, &policy.Model{
				Name: k.name, SloUs: int64(k.slo * 1e3), MaxBatchSize: 32, Batchable: true, MemoryBytes: uint64(k.weights), ActivationBytesPerRow: uint64(k.working / 32),
				Burstiness: 1, Late: policy.LatePolicy_LATE_POLICY_DROP, LoadSeconds: k.load,
			})
			for _, g := range groups {
				s.Profiles = append(s.Profiles, k.latencies(g.of, g.slower, g.later, g.memory))
			}
		}
		return s
	}
}

// pool is GPUs of one type.
type pool struct {
	of           string
	count        int
	memory, cost float64 // bytes, per hour
	// slower and later are factors on latencies and knees.
	slower, later float64
}
