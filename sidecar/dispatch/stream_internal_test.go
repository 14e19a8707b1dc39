// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// TestWhoseAnswerItIs: answers name their model, refusals name none.
func TestWhoseAnswerItIs(t *testing.T) {
	decoupled, plain := &model{name: "decoupled"}, &model{name: "plain"}
	up := &upstream{pending: []pendingAnswer{
		{id: "", model: decoupled},
		{id: "", model: plain, turn: &turn{}},
		{id: "", model: plain, turn: &turn{}},
		{id: "b", model: decoupled},
	}}
	for name, c := range map[string]struct {
		answer batch.StreamAnswer
		want   int
	}{
		"of a model":            {batch.StreamAnswer{Model: "decoupled"}, 0},
		"the oldest of a model": {batch.StreamAnswer{Model: "plain"}, 1},
		"with an id":            {batch.StreamAnswer{Model: "decoupled", ID: "b"}, 3},
		"a refusal ends a turn, if it can be to one": {batch.StreamAnswer{Failed: true}, 1},
		"a refusal of a decoupled model's request":   {batch.StreamAnswer{Failed: true, ID: "b"}, 3},
		"of nobody":                     {batch.StreamAnswer{Model: "other"}, -1},
		"of a model, with another's id": {batch.StreamAnswer{Model: "plain", ID: "b"}, -1},
	} {
		require.Equal(t, c.want, up.find(c.answer), name)
	}
}
