// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package schedulability

import (
	"context"
	"errors"
	"fmt"

	"github.com/conch-serving/conch/plugins/builtin"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/exact"
	"github.com/conch-serving/conch/sidecar/plan"
)

// GPUs of the study, and Unit, in which the predicate divides rates, in requests per second.
const (
	GPUs = 4
	Unit = 50
)

// levels are the rates that each model has, in requests per second.
func levels() [3]float64 { return [3]float64{0, 100, 200} }

// Mixes is how many there are of nine models, numbered from 1: 3^9, without the empty one.
const Mixes = 3*3*3*3*3*3*3*3*3 - 1

// Contender is a policy with parameters.
type Contender struct {
	Name, Policy string
	Parameters   map[string]string
	// Every is 0, or for one that searches how many mixes there are for one that it is asked about: it has no factor of 3, so that a sample has every
	// level of every model. Such a policy is not asked about mixes that no plan can serve.
	Every int
}

// Contenders in the order that gpulet published: no partition, even split, gpulet; then those that came later, and ours.
func Contenders() []Contender {
	// The study asks whether given rates fit: no policy plans for more than these, none leaves some out, and all have the same memory.
	gpulet := func(name string, more ...string) Contender {
		c := Contender{Name: name, Policy: "gpulet", Parameters: map[string]string{
			"poisson_inflation": "false", "latency_margin": "1", "dropped_residue": "0", "memory": "1", "partition_bytes": "0",
		}}
		for i := 0; i < len(more); i += 2 {
			c.Parameters[more[i]] = more[i+1]
		}
		return c
	}
	return []Contender{
		{Name: "nexus", Policy: "nexus"},
		gpulet("gpulet_none", "partitioning", "none"),
		{Name: "infaas", Policy: "infaas"},
		{Name: "alpaserve", Policy: "alpaserve", Every: 40},
		{Name: "shepherd", Policy: "shepherd"},
		{Name: "symphony", Policy: "symphony"},
		{Name: "static", Policy: "static"},
		gpulet("gpulet_evensplit", "partitioning", "evensplit"),
		gpulet("gpulet_bestfit", "partitioning", "bestfit"),
		gpulet("gpulet"),
		gpulet("gpulet_five", "partitions_per_gpu", "5"),
		// The same with the authors' rule of what a round has to keep.
		gpulet("gpulet_none_paper", "partitioning", "none", "round", "paper"),
		gpulet("gpulet_evensplit_paper", "partitioning", "evensplit", "round", "paper"),
		gpulet("gpulet_bestfit_paper", "partitioning", "bestfit", "round", "paper"),
		gpulet("gpulet_paper", "round", "paper"),
		gpulet("gpulet_five_paper", "partitions_per_gpu", "5", "round", "paper"),
		// Its smallest batch is 4 by default, which a rate of 100 does not fill within the shortest SLO.
		{Name: "usher", Policy: "usher", Parameters: map[string]string{"batches": "1,2,4,8,16,32"}},
		{Name: "conch", Policy: "conch", Every: 4},
	}
}

// Study is a table with the exact answers for it.
type Study struct {
	snapshot *policy.Snapshot
	world    *exact.World
	// known are the answers so far, by mix.
	known map[int]bool
}

// New prepares the study of a table. Parts are the most partitions of a GPU that the exact search may use; 0: as many as fit.
func New(shapes []Shape, parts int) (*Study, error) {
	s := World(shapes, GPUs)
	w, err := exact.New(s, exact.Options{Unit: Unit, Most: int(levels()[2] / Unit), Parts: parts})
	if err != nil {
		return nil, err
	}
	return &Study{s, w, make(map[int]bool)}, nil
}

// Rates of a mix, by model. The digits of its number to the base of three are the levels of the models.
func (s *Study) Rates(mix int) map[string]float64 {
	rates := make(map[string]float64)
	for _, m := range s.snapshot.GetModels() {
		rates[m.GetName()] = levels()[mix%3]
		mix /= 3
	}
	return rates
}

// Exact reports whether any plan can serve the mix. A plan that serves a mix serves every mix in which some model has less.
func (s *Study) Exact(mix int) (bool, error) {
	if answer, ok := s.known[mix]; ok {
		return answer, nil
	}
	for digit := 1; digit <= mix; digit *= 3 {
		if answer, ok := s.known[mix-digit]; mix/digit%3 > 0 && ok && !answer {
			s.known[mix] = false
			return false, nil
		}
	}
	load, err := s.world.Load(s.Rates(mix))
	if err != nil {
		return false, err
	}
	s.known[mix] = s.world.Schedulable(load)
	return s.known[mix], nil
}

// Schedules reports whether the contender's plan for the mix holds, and whether it carries the mix as it promises to divide rates. Policies that
// search ask the predicate, and not traffic.
func (s *Study) Schedules(ctx context.Context, c Contender, mix int) (holds, keeps bool, err error) {
	p, ok := builtin.New(c.Policy)
	if !ok {
		return false, false, fmt.Errorf("schedulability: there is no policy %s", c.Policy)
	}
	d, err := p.Describe(ctx)
	if err != nil {
		return false, false, err
	}
	rates := s.Rates(mix)
	asked := &policy.Snapshot{
		Revision: s.snapshot.GetRevision(), Seed: s.snapshot.GetSeed(), Nodes: s.snapshot.GetNodes(), Profiles: s.snapshot.GetProfiles(),
		Interference: s.snapshot.GetInterference(), Evaluations: evaluations,
	}
	for _, m := range s.snapshot.GetModels() {
		asked.Models = append(asked.Models, loaded(m, rates[m.GetName()]))
	}
	if asked.Parameters, err = d.Resolve(c.Parameters); err != nil {
		return false, false, fmt.Errorf("schedulability: %s: %w", c.Name, err)
	}
	validate := func(p *policy.Plan) (all []string) {
		for _, v := range plan.Validate(asked, p) {
			all = append(all, v.String())
		}
		return all
	}
	host, err := s.world.Host(asked, validate)
	if err != nil {
		return false, false, err
	}
	answer, err := p.Plan(ctx, asked, host)
	if err != nil {
		return false, false, fmt.Errorf("schedulability: %s, mix %d: %w", c.Name, mix, err)
	}
	if len(validate(answer)) > 0 {
		return false, false, nil
	}
	holds, err = s.world.Holds(answer, rates)
	return holds, s.world.Keeps(answer, rates), err
}

// evaluations that a policy may ask for: the default of conch.yaml.
const evaluations = 256

func loaded(m *policy.Model, rate float64) *policy.Model {
	return &policy.Model{
		Name: m.GetName(), SloUs: m.GetSloUs(), MaxBatchSize: m.GetMaxBatchSize(), Batchable: m.GetBatchable(), MemoryBytes: m.GetMemoryBytes(),
		Burstiness: m.GetBurstiness(), Late: m.GetLate(), Rate: rate, RowRate: rate,
	}
}

// Tally counts mixes.
type Tally struct {
	// Asked are those that were looked at. Exact are those of them that any plan can serve that divides rates in whole units, and InUnits those that
	// the contender's plan serves so.
	Asked, Exact, InUnits int
	// Held are those that its plan serves so or with rates divided as it promises, and Beyond those of them that are not among Exact.
	Held, Beyond int
}

// Count asks a contender about the first mix and every so many from there.
func (s *Study) Count(ctx context.Context, c Contender, every int) (t Tally, err error) {
	for mix := 1; mix <= Mixes; mix += every {
		if err := ctx.Err(); err != nil {
			return t, err
		}
		t.Asked++
		possible, err := s.Exact(mix)
		if err != nil {
			return t, err
		}
		if possible {
			t.Exact++
		} else if c.Every > 0 {
			continue
		}
		holds, keeps, err := s.Schedules(ctx, c, mix)
		switch {
		case err != nil:
			return t, err
		case holds && !possible:
			return t, fmt.Errorf("schedulability: %s schedules mix %d, and exact search does not: it is not exact", c.Name, mix)
		}
		if holds {
			t.InUnits++
		}
		if holds || keeps {
			t.Held++
		}
		if keeps && !possible {
			t.Beyond++
		}
	}
	return t, nil
}

// CountExact counts the mixes that any plan can serve.
func (s *Study) CountExact(ctx context.Context) (n int, err error) {
	for mix := 1; mix <= Mixes; mix++ {
		possible, err := s.Exact(mix)
		if err = errors.Join(err, ctx.Err()); err != nil {
			return n, err
		}
		if possible {
			n++
		}
	}
	return n, nil
}
