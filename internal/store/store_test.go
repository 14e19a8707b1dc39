// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/internal/store/storetest"
)

func TestBolt(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (store.Store, func() store.Store) {
		path := filepath.Join(t.TempDir(), "state.db")
		var db *bbolt.DB
		open := func() store.Store {
			if db != nil {
				require.NoError(t, db.Close())
			}
			var err error
			db, err = bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true})
			require.NoError(t, err)
			return store.NewBolt(db)
		}
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return open(), open
	})
}
