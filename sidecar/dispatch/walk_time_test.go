// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// times are what executions of models take, by name: alpha for each row, and beta.
type times map[string][2]time.Duration

// alike are the two steps of ensembleTable, which take the same.
func alike(alpha, beta time.Duration) times { return times{"m": {alpha, beta}, "n": {alpha, beta}} }

// take is an execution.
func (l times) take(_ context.Context, r *tritonpb.ModelInferRequest) {
	line := l[r.ModelName]
	time.Sleep(line[1] + time.Duration(r.Inputs[0].Shape[0])*line[0])
}

// declare has the dispatcher plan with them.
func (l times) declare(d *dispatch.Dispatcher) {
	for name, line := range l {
		profile := linear(line[0], line[1])
		profile.Model = name
		d.SetProfile(profile)
	}
}

// askSteadily sends n requests of the ensemble, one after each time, and waits for their answers.
func askSteadily(t *testing.T, d *dispatch.Dispatcher, n int, every time.Duration) {
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { _ = infer(t.Context(), t, d, uint32(i), 1, toModel("e")) })
		time.Sleep(every)
	}
	calls.Wait()
}

// TestStepsHaveDeadlinesOfTheirOwn: what follows a step is taken off its deadline, with a part of the time to spare, and the last step has the whole's.
func TestStepsHaveDeadlinesOfTheirOwn(t *testing.T) {
	p := newTriton(t)
	d, r := newDispatcher(t, dispatch.Options{}, ensembleTable(1, func(t *router.Table) { t.Models["e"].SLO = time.Hour }, p))
	times{"m": {0, 20 * time.Minute}, "n": {0, 20 * time.Minute}}.declare(d)
	began := time.Now()
	require.NoError(t, infer(t.Context(), t, d, 7, 1, toModel("e")))
	require.Eventually(t, func() bool { all, _ := r.shared(); return all == 2 }, 30*time.Second, time.Millisecond)
	deadlines := map[string]time.Duration{}
	for _, e := range r.executions {
		deadlines[e.Model] = e.Deadline.Sub(began).Round(time.Minute)
	}
	require.Equal(t, map[string]time.Duration{"m": 38 * time.Minute, "n": time.Hour}, deadlines, "20 minutes for n, and a quarter of half of what is to spare")
}

// TestWhatCannotMakeItIsDroppedAtItsFirstStep: the queue of the first step sees that there is no time left for the second.
func TestWhatCannotMakeItIsDroppedAtItsFirstStep(t *testing.T) {
	for _, late := range []policy.LatePolicy{policy.LatePolicy_LATE_POLICY_DROP, policy.LatePolicy_LATE_POLICY_SERVE} {
		t.Run(late.String(), func(t *testing.T) {
			p := newTriton(t)
			asked := asks(p)
			d, r := newDispatcher(t, dispatch.Options{}, ensembleTable(1, func(t *router.Table) {
				for _, name := range []string{"m", "n"} {
					t.Models[name].Late = policy.LatePolicy_LATE_POLICY_DROP
				}
				t.Models["e"].Late, t.Models["e"].SLO = late, 30*time.Second
			}, p))
			profile := linear(0, time.Second)
			d.SetProfile(profile)
			profile = linear(0, time.Hour)
			profile.Model = "n"
			d.SetProfile(profile)
			_ = infer(t.Context(), t, d, 6, 1, toModel("e")) // one is tried, because the profile may be wrong
			before := len(asked())
			err := infer(t.Context(), t, d, 7, 1, toModel("e"))
			if late == policy.LatePolicy_LATE_POLICY_SERVE {
				require.NoError(t, err, "the ensemble serves late requests, whatever the models of its steps do")
				return
			}
			requireCode(t, codes.Unavailable, err)
			require.Len(t, asked(), before, "nothing was executed for it")
			require.Positive(t, r.count(t)[dispatch.Dropped])
		})
	}
}

// TestUnderOverloadTheFirstStepDrops: what is dropped at the second step has cost an execution of the first. The more of that there was, the earlier a request is
// given up. Here a fixed reserve would leave some tens of 4,000 requests an answer. An ensemble that serves late requests drops none.
func TestUnderOverloadTheFirstStepDrops(t *testing.T) {
	for _, late := range []policy.LatePolicy{policy.LatePolicy_LATE_POLICY_DROP, policy.LatePolicy_LATE_POLICY_SERVE} {
		t.Run(late.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				parts, o := inBubble(t, 1)
				lines := alike(10*time.Millisecond, 10*time.Millisecond)
				parts[0].asked = lines.take
				d, r := newDispatcher(t, o, ensembleTable(1, func(t *router.Table) {
					t.Models["e"].SLO, t.Models["e"].Late = 500*time.Millisecond, late
					for _, name := range []string{"m", "n"} {
						t.Models[name].Late = policy.LatePolicy_LATE_POLICY_DROP
					}
				}, parts...))
				lines.declare(d)
				askSteadily(t, d, 4000, time.Second/100)
				if late == policy.LatePolicy_LATE_POLICY_SERVE {
					require.Zero(t, r.count(t)[dispatch.Dropped])
					return
				}
				require.Greater(t, r.count(t)[dispatch.OK], 1000, "of some 1,800 that one server could execute")
			})
		})
	}
}

// TestAnOverloadEndsForABriefFirstStep: what prepares inputs is on a server of its own and is brief. Requests that are lost after it cost little: the second step goes
// on executing what it can, and once the overload is over nothing is dropped any more. With less time for the first step, everything would be dropped there, and nothing would be
// left to show that it could be in time. Where even a tenth of the time to spare is too little, that is so until the losses are forgotten.
func TestAnOverloadEndsForABriefFirstStep(t *testing.T) {
	for slo, least := range map[time.Duration]int{90 * time.Millisecond: 100, 84 * time.Millisecond: 20} {
		t.Run(slo.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				parts, o := inBubble(t, 2)
				lines := times{"m": {0, 2 * time.Millisecond}, "n": {40 * time.Millisecond, 40 * time.Millisecond}}
				for _, p := range parts {
					p.asked = lines.take
				}
				d, r := newDispatcher(t, o, ensembleTable(1, func(t *router.Table) {
					t.Models["e"].SLO, t.Models["e"].Late = slo, policy.LatePolicy_LATE_POLICY_DROP
					places := t.Models["e"].Places
					for i, name := range []string{"m", "n"} {
						t.Models[name].Late, t.Models[name].Places = policy.LatePolicy_LATE_POLICY_DROP, places[i:i+1]
					}
				}, parts...))
				lines.declare(d)
				askSteadily(t, d, 1000, time.Second/100)
				require.Greater(t, r.count(t)[dispatch.OK], least, "of some 125 that the second server could execute")
				time.Sleep(5 * time.Second)
				for i := range 60 {
					require.NoError(t, infer(t.Context(), t, d, uint32(1000+i), 1, toModel("e")))
					time.Sleep(time.Second)
				}
			})
		})
	}
}

// TestAStepThatWasHeldUpIsForgotten: the first execution of the second step takes far longer than the whole may. By that nothing could be in time, so that everything is dropped at
// the first step, and nothing would be left to show that it is over. Trials of the first step show it late, or never where its model is asked for by its name as well.
func TestAStepThatWasHeldUpIsForgotten(t *testing.T) {
	for name, profiled := range map[string]bool{"profiled": true, "without a profile": false} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				parts, o := inBubble(t, 2)
				lines := alike(0, 20*time.Millisecond)
				var held sync.Once
				parts[0].asked = lines.take
				parts[1].asked = func(ctx context.Context, r *tritonpb.ModelInferRequest) {
					held.Do(func() { time.Sleep(5 * time.Second) })
					lines.take(ctx, r)
				}
				d, _ := newDispatcher(t, o, ensembleTable(1, func(t *router.Table) {
					t.Models["e"].SLO, t.Models["e"].Late = 500*time.Millisecond, policy.LatePolicy_LATE_POLICY_DROP
					places := t.Models["e"].Places
					for i, name := range []string{"m", "n"} {
						t.Models[name].Late, t.Models[name].Places = policy.LatePolicy_LATE_POLICY_DROP, places[i:i+1]
					}
				}, parts...))
				if profiled {
					lines.declare(d)
				} else {
					times{"m": lines["m"]}.declare(d)
				}
				var direct sync.WaitGroup
				direct.Go(func() {
					for i := range 300 {
						_ = infer(t.Context(), t, d, uint32(i), 1, nil)
						time.Sleep(80 * time.Millisecond)
					}
				})
				askSteadily(t, d, 200, 100*time.Millisecond)
				for i := range 20 {
					require.NoError(t, infer(t.Context(), t, d, uint32(200+i), 1, toModel("e")))
				}
				direct.Wait()
			})
		})
	}
}

// TestBatchesOfStepsHaveTheTimeOfTheEnsemble: how large a batch may be follows from what the ensemble leaves a step, and not from the SLO of the step's model,
// which may be a default that nobody thought of. Here batches of one, which that SLO allows, are too few for the load.
func TestBatchesOfStepsHaveTheTimeOfTheEnsemble(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, o := inBubble(t, 1)
		lines := alike(10*time.Millisecond, 10*time.Millisecond)
		parts[0].asked = lines.take
		d, r := newDispatcher(t, o, ensembleTable(1, func(t *router.Table) {
			t.Models["e"].SLO, t.Models["e"].Late = time.Second, policy.LatePolicy_LATE_POLICY_DROP
			for _, name := range []string{"m", "n"} {
				t.Models[name].SLO = 20 * time.Millisecond
			}
		}, parts...))
		lines.declare(d)
		askSteadily(t, d, 350, time.Second/35)
		require.Equal(t, map[dispatch.Result]int{dispatch.OK: 350}, r.count(t))
		require.Greater(t, slices.Max(parts[0].executions()), 1)
	})
}

// TestTheTimeOfAnEnsembleIsDividedByProfiles: what each step gets of it is in proportion to what the profiles say of batches of eight, as in simulations and for
// policies, and not to what the last executions took. Here these are of one row, of which the first step takes next to nothing: planned with that, its batches
// would stay small, and those of the second, which is planned with the rest, would start too late.
func TestTheTimeOfAnEnsembleIsDividedByProfiles(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, o := inBubble(t, 1)
		d, _ := newDispatcher(t, o, ensembleTable(1, func(t *router.Table) { t.Models["e"].SLO = time.Second }, parts...))
		lines := times{"m": {4 * time.Millisecond, 0}, "n": {time.Millisecond, 24 * time.Millisecond}}
		parts[0].asked = lines.take
		lines.declare(d)
		for i := range 100 {
			require.NoError(t, infer(t.Context(), t, d, uint32(i), 1, toModel("e")))
			time.Sleep(time.Second)
		}
		require.InDelta(t, time.Second/2, dispatch.PlannedTime(d, "m"), float64(50*time.Millisecond), "32 ms of 64")
		require.InDelta(t, time.Second/2, dispatch.PlannedTime(d, "n"), float64(50*time.Millisecond))
	})
}
