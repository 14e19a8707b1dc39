// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/zoo"
)

// TestAnswersOfPipelines: each emulated step makes 2x + 1 of its first input, and answers are checked by the first output.
func TestAnswersOfPipelines(t *testing.T) {
	for name, c := range map[string]struct {
		steps        []zoo.Step
		scale, shift float32
	}{
		"one":      {[]zoo.Step{{Model: "a"}}, 2, 1},
		"chain":    {[]zoo.Step{{Model: "a"}, {Model: "b", After: []int{0}}, {Model: "c", After: []int{1}}}, 8, 7},
		"branches": {[]zoo.Step{{Model: "a"}, {Model: "b", After: []int{0}}, {Model: "c", After: []int{0}}}, 4, 3},
		"diamond":  {[]zoo.Step{{Model: "a"}, {Model: "b", After: []int{0}}, {Model: "c", After: []int{0}}, {Model: "d", After: []int{1, 2}}}, 8, 7},
	} {
		t.Run(name, func(t *testing.T) {
			got := Pipeline("p", time.Second, 8, c.steps, nil).tensor()
			require.Equal(t, []float32{c.scale, c.shift}, []float32{got.Scale, got.Shift})
		})
	}
}
