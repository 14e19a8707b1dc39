// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

// TestMeasureIsForServersOfOthers: a conch that runs its servers itself has timed their models, and an order that would take a server is refused.
func TestMeasureIsForServersOfOthers(t *testing.T) {
	c := serveAPI(t, admin.Of(advised{}, nil))
	for _, test := range []struct {
		name    string
		request client.MeasureRequest
		code    client.Code
		text    string
	}{
		{"servers of its own", client.MeasureRequest{Share: .1, Repeats: 6}, client.CodeRefused, "timed their models when it loaded them"},
		{"no share", client.MeasureRequest{Repeats: 6}, client.CodeInvalid, "share 0 and 6 repeats"},
		{"most of a server", client.MeasureRequest{Share: .9, Repeats: 6}, client.CodeInvalid, "at most 0.5"},
		{"no repeats", client.MeasureRequest{Share: .1}, client.CodeInvalid, "from 1 to 100"},
		{"too many repeats", client.MeasureRequest{Share: .1, Repeats: 101}, client.CodeInvalid, "from 1 to 100"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := c.Measure(t.Context(), test.request)
			require.Equal(t, test.code, client.CodeOf(err))
			require.ErrorContains(t, err, test.text)
		})
	}
}
