// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package history_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control/history"
)

// TestPlansOnDemandPushNothingOut: an operator can go back to her plan though models
// came and went on demand a thousand times since.
func TestPlansOnDemandPushNothingOut(t *testing.T) {
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "state.db"), 0o600, &bbolt.Options{NoSync: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	s := history.New(store.NewBolt(db))
	revision := uint64(0)
	add := func(n int, demand bool) {
		for range n {
			revision++
			require.NoError(t, s.Add(api.PlanRecord{Plan: api.Plan{Revision: revision}, Demand: demand}))
		}
	}
	add(3, false)
	add(1000, true)
	add(1, false)
	all, err := s.List()
	require.NoError(t, err)
	require.Len(t, all, 4+history.Kept)
	require.EqualValues(t, 1004, all[0].Revision, "newest first")
	require.EqualValues(t, 1003, all[1].Revision)
	require.EqualValues(t, 1, all[len(all)-1].Revision)
	_, err = s.Get(2)
	require.NoError(t, err)
	_, err = s.Get(500)
	require.ErrorIs(t, err, history.ErrNoPlan)

	add(history.Kept, false)
	_, err = s.Get(1004)
	require.ErrorIs(t, err, history.ErrNoPlan, "older than the last of its kind")
}
