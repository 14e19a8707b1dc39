// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"reflect"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
)

// Table lists the partitions, and the places of every model on them. It is
// immutable once handed to Prepare.
type Table struct {
	// Revision is the plan's, for logs and metrics.
	Revision   uint64
	Models     map[string]*Model
	Partitions []*PartitionSpec
	// Absent are models that the repository has and that are not served, because they
	// are unloaded or their servers do not load them, with the versions that would be
	// served. Requests for them get other errors than those for unknown models: see
	// Unknown.
	Absent map[string][]string
	// Names are what clients may ask for beside the models: apps. None has the name of
	// a model.
	Names map[string]*names.Name
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
	Places     []Place
	// Membership is set if requests run as rows of a merge group, whose places are the model's. Queue, discipline and batches are then the
	// group's. Nil: requests run in the model itself.
	Membership *Membership
	// Internal: clients cannot name it. Merge groups are.
	Internal bool
	// OnDemand: it is loaded when requests ask for it. Cold: it is OnDemand, and no
	// place that it has is ready.
	OnDemand, Cold bool
}

// Membership describes how a member of a merge group runs as rows of the group.
type Membership = batch.Membership

// Place is a model's instance in a partition.
type Place struct {
	// Partition is the id of one of Table.Partitions.
	Partition string
	// MaxBatch limits batches sent there; zero means the model's limit.
	MaxBatch int
	// Executions says which of the executions that the partition runs at once may be the model's: bit i is the execution i. Models whose instances are on the
	// same GPU of the server have the same bit, and take turns. Zero is 1: the partition runs one batch of the model at a time, in the execution 0.
	Executions uint64
}

// Runs reports whether an execution of the partition may be the model's.
func (p Place) Runs(execution int) bool { return max(1, p.Executions)>>execution&1 != 0 }

// Needs is how many executions at once the partition has at least, for the model to have those that Executions names.
func (p Place) Needs() int { return bits.Len64(max(1, p.Executions)) }

// PartitionSpec is a partition as a table has it: a share of one GPU, served by one Triton server; of a server that others run, what that server has: it may be several GPUs.
type PartitionSpec struct {
	ID, GPU, GPUType string
	ThreadPercentage uint32
	// Rank orders free partitions: low ranks are used first.
	Rank int
	// Executions is how many batches it runs at once; zero is 1. Place.Executions says which of them may be a model's.
	Executions int
	Endpoint   Endpoint
}

// Endpoint is where the server of a partition listens: host:port or unix:PATH.
type Endpoint struct {
	GRPC, HTTP, Metrics string
}

// ErrTable is wrapped by errors about tables that contradict themselves.
var ErrTable = errors.New("route table")

// Check returns an error that wraps ErrTable for a table that contradicts itself.
func (t *Table) Check() error {
	known := make(map[string]*PartitionSpec, len(t.Partitions))
	for _, p := range t.Partitions {
		if p.ID == "" || known[p.ID] != nil {
			return fmt.Errorf("%w %d: partition id %q is empty or given twice", ErrTable, t.Revision, p.ID)
		}
		known[p.ID] = p
	}
	for name, m := range t.Models {
		if m.Name != name {
			return fmt.Errorf("%w %d: model %q is listed as %q", ErrTable, t.Revision, m.Name, name)
		}
		for i, placement := range m.Places {
			on := known[placement.Partition]
			if on == nil {
				return fmt.Errorf("%w %d: model %q is placed on partition %q, which is not in the table", ErrTable, t.Revision, name, placement.Partition)
			}
			if placement.Needs() > max(1, on.Executions) {
				return fmt.Errorf("%w %d: model %q has execution %d of partition %q, which runs %d at once", ErrTable, t.Revision, name, placement.Needs()-1, on.ID, max(1, on.Executions))
			}
			if slices.ContainsFunc(m.Places[:i], func(o Place) bool { return o.Partition == placement.Partition }) {
				return fmt.Errorf("%w %d: model %q is placed twice on partition %q", ErrTable, t.Revision, name, placement.Partition)
			}
			if m.Membership != nil && !t.Models[m.Membership.Group].on(placement.Partition) {
				return fmt.Errorf("%w %d: model %q is placed on partition %q, where its merge group %q is not", ErrTable, t.Revision, name, placement.Partition, m.Membership.Group)
			}
		}
		if m.Membership != nil && (t.Models[m.Membership.Group] == nil || t.Models[m.Membership.Group].Membership != nil) {
			return fmt.Errorf("%w %d: model %q is in merge group %q, which the table does not have", ErrTable, t.Revision, name, m.Membership.Group)
		}
	}
	for key, n := range t.Names {
		switch {
		case n.Name != key || n.App == nil:
			return fmt.Errorf("%w %d: the name %q is listed as %q, or is no app", ErrTable, t.Revision, n.Name, key)
		case t.Models[key] != nil:
			return fmt.Errorf("%w %d: %q is a model and a name for others", ErrTable, t.Revision, key)
		}
	}
	return nil
}

// on reports whether the model is placed on a partition.
func (m *Model) on(partition string) bool {
	return m != nil && slices.ContainsFunc(m.Places, func(p Place) bool { return p.Partition == partition })
}

// Unknown returns Triton's answer, a gRPC status error, to a request for a model
// that the table does not serve. An empty version stands for any version.
func (t *Table) Unknown(model, version string) error {
	versions, absent := t.Absent[model]
	switch {
	case !absent:
		return status.Errorf(codes.NotFound, "Request for unknown model: '%s' is not found", model)
	case version == "":
		return status.Errorf(codes.NotFound, "Request for unknown model: '%s' has no available versions", model)
	case slices.Contains(versions, version):
		return status.Errorf(codes.Unavailable, "Request for unknown model: '%s' version %s is not at ready state", model, version)
	}
	return status.Errorf(codes.NotFound, "Request for unknown model: '%s' version %s is not found", model, version)
}

// Keeping returns the table with the models of another one in place of its own where they are the same. Ensembles are its own, because they depend on
// their members.
func (t *Table) Keeping(before *Table) *Table {
	out := *t
	out.Models = make(map[string]*Model, len(t.Models))
	for name, m := range t.Models {
		if o := before.Models[name]; o != nil && m.Config.GetEnsembleScheduling() == nil && m.same(o) {
			m = o
		}
		out.Models[name] = m
	}
	for name, m := range out.Models {
		if m.Membership != nil && out.Models[m.Membership.Group] != before.Models[m.Membership.Group] {
			out.Models[name] = t.Models[name] // its rules are its group's
		}
	}
	return &out
}

// same reports whether two models are dispatched in the same way to the same places.
func (m *Model) same(o *Model) bool {
	return m == o || m.Name == o.Name && m.Revision == o.Revision && m.SLO == o.SLO && m.Late == o.Late && m.MaxBatch == o.MaxBatch &&
		m.Batchable == o.Batchable && m.PassThroughReason == o.PassThroughReason && m.Discipline == o.Discipline && m.DropPolicy == o.DropPolicy &&
		m.Internal == o.Internal && m.OnDemand == o.OnDemand && m.Cold == o.Cold &&
		slices.Equal(m.Versions, o.Versions) && slices.Equal(m.Places, o.Places) && maps.Equal(m.Parameters, o.Parameters) &&
		reflect.DeepEqual(m.Membership, o.Membership) &&
		(m.Config == o.Config || proto.Equal(m.Config, o.Config)) && (m.Written == o.Written || proto.Equal(m.Written, o.Written))
}

// Members are the configurations of the models that an ensemble calls, by itself
// or through ensembles.
func (t *Table) Members(ensemble *tritonpb.ModelConfig) (all []*tritonpb.ModelConfig) {
	seen := map[string]bool{}
	for open := []*tritonpb.ModelConfig{ensemble}; len(open) > 0; open = open[1:] {
		for _, step := range open[0].GetEnsembleScheduling().GetStep() {
			if m := t.Models[step.GetModelName()]; m != nil && !seen[m.Name] {
				seen[m.Name] = true
				all, open = append(all, m.Config), append(open, m.Config)
			}
		}
	}
	return all
}

// RowLimit is the most rows that one execution of the model may have; zero means
// that every request passes through.
func (m *Model) RowLimit() int {
	limit := int(m.Config.GetMaxBatchSize())
	if m.MaxBatch > 0 && m.MaxBatch < limit {
		limit = m.MaxBatch
	}
	if !m.Batchable {
		return 0
	}
	return limit
}
