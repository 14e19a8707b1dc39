// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package bubble

import (
	"runtime"
	"testing"
	"testing/synctest"
)

// Test runs f as synctest.Test does, with GOMAXPROCS at 1 for as long as it takes.
// It panics in a parallel test, because GOMAXPROCS is the whole program's.
func Test(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Setenv("GOMAXPROCS", "1") // panics in a parallel test, and makes a later t.Parallel panic
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, f)
}
