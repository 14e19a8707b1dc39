// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

func authored(t *testing.T, text string) *tritonpb.ModelConfig {
	t.Helper()
	c := &tritonpb.ModelConfig{}
	require.NoError(t, prototext.Unmarshal([]byte(text), c))
	return c
}

// TestStay has the rules as a real server keeps them: see e2e/conformance/queue_cases.go.
func TestStay(t *testing.T) {
	const ms = time.Millisecond
	const leveled = `dynamic_batching {
	  priority_levels: 4 default_priority_level: 2
	  default_queue_policy { default_timeout_microseconds: 10000 allow_timeout_override: true }
	  priority_queue_policy { key: 1 value { } }
	  priority_queue_policy { key: 3 value { max_queue_size: 2 timeout_action: DELAY default_timeout_microseconds: 5000 } }
	}`
	for name, c := range map[string]struct {
		config            string
		priority, timeout any
		want              batch.Stay
	}{
		"no policy":                       {`dynamic_batching { }`, int64(1), int64(5), batch.Stay{}},
		"timeouts without levels":         {`dynamic_batching { default_queue_policy { default_timeout_microseconds: 7000 } }`, int64(9), nil, batch.Stay{Timeout: 7 * ms}},
		"a limit without levels":          {`dynamic_batching { default_queue_policy { max_queue_size: 7 } }`, nil, nil, batch.Stay{MaxQueue: 7}},
		"levels without a count":          {`dynamic_batching { default_queue_policy { max_queue_size: 7 } priority_queue_policy { key: 1 value { max_queue_size: 1 } } }`, int64(1), nil, batch.Stay{MaxQueue: 7}},
		"none named":                      {leveled, nil, nil, batch.Stay{Level: 2, Timeout: 10 * ms}},
		"zero":                            {leveled, int64(0), nil, batch.Stay{Level: 2, Timeout: 10 * ms}},
		"beyond":                          {leveled, int64(5), nil, batch.Stay{Level: 2, Timeout: 10 * ms}},
		"far beyond":                      {leveled, uint64(math.MaxUint64), nil, batch.Stay{Level: 2, Timeout: 10 * ms}},
		"unsigned":                        {leveled, uint64(1), nil, batch.Stay{Level: 1}},
		"a level without one of its own":  {leveled, int64(4), nil, batch.Stay{Level: 4, Timeout: 10 * ms}},
		"a shorter timeout":               {leveled, nil, int64(3000), batch.Stay{Level: 2, Timeout: 3 * ms}},
		"a longer timeout":                {leveled, nil, int64(30000), batch.Stay{Level: 2, Timeout: 10 * ms}},
		"a timeout that is none":          {leveled, nil, int64(-1), batch.Stay{Level: 2, Timeout: 10 * ms}},
		"a timeout that is not allowed":   {leveled, int64(3), int64(1), batch.Stay{Level: 3, MaxQueue: 2, Timeout: 5 * ms, Delay: true}},
		"a timeout that shortens nothing": {leveled, int64(1), int64(1), batch.Stay{Level: 1}},
		"larger than a number of ours": {
			`dynamic_batching { default_queue_policy { max_queue_size: 4294967295 default_timeout_microseconds: 18446744073709551615 } }`, nil, nil,
			batch.Stay{MaxQueue: math.MaxInt32, Timeout: math.MaxInt64 / time.Microsecond * time.Microsecond},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := &batch.Request{}
			add := func(name string, value any) {
				switch v := value.(type) {
				case int64:
					r.Parameters = append(r.Parameters, batch.Int64Parameter(name, v))
				case uint64:
					r.Parameters = append(r.Parameters, batch.Uint64Parameter(name, v))
				}
			}
			add(batch.ParameterPriority, c.priority)
			add(batch.ParameterTimeout, c.timeout)
			require.Equal(t, c.want, batch.NewQueuePolicy(authored(t, c.config), &tritonpb.ModelConfig{}).Stay(r))
		})
	}
}

// TestWhoKeepsAPolicy: Conch keeps a policy that the servers do not have any more, and no other.
func TestWhoKeepsAPolicy(t *testing.T) {
	limited := authored(t, `dynamic_batching { default_queue_policy { max_queue_size: 7 } }`)
	require.NotNil(t, batch.NewQueuePolicy(limited, &tritonpb.ModelConfig{}))
	require.Nil(t, batch.NewQueuePolicy(limited, limited), "the servers form batches")
	require.Nil(t, batch.NewQueuePolicy(nil, limited))
	require.Nil(t, batch.NewQueuePolicy(authored(t, `dynamic_batching { max_queue_delay_microseconds: 9 default_queue_policy { allow_timeout_override: true } }`), &tritonpb.ModelConfig{}), "it says nothing")
}
