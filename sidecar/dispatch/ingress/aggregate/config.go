// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// revisionParameter is repo.RevisionParameter: Conch's own, which clients do not receive.
const revisionParameter = "conch_revision"

// asWritten puts the dynamic_batching that an author wrote back into a configuration that a partition reports, completed
// as a server completes it: without preferred sizes, a full batch is preferred (model configuration, "Dynamic Batcher"). Where Conch forms the batches
// the server has one that says nothing.
func asWritten(reported, written *tritonpb.ModelConfig) *tritonpb.ModelConfig {
	batching := written.GetDynamicBatching()
	if batching == nil || reported.GetSchedulingChoice() != nil && !triton.BatchesAtOnce(reported.GetDynamicBatching()) {
		return reported
	}
	batching = proto.CloneOf(batching)
	if len(batching.GetPreferredBatchSize()) == 0 && reported.GetMaxBatchSize() > 0 {
		batching.PreferredBatchSize = []int32{reported.GetMaxBatchSize()}
	}
	whole := proto.CloneOf(reported)
	whole.SchedulingChoice = &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: batching}
	return whole
}
