// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package spelling_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/spelling"
)

func TestTheNearestWord(t *testing.T) {
	known := []string{"apply", "diff", "explain", "ls", "get"}
	for word, want := range map[string]string{"aply": "apply", "Diff": "diff", "list": "ls", "exlpain": "explain", "x": "", "": "", "rollback": "", "got": "get"} {
		require.Equal(t, want, spelling.Nearest(word, known), word)
	}
	require.Empty(t, spelling.Nearest("apply", nil))
}
