// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package get

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/output"
)

func TestQueuePolicy(t *testing.T) {
	for want, p := range map[string]*api.QueuePolicy{
		"": nil,
		"queue policy  4 may wait, as long as it takes\n":                                                                    {Default: api.QueueRule{MaxQueueSize: 4, TimeoutAction: "reject"}},
		"queue policy  any number may wait for 100ms or their own timeout, if that is shorter, and are refused after that\n": {Default: api.QueueRule{TimeoutSeconds: .1, AllowTimeoutOverride: true, TimeoutAction: "reject"}},
		`queue policy    3 priority levels, 2 by default
  level 1       any number may wait, as long as it takes
  level 3       2 may wait for 1ms, and behind the others after that
  other levels  any number may wait for 1000ms, and are refused after that
`: {
			PriorityLevels: 3, DefaultPriorityLevel: 2, Default: api.QueueRule{TimeoutSeconds: 1, TimeoutAction: "reject"},
			Levels: []api.QueueRule{{Level: 1, TimeoutAction: "reject"}, {Level: 3, MaxQueueSize: 2, TimeoutSeconds: .001, TimeoutAction: "delay"}},
		},
	} {
		var out bytes.Buffer
		require.NoError(t, output.Print(&out, "table", nil, func(t *output.Table) { drawPolicy(t, p) }))
		require.Equal(t, want, out.String())
	}
}
