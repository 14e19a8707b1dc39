// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
)

func TestMerge(t *testing.T) {
	group := func(name string, members ...string) *policy.DerivedModel {
		return &policy.DerivedModel{Recipe: &policy.Recipe{Name: name, Kind: policy.RecipeKind_RECIPE_KIND_MERGE, Mode: policy.MergeMode_MERGE_MODE_BACKBONE, Members: members}}
	}
	refused := group("ab", "a", "b")
	refused.Refusal = "no"
	place := func(id string, models ...string) *policy.Partition {
		p := &policy.Partition{Id: id}
		for i, m := range models {
			p.Instances = append(p.Instances, &policy.Instance{Model: m, MaxBatch: uint32(4 + i), Rate: 10})
		}
		return p
	}
	for name, c := range map[string]struct {
		offers     []*policy.DerivedModel
		partitions []*policy.Partition
		never      string
		want       map[string][]string
	}{
		"together everywhere":   {[]*policy.DerivedModel{group("ab", "a", "b")}, []*policy.Partition{place("p", "a", "c", "b"), place("q", "b", "a")}, "", map[string][]string{"p": {"ab", "c"}, "q": {"ab"}}},
		"apart somewhere":       {[]*policy.DerivedModel{group("ab", "a", "b")}, []*policy.Partition{place("p", "a", "b"), place("q", "a")}, "", nil},
		"the largest first":     {[]*policy.DerivedModel{group("ab", "a", "b"), group("abc", "a", "b", "c")}, []*policy.Partition{place("p", "a", "b", "c")}, "", map[string][]string{"p": {"abc"}}},
		"refused":               {[]*policy.DerivedModel{refused}, []*policy.Partition{place("p", "a", "b")}, "", nil},
		"never":                 {[]*policy.DerivedModel{group("ab", "a", "b")}, []*policy.Partition{place("p", "a", "b")}, "b", nil},
		"a member is not there": {[]*policy.DerivedModel{group("ax", "a", "x")}, []*policy.Partition{place("p", "a", "b")}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := &policy.Snapshot{Derived: c.offers, Models: []*policy.Model{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
			if c.never != "" {
				s.Constraints = []*policy.Constraint{{Model: c.never, NeverMerge: true}}
			}
			p := &policy.Plan{Partitions: c.partitions, Dispatch: []*policy.Dispatch{{Model: "a", Discipline: "eager"}, {Model: "b"}, {Model: "c"}}}
			require.Equal(t, c.want != nil, policy.NewIndex(s).Merge(p))
			got := map[string][]string{}
			for _, part := range p.GetPartitions() {
				for _, in := range part.GetInstances() {
					got[part.GetId()] = append(got[part.GetId()], in.GetModel())
				}
			}
			if c.want == nil {
				require.Empty(t, p.GetRecipes())
				require.Len(t, p.GetDispatch(), 3)
				return
			}
			require.Equal(t, c.want, got)
			require.Len(t, p.GetRecipes(), 1)
			require.Equal(t, p.GetRecipes()[0].GetName(), p.GetDispatch()[0].GetModel())
			require.Equal(t, "eager", p.GetDispatch()[0].GetDiscipline())
			in := p.GetPartitions()[0].GetInstances()[0]
			require.InDelta(t, 10*float64(len(p.GetRecipes()[0].GetMembers())), in.GetRate(), 1e-9)
			require.EqualValues(t, 6, in.GetMaxBatch())
		})
	}
}
