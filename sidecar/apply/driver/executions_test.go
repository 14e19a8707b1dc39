// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
)

// servedWith is a model with instance groups, as a server reports them.
func servedWith(t *testing.T, name, groups string) Served {
	c := &tritonpb.ModelConfig{}
	require.NoError(t, prototext.Unmarshal([]byte(groups), c))
	return Served{Name: name, Config: c}
}

func TestExecutionsOfAServer(t *testing.T) {
	const all, first, third, twice = "instance_group { kind: KIND_GPU count: 1 gpus: [0, 1, 2, 3] }", "instance_group { kind: KIND_GPU count: 1 gpus: 0 }",
		"instance_group { kind: KIND_GPU count: 1 gpus: 2 }", "instance_group { kind: KIND_GPU count: 2 gpus: [0, 1, 2, 3] }"
	cpu := func(n int) string { return fmt.Sprintf("instance_group { kind: KIND_CPU count: %d }", n) }
	for name, c := range map[string]struct {
		set    int
		groups []string
		atOnce int
		masks  []uint64
	}{
		"nothing is known":              {groups: []string{""}, atOnce: 1, masks: []uint64{1}},
		"no model":                      {atOnce: 1},
		"one GPU":                       {groups: []string{first}, atOnce: 1, masks: []uint64{1}},
		"an instance on each GPU":       {groups: []string{all, all}, atOnce: 4, masks: []uint64{0b1111, 0b1111}},
		"two on each":                   {groups: []string{twice}, atOnce: 4, masks: []uint64{0b1111}},
		"GPUs of their own":             {groups: []string{first, third}, atOnce: 2, masks: []uint64{0b01, 0b10}},
		"fewer instances":               {groups: []string{all, third}, atOnce: 4, masks: []uint64{0b1111, 0b0100}},
		"groups add up":                 {groups: []string{first + third}, atOnce: 2, masks: []uint64{0b11}},
		"passive instances":             {groups: []string{first + "instance_group { kind: KIND_GPU gpus: 1 passive: true }"}, atOnce: 1, masks: []uint64{1}},
		"CPUs say nothing":              {groups: []string{cpu(4)}, atOnce: 1, masks: []uint64{1}},
		"CPUs beside GPUs":              {groups: []string{all, cpu(2), cpu(1), cpu(9)}, atOnce: 4, masks: []uint64{0b1111, 0b0011, 0b0010, 0b1111}},
		"set, on CPUs":                  {set: 4, groups: []string{cpu(4), cpu(2), cpu(1)}, atOnce: 4, masks: []uint64{0b1111, 0b0110, 0b0100}},
		"set, two for each GPU":         {set: 8, groups: []string{all, twice}, atOnce: 8, masks: []uint64{0b00001111, 0b11111111}},
		"set, fewer than there are":     {set: 2, groups: []string{all, third, first}, atOnce: 2, masks: []uint64{0b11, 0b01, 0b01}},
		"set to one":                    {set: 1, groups: []string{all}, atOnce: 1, masks: []uint64{1}},
		"more than there are instances": {set: 3, groups: []string{"instance_group { kind: KIND_MODEL count: 1 }"}, atOnce: 3, masks: []uint64{1}},
	} {
		t.Run(name, func(t *testing.T) {
			var models []Served
			for i, groups := range c.groups {
				models = append(models, servedWith(t, fmt.Sprint("m", i), groups))
			}
			got := executionsOf(c.set, models)
			require.Equal(t, c.atOnce, got.AtOnce)
			for i, mask := range c.masks {
				require.Equal(t, mask, got.Of[fmt.Sprint("m", i)], "model %d: %b", i, got.Of[fmt.Sprint("m", i)])
			}
		})
	}
	var many []Served
	for i := range 100 {
		many = append(many, servedWith(t, fmt.Sprint("m", i), fmt.Sprintf("instance_group { kind: KIND_GPU gpus: %d }", i)))
	}
	got := executionsOf(0, many)
	require.Equal(t, policy.MostExecutions, got.AtOnce)
	require.Equal(t, uint64(1)<<35, got.Of["m99"], "two GPUs have one execution")
}

// TestExecutionsOfAConfigurationThatConchHasChanged: they follow it without another look, which finds nothing new.
func TestExecutionsOfAConfigurationThatConchHasChanged(t *testing.T) {
	one, two := servedWith(t, "m", "instance_group { kind: KIND_GPU gpus: 0 }"), servedWith(t, "m", "instance_group { kind: KIND_GPU gpus: [0, 1] }")
	e := &endpoint{changed: make(chan struct{})}
	require.True(t, e.up([]Served{two}, 0))
	require.Equal(t, 2, e.executes().AtOnce)
	e.learn("m", one.Config)
	require.False(t, e.up([]Served{one}, 1), "nothing new")
	require.Equal(t, 1, e.executes().AtOnce)
}
