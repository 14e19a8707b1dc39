// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// TestWhetherAMemberFailsAsItsGroupDid: the causes are compared, without the names
// of instances and nodes.
func TestWhetherAMemberFailsAsItsGroupDid(t *testing.T) {
	const status = "onnx runtime error 2: Non-zero status code returned while running "
	member := &batch.Membership{Member: "n", Group: "g", Input: "whose"}
	for name, c := range map[string]struct {
		group, member string
		same          bool
	}{
		"the same text":        {"no such token", "no such token", true},
		"another":              {"CUDA error: out of memory", "no such token", false},
		"another instance":     {"Failed to process the request(s) for model instance 'g_0_1', message: no such token", "Failed to process the request(s) for model instance 'n_0_0', message: no such token", true},
		"another message":      {"Failed to process the request(s) for model instance 'g_0_0', message: RuntimeError", "Failed to process the request(s) for model instance 'n_0_0', message: no such token", false},
		"the model's name":     {"model 'g' has no such token", "model 'n' has no such token", true},
		"in a head's branch":   {status + "If node. Name:'merge/If1' Status Message: Non-zero status code returned while running Gather node. Name:'n/x' Status Message: idx=7 is out of bounds", status + "Gather node. Name:'x' Status Message: idx=7 is out of bounds", true},
		"another in a branch":  {status + "If node. Name:'merge/If1' Status Message: Failed to allocate memory", status + "Gather node. Name:'x' Status Message: idx=7 is out of bounds", false},
		"nothing but a prefix": {"Failed to process the request(s) for model instance 'g_0_1', message: ", "no such token", false},
	} {
		require.Equal(t, c.same, sameCause(member.Text(c.group), c.member), name)
	}
}
