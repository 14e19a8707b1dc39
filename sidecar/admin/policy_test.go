// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control"
)

// TestTheQueuePolicyOfAModel is the one that its author wrote and that its servers do not have any more.
func TestTheQueuePolicyOfAModel(t *testing.T) {
	written := &tritonpb.ModelConfig{SchedulingChoice: &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: &tritonpb.ModelDynamicBatching{
		PriorityLevels: 3, DefaultPriorityLevel: 2, DefaultQueuePolicy: &tritonpb.ModelQueuePolicy{DefaultTimeoutMicroseconds: 5000, AllowTimeoutOverride: true},
		PriorityQueuePolicy: map[uint64]*tritonpb.ModelQueuePolicy{3: {MaxQueueSize: 2, TimeoutAction: tritonpb.ModelQueuePolicy_DELAY}, 1: {}},
	}}}
	look := control.ModelLook{Files: &repo.Model{Name: "m", Written: written, Config: &tritonpb.ModelConfig{}}, Model: &policy.Model{}}
	require.Equal(t, &api.QueuePolicy{
		PriorityLevels: 3, DefaultPriorityLevel: 2, Default: api.QueueRule{TimeoutSeconds: .005, AllowTimeoutOverride: true, TimeoutAction: "reject"},
		Levels: []api.QueueRule{{Level: 1, TimeoutAction: "reject"}, {Level: 3, MaxQueueSize: 2, TimeoutAction: "delay"}},
	}, admin.Model(look).QueuePolicy)
	look.Files.Config = written
	require.Nil(t, admin.Model(look).QueuePolicy, "its servers keep it")
}
