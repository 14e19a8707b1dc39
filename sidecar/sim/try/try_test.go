// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package try_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/try"
)

// recorded is a snapshot as conch wrote it, with the parameters of the policy that was in use.
func recorded(parameters map[string]string) *policy.Snapshot {
	return &policy.Snapshot{
		Revision: 7, Parameters: parameters,
		Nodes:  []*policy.Node{{Name: "n", Gpus: []*policy.GPU{{Id: "gpu0", Type: "T4", MemoryBytes: 1 << 34}}}},
		Models: []*policy.Model{{Name: "m", SloUs: 100_000, MaxBatchSize: 8, Batchable: true, Rate: 5}},
	}
}

// A snapshot is planned with the parameters that it was recorded with, where the policy has them; those of the command line override them.
func TestParametersOfTheSnapshotCount(t *testing.T) {
	for _, c := range []struct {
		name           string
		given, snapped map[string]string
		discipline     string
		failure        string
	}{
		{"none", nil, nil, "adaptive", ""},
		{"the snapshot's", nil, map[string]string{"discipline": "eager"}, "eager", ""},
		{"the command line's win", map[string]string{"discipline": "timeout"}, map[string]string{"discipline": "eager"}, "timeout", ""},
		{"those of another policy", nil, map[string]string{"gpu_share": "50", "discipline": "eager"}, "eager", ""},
		{"one that is no value", nil, map[string]string{"discipline": "nonsense"}, "", "discipline"},
	} {
		t.Run(c.name, func(t *testing.T) {
			session, err := try.Open(t.Context(), try.Options{Policy: "static", Parameters: c.given})
			require.NoError(t, err)
			defer func() { require.NoError(t, session.Close()) }()
			trial, err := session.Run(t.Context(), recorded(c.snapped))
			require.NoError(t, err)
			if c.failure != "" {
				require.Contains(t, trial.Error, c.failure)
				return
			}
			require.Empty(t, trial.Error)
			require.Empty(t, trial.Violations)
			require.Equal(t, c.discipline, trial.Plan.GetDispatch()[0].GetDiscipline())
		})
	}
}

// One session may see snapshots of several parameters.
func TestEachSnapshotHasItsOwn(t *testing.T) {
	session, err := try.Open(t.Context(), try.Options{Policy: "static"})
	require.NoError(t, err)
	for _, discipline := range []string{"eager", "timeout", "eager"} {
		trial, err := session.Run(t.Context(), recorded(map[string]string{"discipline": discipline}))
		require.NoError(t, err)
		require.Equal(t, discipline, trial.Plan.GetDispatch()[0].GetDiscipline())
	}
}

// The cost of a plan is reported if another is in force: none if all models stay, and the loads of those that move.
func TestChangesAreCounted(t *testing.T) {
	session, err := try.Open(t.Context(), try.Options{Policy: "static"})
	require.NoError(t, err)
	s := recorded(nil)
	s.Models[0].LoadSeconds = 2
	first, err := session.Run(t.Context(), s)
	require.NoError(t, err)
	require.Nil(t, first.Change)

	s.Current = first.Plan
	again, err := session.Run(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, &try.Change{}, again.Change)

	s.Models = append(s.Models, &policy.Model{Name: "n", SloUs: 100_000, MaxBatchSize: 8, Batchable: true, Rate: 5, LoadSeconds: 3})
	more, err := session.Run(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, &try.Change{Loads: 1, LoadSeconds: 3}, more.Change)

	s.Current.Partitions[0].ThreadPercentage, s.Current.Partitions[0].Id = 40, "another"
	moved, err := session.Run(t.Context(), s)
	require.NoError(t, err)
	require.NotZero(t, moved.Change.Loads)
}
