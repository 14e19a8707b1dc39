// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
)

// RouteTable says where every model is served. It is immutable once handed to
// Swap.
type RouteTable struct {
	// Revision is the plan's, for logs and metrics.
	Revision   uint64
	Models     map[string]*Model
	Partitions []*Partition
	// Absent are models that the repository has and that are not served, unloaded or
	// refused by their servers, with the versions that would be. They are answered
	// otherwise than models that nobody ever loaded.
	Absent map[string][]string
}

// Model is how requests of one model are dispatched.
type Model struct {
	Name string
	// Config is the configuration that Triton reports once the model is loaded.
	Config *tritonpb.ModelConfig
	// Written is the configuration as its author wrote it, with what Conch does
	// itself still in it; nil is Config.
	Written *tritonpb.ModelConfig
	// Revision changes when the model is loaded anew: its statistics then begin
	// anew, as Triton's do.
	Revision string
	// Versions that are served; requests for any other pass through.
	Versions []string
	// SLO is the target latency; zero means none, and then nothing is deferred.
	SLO  time.Duration
	Late policy.LatePolicy
	// MaxBatch limits the rows of a batch; zero means Config.MaxBatchSize.
	MaxBatch int
	// Batchable is false when every request passes through; see batch.Batchable.
	Batchable         bool
	PassThroughReason string
	// Discipline and Parameters as queue.NewDiscipline takes them; DropPolicy as
	// queue.NewDropPolicy does. Empty means the default.
	Discipline string
	Parameters map[string]string
	DropPolicy string
	Partitions []Placement
}

// Placement is a model's instance in a partition.
type Placement struct {
	// Partition is the id of one of RouteTable.Partitions.
	Partition string
	// MaxBatch limits batches sent there; zero means the model's limit.
	MaxBatch int
}

// Partition is a share of one GPU, served by one Triton process.
type Partition struct {
	ID, GPU, GPUType string
	ThreadPercentage uint32
	// Rank orders free partitions: low ranks are used first.
	Rank     int
	Endpoint Endpoint
}

// Endpoint is where a Triton process listens: host:port or unix:PATH.
type Endpoint struct {
	GRPC, HTTP, Metrics string
}
