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
	first, other := &model{name: "first"}, &model{name: "other"}
	up := &upstream{pending: []pendingAnswer{
		{id: "", ticket: &ticket{model: first}},
		{id: "", ticket: &ticket{model: other}},
		{id: "", ticket: &ticket{model: other}},
		{id: "b", ticket: &ticket{model: first}},
	}}
	for name, c := range map[string]struct {
		answer batch.StreamAnswer
		want   int
	}{
		"of a model":                    {batch.StreamAnswer{Model: "first"}, 0},
		"the oldest of a model":         {batch.StreamAnswer{Model: "other"}, 1},
		"with an id":                    {batch.StreamAnswer{Model: "first", ID: "b"}, 3},
		"a refusal":                     {batch.StreamAnswer{Failed: true}, 0},
		"a refusal with an id":          {batch.StreamAnswer{Failed: true, ID: "b"}, 3},
		"of nobody":                     {batch.StreamAnswer{Model: "third"}, -1},
		"of a model, with another's id": {batch.StreamAnswer{Model: "other", ID: "b"}, -1},
	} {
		require.Equal(t, c.want, up.find(c.answer), name)
	}
}
