// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A cleanup that fails, as where the server has ended, fails its case, and keeps no other cleanup and no other case from theirs.
func TestACleanupThatFails(t *testing.T) {
	cleaned := false
	attempts := together([]Case{{}}, 1, func(Case) *attempt {
		a := newAttempt(t)
		a.run(func() {
			a.Cleanup(func() { cleaned = true })
			a.Cleanup(func() { require.Fail(a, "the server is gone") })
		})
		return a
	})
	require.NotNil(t, attempts[0])
	require.True(t, attempts[0].Failed())
	require.Contains(t, attempts[0].output.String(), "the server is gone")
	require.True(t, cleaned)
}
