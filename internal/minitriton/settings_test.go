// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTraceSettingsFollow(t *testing.T) {
	var s settings
	s.init()
	rate := func(model string, set ...string) string {
		t.Helper()
		order := map[string][]string{}
		switch {
		case len(set) > 0 && set[0] == "":
			order["trace_rate"] = nil
		case len(set) > 0:
			order["trace_rate"] = set
		}
		inForce, err := s.setTrace(model, order, traceGRPC)
		require.Nil(t, err)
		return inForce["trace_rate"][0]
	}
	require.Equal(t, "1000", rate(""))
	require.Equal(t, "7", rate("m", "7"))
	require.Equal(t, "9", rate("", "9"))
	require.Equal(t, "7", rate("m"))
	require.Equal(t, "9", rate("other"))
	require.Equal(t, "9", rate("m", ""))
	require.Equal(t, "1000", rate("", ""))
	require.Equal(t, "1000", rate("m"))
}

func TestTraceNumbersAreReadAsTritonReadsThem(t *testing.T) {
	for _, c := range []struct{ name, text, want, refusal string }{
		{"trace_rate", "12", "12", ""},
		{"trace_rate", " +12 apples", "12", ""},
		{"trace_rate", "-1", "4294967295", ""},
		{"trace_rate", "-", "", "Unable to parse 'trace_rate', got: -"},
		{"trace_rate", "2147483648", "", "Unable to parse 'trace_rate', value is out of range [], got: 2147483648"},
		{"trace_count", "-1", "-1", ""},
		{"trace_count", "-2", "", "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"},
		{"trace_count", "-99999999999", "", "Unable to parse 'trace_count', value is out of range [], got: -99999999999"},
	} {
		have, err := traceNumber(c.name, c.text, "[]", traceHTTP)
		require.Equal(t, c.want, have, c.text)
		if c.refusal != "" {
			require.Equal(t, c.refusal, err.Error(), c.text)
		} else {
			require.Nil(t, err, c.text)
		}
	}
}
