// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton

import (
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// BatchesAtOnce reports whether a dynamic_batching says nothing but preferred sizes, to which a server adds the largest batch: it makes batches of what waits, and does
// not wait for more (model configuration, "Dynamic Batcher"). Nil does not batch.
func BatchesAtOnce(d *tritonpb.ModelDynamicBatching) bool {
	if d == nil {
		return false
	}
	rest := proto.CloneOf(d)
	rest.PreferredBatchSize = nil
	return proto.Size(rest) == 0
}
