// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/builtin"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// asked is a policy made of a function, that remembers what it was asked.
type asked struct {
	snapshots []*policy.Snapshot
	answer    func(*policy.Snapshot) (*policy.Plan, error)
}

func (a *asked) Plan(_ context.Context, s *policy.Snapshot) (*policy.Plan, error) {
	a.snapshots = append(a.snapshots, s)
	return a.answer(s)
}

// changing is a world that begins with m00 on p0 of 2 GPUs and may move.
func changing(t *testing.T, answer func(*policy.Snapshot) (*policy.Plan, error)) (sim.World, *asked) {
	s := resnet50()
	s.gpus, s.discipline, s.drop, s.duration, s.warmup, s.rate = 2, "eager", "", 10*time.Second, 0, 400
	w := s.world(t)
	p := &asked{answer: answer}
	w.Plan, w.Policy = nil, p
	w.Snapshot.ChangeCost = &policy.ChangeCost{PartitionStartSeconds: 1, DefaultLoadSeconds: .5}
	return w, p
}

// on places m00 alone on GPUs.
func on(s *policy.Snapshot, gpus ...string) *policy.Plan {
	p := &policy.Plan{SnapshotRevision: s.GetRevision(), Policy: "test"}
	for i, g := range gpus {
		p.Partitions = append(p.Partitions, &policy.Partition{
			Id: "on-" + g, Node: "n", Gpus: []string{g}, ThreadPercentage: 100, Rank: uint32(i), Instances: []*policy.Instance{policy.ModelInstance("m00", 0)},
		})
	}
	return p
}

func kinds(r *sim.Result) (all []string) {
	for _, e := range r.Events {
		all = append(all, fmt.Sprintf("%g %s", e.At, e.Kind))
	}
	return all
}

// TestAPlanTakesItsTime: thinking, starting and loading; until then the old plan serves, and nothing is lost.
func TestAPlanTakesItsTime(t *testing.T) {
	w, p := changing(t, nil)
	p.answer = func(s *policy.Snapshot) (*policy.Plan, error) {
		if len(p.snapshots) == 1 {
			return on(s, "g000"), nil
		}
		return on(s, "g001"), nil
	}
	w.Replan = sim.Replan{Every: 4 * time.Second, Takes: 250 * time.Millisecond}
	r := run(t, w)
	require.Equal(t, []string{"4 plan", "5.75 swap", "8 plan_unchanged"}, kinds(r))
	require.Len(t, r.Partitions, 2)
	require.InDelta(t, 5.75, r.Partitions[0].UntilSeconds, .025, "until its batch has ended")
	require.InDelta(t, 5.75, r.Partitions[1].FromSeconds, 1e-9)
	require.Less(t, r.Total.BadRate, .005)
	require.Equal(t, 3, r.Plans)

	// What the policy saw.
	require.Len(t, p.snapshots, 3)
	require.Nil(t, p.snapshots[0].GetCurrent())
	second := p.snapshots[1]
	require.Equal(t, "on-g000", second.GetCurrent().GetPartitions()[0].GetId())
	require.InEpsilon(t, 400, second.GetModels()[0].GetRate(), .2)
	require.InEpsilon(t, 1, second.GetModels()[0].GetBurstiness(), .3)
	require.InDelta(t, 1-r.Partitions[0].BusyShare, second.GetStatistics().GetPartitions()[0].GetIdleShare(), .02)
	require.Greater(t, second.GetRevision(), p.snapshots[0].GetRevision())
}

// TestNoMemoryForBoth: where the old and the new do not fit side by side the old one stops first, and requests wait, but none is lost.
func TestNoMemoryForBoth(t *testing.T) {
	w, p := changing(t, nil)
	p.answer = func(s *policy.Snapshot) (*policy.Plan, error) {
		plan := on(s, "g000")
		if len(p.snapshots) > 1 {
			plan.Partitions[0].ThreadPercentage = 99
		}
		return plan, nil
	}
	w.Snapshot.Models[0].MemoryBytes, w.Snapshot.Nodes[0].Gpus[0].MemoryBytes = 6, 10
	w.Snapshot.Models[0].Late = policy.LatePolicy_LATE_POLICY_SERVE
	w.Replan = sim.Replan{Every: 4 * time.Second}
	r := run(t, w)
	require.Equal(t, []string{"4 plan", "4 make_room", "5.5 swap", "8 plan_unchanged"}, kinds(r))
	require.InDelta(t, 1.5*400, r.Total.Late, 150, "those of a second and a half")
	require.Equal(t, r.Total.Arrivals, r.Total.Good+r.Total.Late)

	roomy, q := changing(t, nil)
	p.snapshots = nil
	q.answer = func(s *policy.Snapshot) (*policy.Plan, error) { return p.Plan(t.Context(), s) }
	roomy.Snapshot.Models[0].MemoryBytes, roomy.Snapshot.Nodes[0].Gpus[0].MemoryBytes = 6, 12
	roomy.Replan = w.Replan
	r = run(t, roomy)
	require.Equal(t, []string{"4 plan", "5.5 swap", "8 plan_unchanged"}, kinds(r))
	require.Less(t, r.Total.BadRate, .005)
}

// TestABadPlanChangesNothing.
func TestABadPlanChangesNothing(t *testing.T) {
	for want, second := range map[string]func(*policy.Snapshot) (*policy.Plan, error){
		"out of ideas": func(*policy.Snapshot) (*policy.Plan, error) { return nil, errors.New("out of ideas") },
		"g009":         func(s *policy.Snapshot) (*policy.Plan, error) { return on(s, "g009"), nil },
		"answers snapshot": func(s *policy.Snapshot) (*policy.Plan, error) {
			p := on(s, "g000")
			p.SnapshotRevision = 77
			return p, nil
		},
	} {
		w, p := changing(t, nil)
		p.answer = func(s *policy.Snapshot) (*policy.Plan, error) {
			if len(p.snapshots) == 1 {
				return on(s, "g000"), nil
			}
			return second(s)
		}
		w.Replan = sim.Replan{Every: 6 * time.Second}
		r := run(t, w)
		require.Equal(t, []string{"6 plan_failed"}, kinds(r))
		require.Contains(t, r.Events[0].Text, want)
		require.Less(t, r.Total.BadRate, .005)
	}
	w, _ := changing(t, func(s *policy.Snapshot) (*policy.Plan, error) { return on(s, "g009"), nil })
	_, err := sim.Run(t.Context(), w)
	require.ErrorContains(t, err, "no plan to begin with")
}

// TestTriggers: a rate that changes, and a GPU that fails, ask the policy; noise does not.
func TestTriggers(t *testing.T) {
	everywhere := func(s *policy.Snapshot) (*policy.Plan, error) {
		var ids []string
		for _, g := range s.GetNodes()[0].GetGpus() {
			if !g.GetUnavailable() {
				ids = append(ids, g.GetId())
			}
		}
		return on(s, ids...), nil
	}
	w, p := changing(t, everywhere)
	w.Duration = 60 * time.Second
	w.Replan = sim.Replan{RateUp: .2, RateUpBy: 100, RateDown: .2, Hold: time.Second, Cooldown: 5 * time.Second}
	require.Empty(t, run(t, w).Events, "a constant rate")
	require.Len(t, p.snapshots, 1)

	w, _ = changing(t, everywhere)
	w.Duration = 60 * time.Second
	curve, err := workload.Steps(workload.Step{Rate: 400}, workload.Step{From: 20 * time.Second, Rate: 700}, workload.Step{From: 40 * time.Second, Rate: 100})
	require.NoError(t, err)
	stream, err := workload.Renewal{Curve: curve, Random: workload.Seed(1, "arrivals", "m00")}.Stream()
	require.NoError(t, err)
	w.Streams = []workload.Stream{stream}
	w.Replan = sim.Replan{RateUp: .2, RateUpBy: 100, RateDown: .2, Hold: time.Second, Cooldown: 5 * time.Second}
	r := run(t, w)
	require.GreaterOrEqual(t, len(r.Events), 2)
	require.InDelta(t, 25, r.Events[0].At, 5)
	require.Contains(t, r.Events[0].Text, "m00: its rate rose from 400.0 to")
	require.Contains(t, r.Events[len(r.Events)-1].Text, "m00: its rate fell")
	require.Greater(t, r.Events[len(r.Events)-1].At, 40.)

	w, _ = changing(t, everywhere)
	w.Replan = sim.Replan{OnFailure: true}
	w.Failures = []sim.Failure{{At: 2200 * time.Millisecond, For: 4 * time.Second, GPU: "g001"}}
	r = run(t, w)
	require.Equal(t, []string{"2.2 failure", "2.5 plan", "2.5 swap", "6.2 recovery", "6.5 plan", "8 swap"}, kinds(r))
}

// TestRentedGPUs: a policy that wants two GPUs more gets them after their start time, and gives them back.
func TestRentedGPUs(t *testing.T) {
	w, p := changing(t, nil)
	p.answer = func(s *policy.Snapshot) (*policy.Plan, error) {
		plan := on(s, "g000")
		rate := s.GetModels()[0].GetRate()
		wanted := uint32(2) // those that are there anyway
		if rate > 500 {
			wanted = 4
		}
		plan.WantedGpus = map[string]uint32{"X": wanted}
		for _, n := range s.GetNodes() {
			for _, g := range n.GetGpus() {
				if n.GetName() == "rented" && wanted == 4 {
					plan.Partitions = append(plan.Partitions, &policy.Partition{
						Id: g.GetId(), Node: "rented", Gpus: []string{g.GetId()}, ThreadPercentage: 100, Rank: 9, Instances: []*policy.Instance{policy.ModelInstance("m00", 0)},
					})
				}
			}
		}
		return plan, nil
	}
	w.Duration, w.Bins = 120*time.Second, 12
	w.Snapshot.Offers = []*policy.GPUOffer{{Type: "X", CostPerHour: 3.6, StartSeconds: 5, MaxCount: 10}}
	curve, err := workload.Steps(workload.Step{Rate: 400}, workload.Step{From: 20 * time.Second, Rate: 900}, workload.Step{From: 60 * time.Second, Rate: 100})
	require.NoError(t, err)
	stream, err := workload.Renewal{Curve: curve, Random: workload.Seed(1, "arrivals", "m00")}.Stream()
	require.NoError(t, err)
	w.Streams = []workload.Stream{stream}
	w.Replan = sim.Replan{Every: 5 * time.Second, OnFailure: true}
	r := run(t, w)
	require.Len(t, r.GPUs, 4)
	require.InDelta(t, 32.5, r.GPUs[2].FromSeconds, 5)
	require.InDelta(t, 72.5, r.GPUs[3].UntilSeconds, 10)
	require.InDelta(t, 2, r.History[0].GPUs, 0)
	require.InDelta(t, 4, r.History[5].GPUs, 0)
	require.InDelta(t, 7.2, r.History[5].CostPerHour, 1e-9)
	require.InDelta(t, 2, r.History[11].GPUs, 0)
}

// alone is a policy whose host evaluates nothing.
type alone struct{ policy.Policy }

func (a alone) Plan(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
	return a.Policy.Plan(ctx, s, policy.NoEvaluation{})
}

// TestTheStaticPolicy is a whole run by a policy that Conch brings.
func TestTheStaticPolicy(t *testing.T) {
	s := resnet50()
	s.rate = 4000
	w := s.world(t)
	static, ok := builtin.New("static")
	require.True(t, ok)
	d, err := static.Describe(t.Context())
	require.NoError(t, err)
	w.Plan, w.Policy = nil, alone{static}
	w.Snapshot.Parameters, err = d.Resolve(map[string]string{"discipline": "deferred", "drop_policy": "window"})
	require.NoError(t, err)
	r := run(t, w)
	require.Len(t, r.Partitions, 8)
	require.Less(t, r.Total.BadRate, .01)

	given := s.world(t)
	require.Equal(t, run(t, given).Models, r.Models, "the same plan by hand")
}

// A policy that dies in the middle leaves what it planned before, and a result that says so.
func TestAPolicyThatDiesIsCounted(t *testing.T) {
	calls := 0
	w, _ := changing(t, func(s *policy.Snapshot) (*policy.Plan, error) {
		if calls++; calls > 3 {
			return nil, errors.New("it has died")
		}
		return on(s, "g000", "g001"), nil
	})
	w.Replan.Every = time.Second
	r, err := sim.Run(t.Context(), w)
	require.NoError(t, err)
	require.Equal(t, 3, r.Plans)
	require.Equal(t, calls-3, r.PlansFailed)
	require.Greater(t, r.PlansFailed, 5)
	require.Equal(t, "at 3.000 s, interval of 1s: it has died", r.PlanFailure)
	require.Zero(t, r.Total.Refused)
}

// Requests that a burst makes late are bad where they arrived, and the last interval has no more bad ones than arrived in it.
func TestTheHistoryCountsWhatBecameOfArrivals(t *testing.T) {
	w, _ := changing(t, func(s *policy.Snapshot) (*policy.Plan, error) { return on(s, "g000"), nil })
	var burst []workload.Arrival
	for i := range 3000 {
		burst = append(burst, workload.Arrival{At: time.Duration(i) * time.Millisecond, Rows: 1}) // far more than one GPU can do
	}
	w.Streams, w.Bins = []workload.Stream{workload.Slice(burst...)}, 10
	r, err := sim.Run(t.Context(), w)
	require.NoError(t, err)
	require.Positive(t, r.Total.Late+r.Total.Dropped)
	for i, h := range r.History {
		require.Equal(t, h.Arrivals, h.Good+h.Bad, "interval %d", i)
	}
}
