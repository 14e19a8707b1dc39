// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
)

// bursting is a host by whose traffic so many of a hundred requests are bad under every plan, and under other arrivals four tenths more on fewer than four GPUs.
type bursting struct {
	bad   float64
	asked uint32
	draws map[uint32]int
}

// Evaluate implements policy.Host.
func (b *bursting) Evaluate(ctx context.Context, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	return b.EvaluateDraw(ctx, 0, plans...)
}

// EvaluateDraw implements policy.Host.
func (b *bursting) EvaluateDraw(_ context.Context, draw uint32, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	all := make([]*policy.Outcome, len(plans))
	for i, p := range plans {
		n, bad := gpus(p), b.bad
		if draw > 0 && n < 4 {
			bad += .4
		}
		all[i] = &policy.Outcome{Goodput: 100 * (1 - bad), BadRate: bad, Gpus: uint32(n)} //nolint:gosec // few
	}
	b.asked += uint32(len(plans)) //nolint:gosec // few
	if draw > 0 {
		b.draws[draw] += len(plans)
	}
	return all, nil
}

func gpus(p *policy.Plan) int {
	all := make(map[string]bool)
	for _, part := range p.GetPartitions() {
		all[part.GPU()] = true
	}
	return len(all)
}

// By the traffic all plans are alike, and the one on the fewest GPUs is taken. Where rates change from minute to minute, and others than the traffic's arrivals fare badly there, it is
// not. The budget is kept.
func TestOtherArrivalsChooseOnFixedGPUs(t *testing.T) {
	world := func() *policy.Snapshot {
		b := packtest.World(4).Line("a", 1, 4, 100, 50).Line("b", 1, 4, 100, 50)
		b.Evaluations = 64
		return b.Snapshot
	}
	plan := func(s *policy.Snapshot, h *bursting) *policy.Plan {
		h.draws = make(map[uint32]int)
		p, err := made().Plan(t.Context(), s, h)
		require.NoError(t, err)
		require.LessOrEqual(t, h.asked, s.GetEvaluations())
		return p
	}
	require.Less(t, gpus(plan(world(), &bursting{})), 4, "nothing says that the traffic changes: fewer GPUs serve as much")

	s := world()
	s.History = []*policy.ModelHistory{{Model: "a", Rates: []float64{50, 100}}}
	changing := &bursting{}
	p := plan(s, changing)
	require.Equal(t, 4, gpus(p))
	require.Greater(t, len(changing.draws), 4)
	require.True(t, proto.Equal(p, plan(s, &bursting{})), "the same twice")

	losing := &bursting{bad: .02}
	require.Equal(t, 4, gpus(plan(s, losing)), "where some requests go badly by the traffic, too, it is one sample of what comes")
	require.NotEmpty(t, losing.draws)

	// The plan in force is judged by other arrivals, too: what serves as much by the traffic gives way.
	s.Parameters = map[string]string{"finalists": "0"}
	s.Current = plan(s, &bursting{})
	s.Parameters = nil
	s.Revision++
	require.Less(t, gpus(s.GetCurrent()), 4)
	require.Equal(t, 4, gpus(plan(s, &bursting{})))
}

// Under min-cost a plan that surely holds the load is found before local search for one on fewer GPUs spends the budget.
func TestSurePlansComeBeforeCheaperOnes(t *testing.T) {
	b := packtest.World(6).Line("a", 1, 4, 100, 50).Line("b", 1, 4, 100, 50)
	b.Objective, b.Evaluations = policy.Objective_OBJECTIVE_MIN_COST, 80
	p, err := made().Plan(t.Context(), b.Snapshot, hostFunc(func(_ uint32, p *policy.Plan) *policy.Outcome {
		o := &policy.Outcome{Goodput: 100, Gpus: uint32(gpus(p))} //nolint:gosec // few
		if gpus(p) < 6 {
			o.Goodput, o.BadRate = 99.4, .006
		}
		return o
	}))
	require.NoError(t, err)
	require.Equal(t, 6, gpus(p))
	require.Contains(t, fmt.Sprint(p.GetReasons()), "surely holds the load")
}

// Where no plan surely holds the load that counts which is the least bad under other arrivals, whatever the traffic says, and whatever is in force.
func TestOtherArrivalsChooseWhereNoneHoldsSurely(t *testing.T) {
	b := packtest.World(6).Line("a", 1, 4, 100, 50).Line("b", 1, 4, 100, 50)
	b.Objective, b.Evaluations = policy.Objective_OBJECTIVE_MIN_COST, 128
	h := hostFunc(func(draw uint32, p *policy.Plan) *policy.Outcome {
		o := &policy.Outcome{Goodput: 100, Gpus: uint32(gpus(p))} //nolint:gosec // few
		if draw > 0 {
			o.BadRate = .3 / float64(gpus(p))
		} else if gpus(p) > 1 {
			o.Goodput, o.BadRate = 99.9, .001
		}
		return o
	})
	for range 2 {
		p, err := made().Plan(t.Context(), b.Snapshot, h)
		require.NoError(t, err)
		require.Equal(t, 6, gpus(p), "%v", p.GetReasons())
		require.Contains(t, fmt.Sprint(p.GetReasons()), "may not hold")
		smaller := proto.CloneOf(p)
		smaller.Partitions = smaller.Partitions[:1]
		b.Current, b.Revision = smaller, b.Revision+1
	}
}
