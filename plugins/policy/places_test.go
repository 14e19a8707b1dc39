// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
)

// A model is where an instance has its name, unless that is a recipe's, and where a recipe of which it is a member is placed. Of recipes of one name the first counts.
func TestPlaces(t *testing.T) {
	p := &policy.Plan{
		Partitions: []*policy.Partition{
			{Id: "p", Instances: []*policy.Instance{{Model: "a"}, {Model: "g"}, {Model: "a"}}},
			{Id: "q", Instances: []*policy.Instance{{Model: "b"}, {}}},
			{Id: "r"},
		},
		Recipes: []*policy.Recipe{{Name: "g", Members: []string{"b", "c", "a"}}, {Name: "g", Members: []string{"d"}}},
	}
	require.Equal(t, map[string][]*policy.Partition{"a": p.Partitions[:1], "b": p.Partitions[:2], "c": p.Partitions[:1]}, p.Places())
	require.Empty(t, p.PartitionsOf("g"))
	require.Empty(t, p.PartitionsOf("d"))
	require.Empty(t, p.PartitionsOf(""))
	require.Empty(t, (*policy.Plan)(nil).Places())
}

// PartitionsOf and Places say the same of every model.
func TestPlacesAreThoseOfEachModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"", "a", "b", "c", "g", "h"})
		p := &policy.Plan{}
		for range rapid.IntRange(0, 4).Draw(t, "partitions") {
			part := &policy.Partition{}
			for range rapid.IntRange(0, 4).Draw(t, "instances") {
				part.Instances = append(part.Instances, &policy.Instance{Model: name.Draw(t, "model")})
			}
			p.Partitions = append(p.Partitions, part)
		}
		for range rapid.IntRange(0, 3).Draw(t, "recipes") {
			p.Recipes = append(p.Recipes, &policy.Recipe{Name: name.Draw(t, "recipe"), Members: rapid.SliceOfN(name, 0, 3).Draw(t, "members")})
		}
		places := p.Places()
		for _, model := range []string{"", "a", "b", "c", "g", "h"} {
			require.Len(t, places[model], len(p.PartitionsOf(model)), model)
			for i, part := range p.PartitionsOf(model) {
				require.Same(t, part, places[model][i])
			}
		}
	})
}

func TestHosts(t *testing.T) {
	for want, gpus := range map[string][]string{"cpu": nil, "g0": {"g0"}, "g0+g1": {"g0", "g1"}} {
		require.Equal(t, want, (&policy.Partition{Gpus: gpus}).Hosts())
	}
}
