// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/advice"
	"github.com/conch-serving/conch/sidecar/sim"
)

// serving is table 2's ResNet50 under a discipline with its own drop policy.
func serving(discipline string, rate float64, gpus int) small {
	s := resnet50()
	s.discipline, s.drop, s.rate, s.gpus, s.duration = discipline, "", rate, gpus, 6*time.Second
	return s
}

// TestLoadProportionalUse is Symphony's section 3.5, on 8 GPUs: below the peak p an offered load o leaves about (p-o)/p of the GPUs' time idle, all
// of it at the high ranks; above, as many requests are good as at the peak, and (o-p)/o are bad. Adaptive starts a lone request at once, which
// costs some of the idle time and, at low load, no further GPU. Eager keeps all GPUs busy, as the paper says.
func TestLoadProportionalUse(t *testing.T) {
	const gpus = 8
	at := func(discipline string, rate float64) (*sim.Result, advice.Window, float64) {
		r := run(t, serving(discipline, rate, gpus).world(t))
		w := r.Window()
		require.Len(t, w.GPUs, gpus)
		idle := 0.0
		for _, g := range w.GPUs {
			idle += g.IdleShare / gpus
		}
		return r, w, idle
	}
	for discipline, tolerance := range map[string]float64{"deferred": .05, "adaptive": .15} {
		flat, _, idle := at(discipline, 20_000)
		peak := flat.Total.Goodput
		require.Less(t, idle, .01)
		for _, share := range []float64{1.1, 1.5, 2} {
			r, w, _ := at(discipline, share*peak)
			require.GreaterOrEqual(t, r.Total.Goodput, .95*peak, "%s: flat top at %g of the peak", discipline, share)
			require.InDelta(t, 1-1/share, r.Total.BadRate, .04, "%s: bad rate at %g of the peak", discipline, share)
			require.InDelta(t, r.Total.BadRate, float64(w.Bad)/float64(w.Requests), .001)
		}
		for _, share := range []float64{.1, .25, .5, .75} {
			r, w, idle := at(discipline, share*peak)
			require.Less(t, r.Total.BadRate, .01)
			require.InDelta(t, 1-share, idle, tolerance, "%s: idle share at %g of the peak", discipline, share)
			for i := 1; i < gpus; i++ {
				require.GreaterOrEqual(t, w.GPUs[i].IdleShare, w.GPUs[i-1].IdleShare-.02, "%s: rank %d at %g of the peak", discipline, i, share)
			}
			// What the load needs, and two more: the others are never used for long.
			for _, g := range w.GPUs[min(gpus, int(share*gpus)+3):] {
				require.Greater(t, g.IdleShare, .9, "%s: rank %d at %g of the peak", discipline, g.Rank, share)
			}
		}
	}
	_, w, idle := at("eager", 3_000)
	require.Less(t, idle, .25)
	require.Less(t, w.GPUs[gpus-1].IdleShare, .5)
}

// needed is the smallest number of GPUs on which the search says that a rate holds.
func needed(t *testing.T, rate float64, from int, world func(float64, int) small) int {
	t.Helper()
	for n := from; n < 40; n++ {
		found, err := sim.Goodput(t.Context(), sim.Search{
			Run: func(ctx context.Context, rate float64, seed uint64) (*sim.Result, error) {
				s := world(rate, n)
				s.seed, s.duration = seed, 5*time.Second
				return sim.Run(ctx, s.world(t))
			},
			Seeds: []uint64{1}, Guess: rate, Tolerance: .02, Most: rate,
		})
		require.NoError(t, err)
		if found.Rate >= rate {
			require.Greater(t, n, from, "the search has to begin with too few")
			return n
		}
	}
	t.Fatalf("%g requests per second hold on no number of GPUs below 40", rate)
	return 0
}

// TestFollowingTheAdvice: from too few GPUs or too many, a cluster that follows the advice ends within one of the number that the search
// finds, and stays there.
func TestFollowingTheAdvice(t *testing.T) {
	under := func(discipline string, models int) func(float64, int) small {
		return func(rate float64, gpus int) small {
			s := serving(discipline, rate, gpus)
			s.models = models
			return s
		}
	}
	for name, test := range map[string]struct {
		rate  float64
		from  int // where the search begins: too few, surely
		world func(float64, int) small
	}{
		"adaptive":        {3_000, 3, under("adaptive", 1)},
		"adaptive, heavy": {6_000, 7, under("adaptive", 1)},
		"deferred":        {5_000, 6, under("deferred", 1)},
		"four models":     {2_000, 2, under("adaptive", 4)},
		"eight models":    {5_000, 8, under("adaptive", 8)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := needed(t, test.rate, test.from, test.world)
			for _, start := range []int{1, 2*want + 6} {
				n, path := start, []int{start}
				var s advice.State
				settled := 0
				for step := range 10 {
					config := test.world(test.rate, n)
					config.seed = uint64(step + 1)
					// It stands for a minute: so long it has to last.
					w := run(t, config.world(t)).Window()
					w.Seconds = 60
					var a *policy.Advice
					s, a = advice.Rule{}.Next(s, w)
					if d := int(a.GetAllocateGpus()) - int(a.GetReleaseGpus()); d != 0 {
						n, settled = n+d, step+1
						path = append(path, n)
					}
				}
				require.InDelta(t, want, n, 1, "from %d: %v", start, path)
				require.Less(t, settled, 7, "from %d: %v", start, path)
			}
		})
	}
}

// TestPoliciesSeeTheAdvice: a policy that rents GPUs as its snapshots advise holds a load that one GPU cannot, and gives back what a smaller one
// leaves idle.
func TestPoliciesSeeTheAdvice(t *testing.T) {
	s := serving("adaptive", 2500, 1)
	s.duration, s.warmup = 4*time.Minute, 3*time.Minute
	w := s.world(t)
	w.Plan = nil
	w.Snapshot.Offers = []*policy.GPUOffer{{Type: "X", MaxCount: 40, StartSeconds: 2}}
	wanted, allocated := 1, 0
	p := &asked{}
	p.answer = func(s *policy.Snapshot) (*policy.Plan, error) {
		a := s.GetStatistics().GetAdvice()
		plan := &policy.Plan{SnapshotRevision: s.GetRevision(), Policy: "test", WantedGpus: map[string]uint32{}}
		gone := map[string]bool{}
		if d := int(a.GetAllocateGpus()); d > 0 {
			wanted, allocated = int(a.GetGpus())+d, d
		}
		for _, id := range a.GetRelease() {
			gone[id] = true
		}
		placed := 0
		for _, n := range s.GetNodes() {
			for _, g := range n.GetGpus() {
				id := g.GetId()
				if len(s.GetNodes()) > 1 {
					id = n.GetName() + "/" + id
				}
				if gone[id] {
					wanted--
					continue
				}
				plan.Partitions = append(plan.Partitions, &policy.Partition{
					Id: "on-" + g.GetId(), Node: n.GetName(), Gpus: []string{g.GetId()}, ThreadPercentage: 100, Rank: uint32(placed), Instances: []*policy.Instance{policy.ModelInstance("m00", 0)},
				})
				placed++
			}
		}
		wanted = max(wanted, placed)
		if len(gone) > 0 {
			wanted = placed
		}
		plan.WantedGpus["X"] = uint32(wanted)
		plan.Dispatch = []*policy.Dispatch{{Model: "m00", Discipline: "adaptive"}}
		return plan, nil
	}
	w.Policy, w.Replan = p, sim.Replan{Every: 5 * time.Second, OnFailure: true}
	r := run(t, w)
	require.Less(t, r.Total.BadRate, .01)
	want := needed(t, 2500, 2, func(rate float64, gpus int) small { return serving("adaptive", rate, gpus) })
	last := r.History[len(r.History)-1]
	require.InDelta(t, want, last.GPUs, 1)
	require.Nil(t, p.snapshots[0].GetStatistics().GetAdvice(), "nothing is known at the start")
	require.Positive(t, allocated)
}
