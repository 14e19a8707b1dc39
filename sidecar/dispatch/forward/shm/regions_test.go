// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/forward/shm"
)

// object makes a shared memory object of a client's.
func object(t testing.TB, name string, size int64) (key, path string) {
	t.Helper()
	key = fmt.Sprintf("/conch_regions_test_%d_%s", os.Getpid(), name)
	path = filepath.Join("/dev/shm", key)
	require.NoError(t, os.WriteFile(path, make([]byte, size), 0o600))
	t.Cleanup(func() { _ = os.Remove(path) }) // a test may have done so
	return key, path
}

func TestRegionsThatAreMadeShorter(t *testing.T) {
	const page = 4096
	key, path := object(t, "shorter", 3*page)
	r := shm.NewRegions()
	defer r.Close()
	r.Registered("a", key, page, 2*page)
	require.False(t, r.Missing("a", page, page), "all is there")
	require.False(t, r.Missing("nobody's", 0, 8))
	require.False(t, r.Missing("a", 2*page, 8), "outside the region, which its server says better")
	require.False(t, r.Missing("a", 0, 0))

	require.NoError(t, os.Truncate(path, page+10))
	require.False(t, r.Missing("a", 0, page), "the object still has a part of the page, and with it the page")
	require.True(t, r.Missing("a", 0, page+1))
	require.True(t, r.Missing("a", page, 8))
	require.NoError(t, os.Truncate(path, 3*page))
	require.False(t, r.Missing("a", page, page), "it has grown again")

	require.NoError(t, os.Remove(path))
	require.False(t, r.Missing("a", page, page), "whoever mapped it has it still")
	r.Unregistered("a")
	require.False(t, r.Missing("a", page, page))
}

// A server that starts later maps the object that has the name by then.
func TestRegionsOfObjectsThatAreReplaced(t *testing.T) {
	const page = 4096
	key, path := object(t, "replaced", page)
	r := shm.NewRegions()
	defer r.Close()
	r.Registered("a", key, 0, page)
	require.NoError(t, os.Remove(path))
	object(t, "replaced", page)
	require.NoError(t, os.Truncate(path, 0))
	require.False(t, r.Missing("a", 0, 8), "nobody has mapped the new one")
	require.NoError(t, os.Truncate(path, page))
	r.Registered("a", key, 0, page)
	require.NoError(t, os.Truncate(path, 0))
	require.True(t, r.Missing("a", 0, 8))
}

// A region that a server accepted and that cannot be opened here is not reported
// as missing.
func TestRegionsOutOfSight(t *testing.T) {
	key, path := object(t, "small", 16)
	r := shm.NewRegions()
	defer r.Close()
	r.Registered("other", key, 0, 1<<20)
	r.Registered("none", key+"_none", 0, 8)
	r.Registered("outside", "/../etc/passwd", 0, 8)
	require.NoError(t, os.Truncate(path, 0))
	for _, name := range []string{"other", "none", "outside"} {
		require.False(t, r.Missing(name, 0, 8), name)
	}
}

func BenchmarkRegionsMissing(b *testing.B) {
	key, _ := object(b, "bench", 1<<20)
	r := shm.NewRegions()
	defer r.Close()
	r.Registered("a", key, 0, 1<<20)
	for b.Loop() {
		if r.Missing("a", 0, 1<<20) {
			b.Fatal("it is all there")
		}
	}
	b.ReportAllocs()
}
