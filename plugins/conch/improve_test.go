// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/conch"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
	"github.com/conch-serving/conch/plugins/static"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
)

// TestImprove: a plan that has a heavy model beside a tight one on every GPU serves more once it is improved, within the evaluations that there are.
func TestImprove(t *testing.T) {
	s := mixed(2).Snapshot
	everywhere, err := static.New().Plan(t.Context(), s, policy.NoEvaluation{})
	require.NoError(t, err)
	given := proto.CloneOf(everywhere)
	s.Traffic, s.Evaluations = evaluate.Promise(s, 2*time.Second), 64
	host := (&evaluate.InProcess{}).Host(s)
	p, err := conch.Improve(t.Context(), s, host, everywhere)
	require.NoError(t, err)
	require.Empty(t, conformance.Check(s, p))
	require.Greater(t, outcome(t, s, p).GetGoodput(), 1.02*outcome(t, s, everywhere).GetGoodput())
	require.True(t, proto.Equal(given, everywhere), "the plan that was given stays as it was")

	// One evaluation is enough to keep it.
	s.Evaluations = 1
	again, err := conch.Improve(t.Context(), s, (&evaluate.InProcess{}).Host(s), p)
	require.NoError(t, err)
	require.InDelta(t, outcome(t, s, p).GetGoodput(), outcome(t, s, again).GetGoodput(), 1e-9)

	_, err = conch.Improve(t.Context(), s, policy.NoEvaluation{}, p)
	require.ErrorIs(t, err, policy.ErrNoEvaluation)
	s.Objective = policy.Objective_OBJECTIVE_MIN_COST
	_, err = conch.Improve(t.Context(), s, policy.NoEvaluation{}, p)
	require.ErrorIs(t, err, conch.ErrMinCost)
}
