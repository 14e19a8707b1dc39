// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClientsSeeTheirOwnRegionsOnly(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"none", `[]`, `[]`},
		{"a client's", `[{"name":"theirs","key":"/k"}]`, `[{"name":"theirs","key":"/k"}]`},
		{"both", `[{"name":"conch-lent-x","key":"/conch-lent-x"},{"name":"theirs","key":"/k"},{"name":"conch-lent-y"}]`, `[{"name":"theirs","key":"/k"}]`},
		{"ours alone", `[{"name":"conch-lent-x"}]`, `[]`},
		{"an error", `{"error":"about conch-lent-x"}`, `{"error":"about conch-lent-x"}`},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, string(withoutLent([]byte(c.body)))) })
	}
	require.True(t, statusOfRegions("/v2/systemsharedmemory/status"))
	require.False(t, statusOfRegions("/v2/systemsharedmemory/region/r/register"))
}
