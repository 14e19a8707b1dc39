// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/conch"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
)

// cluster is so many GPUs of 80 GiB, four a node, and so many models of 8 GiB that load them to two thirds: ten fit on a GPU.
func cluster(models, gpus int) *policy.Snapshot {
	s := many(models, gpus)
	for _, m := range s.Models {
		m.MemoryBytes = 8 << 30
	}
	all := s.Nodes[0].Gpus
	s.Nodes = nil
	for four := range slices.Chunk(all, 4) {
		for _, g := range four {
			g.MemoryBytes = 80 << 30
		}
		s.Nodes = append(s.Nodes, &policy.Node{Name: fmt.Sprintf("node-%04d", len(s.Nodes)), Gpus: four})
	}
	return s
}

// again is the snapshot after a plan: that is in force, and every twentieth model has half as much load again.
func again(s *policy.Snapshot, inForce *policy.Plan) *policy.Snapshot {
	next := proto.CloneOf(s)
	next.Current = inForce
	for i, m := range next.Models {
		if i%20 == 0 {
			m.Rate, m.RowRate = 1.5*m.Rate, 1.5*m.RowRate
		}
	}
	return next
}

// counting is a host that finds every plan equally good and counts the plans.
type counting struct {
	indifferent
	asked *int
}

// Evaluate implements policy.Host.
func (c counting) Evaluate(ctx context.Context, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	*c.asked += len(plans)
	return c.indifferent.Evaluate(ctx, plans...)
}

// EvaluateDraw implements policy.Host.
func (c counting) EvaluateDraw(ctx context.Context, _ uint32, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	return c.Evaluate(ctx, plans...)
}

// Twice the GPUs with the same models take no more than about twice the work, with a plan in force and without.
func TestWorkGrowsWithTheCluster(t *testing.T) {
	for _, p := range append(beginnings(), conch.New(beginnings()...)) {
		d, err := p.Describe(t.Context())
		require.NoError(t, err)
		t.Run(d.GetName(), func(t *testing.T) {
			work := func(gpus int) (first, second float64) {
				s := cluster(40, gpus)
				var inForce *policy.Plan
				first = testing.AllocsPerRun(1, func() {
					inForce, err = p.Plan(t.Context(), s, indifferent{})
					require.NoError(t, err)
				})
				next := again(s, inForce)
				second = testing.AllocsPerRun(1, func() {
					_, err = p.Plan(t.Context(), next, indifferent{})
					require.NoError(t, err)
				})
				return first, second
			}
			first, second := work(200)
			firstOfTwice, secondOfTwice := work(400)
			require.LessOrEqual(t, firstOfTwice, 2.5*first)
			require.LessOrEqual(t, secondOfTwice, 2.5*second)
		})
	}
}

// Where the planning budget does not suffice for all of its search the policy answers with what it has by then, says so, and answers the same again.
func TestSearchIsLimitedByThePlanningBudget(t *testing.T) {
	s := cluster(40, 200)
	ask := func(budget int64) (*policy.Plan, int) {
		s.PlanningBudgetUs = budget
		asked := 0
		p, err := conch.New(beginnings()...).Plan(t.Context(), s, counting{asked: &asked})
		require.NoError(t, err)
		require.Empty(t, conformance.Check(s, p))
		return p, asked
	}
	const limited = "the search was limited to"
	whole, all := ask(1e9)
	require.NotContains(t, reasons(whole), limited)
	none, asked := ask(0)
	require.Equal(t, reasons(whole), reasons(none), "no budget is no bound")
	require.Equal(t, all, asked)

	few, asked := ask(10_000)
	require.Less(t, asked, all)
	require.Contains(t, reasons(few), limited+" 30000 steps, which the planning budget of 0.01 s allows")
	require.Contains(t, reasons(few), "of 64 evaluations were not asked for")
	require.Contains(t, reasons(few), "plans not begun with: ")
	require.Contains(t, reasons(few), "usher's")
	once, _ := ask(10_000)
	require.True(t, proto.Equal(few, once))
}

func reasons(p *policy.Plan) (text string) {
	for _, r := range p.GetReasons() {
		text += r.GetText() + "\n"
	}
	return text
}
