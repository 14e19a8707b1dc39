// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
)

// TestMeasureIsForServersOfOthers: a conch that runs its servers itself has timed their models, and an order that would take a server is refused.
func TestMeasureIsForServersOfOthers(t *testing.T) {
	c := serveAPI(t, admin.Of(advised{}, nil, nil))
	for _, test := range []struct {
		name    string
		request api.MeasureRequest
		code    api.Code
		text    string
	}{
		{"servers of its own", api.MeasureRequest{Share: .1, Repeats: 6}, api.CodeRefused, "timed their models when it loaded them"},
		{"no share", api.MeasureRequest{Repeats: 6}, api.CodeInvalid, "share 0 and 6 repeats"},
		{"most of a server", api.MeasureRequest{Share: .9, Repeats: 6}, api.CodeInvalid, "at most 0.5"},
		{"no repeats", api.MeasureRequest{Share: .1}, api.CodeInvalid, "from 1 to 100"},
		{"a time below 0", api.MeasureRequest{Share: .1, Repeats: 6, WithinSeconds: -1}, api.CodeInvalid, "within -1 s"},
		{"days", api.MeasureRequest{Share: .1, Repeats: 6, WithinSeconds: 1e6}, api.CodeInvalid, "to 3600 seconds"},
		{"too many repeats", api.MeasureRequest{Share: .1, Repeats: 101}, api.CodeInvalid, "from 1 to 100"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := c.Measure(t.Context(), test.request)
			require.Equal(t, test.code, api.CodeOf(err))
			require.ErrorContains(t, err, test.text)
		})
	}
}
