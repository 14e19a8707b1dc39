// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shepherd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
	"github.com/conch-serving/conch/plugins/shepherd"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Options{New: func(*testing.T) policy.Policy { return shepherd.New() }, Snapshots: packtest.Profiled()})
}

// Golden plans of worlds that are small enough to check by hand; "go test -update" writes them.
func TestGolden(t *testing.T) { packtest.Golden(t, shepherd.New(), "testdata") }

func plan(t *testing.T, w packtest.Builder) *policy.Plan {
	t.Helper()
	p, err := shepherd.New().Plan(t.Context(), w.Snapshot, policy.NoEvaluation{})
	require.NoError(t, err)
	require.Empty(t, conformance.Check(w.Snapshot, p))
	return p
}

// Where memory holds all models there is one group: every model on every GPU.
func TestOneGroup(t *testing.T) {
	p := plan(t, packtest.World(3).Line("a", 1, 4, 40, 100).Line("b", 1, 4, 40, 300))
	require.Len(t, p.GetPartitions(), 3)
	for _, part := range p.GetPartitions() {
		require.Len(t, part.GetInstances(), 2)
	}
}

// Two models that no GPU holds together are two groups, and the GPUs are theirs in proportion to their load.
func TestGPUsInProportionToLoad(t *testing.T) {
	w := packtest.World(4).Line("light", 1, 4, 40, 100).Line("heavy", 1, 4, 40, 300)
	for _, m := range w.Models {
		m.MemoryBytes = 10 << 30
	}
	p := plan(t, w)
	require.Len(t, p.PartitionsOf("heavy"), 3)
	require.Len(t, p.PartitionsOf("light"), 1)
}

func TestBadParameter(t *testing.T) {
	_, err := shepherd.New().Plan(t.Context(), &policy.Snapshot{Parameters: map[string]string{"discipline": "none"}}, policy.NoEvaluation{})
	require.ErrorContains(t, err, "discipline")
}
