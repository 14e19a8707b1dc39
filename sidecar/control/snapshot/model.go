// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/config"
)

// Model is a model of the repository as a snapshot has it, without what is
// observed. Its memory is what conch.yaml says, else what is estimated of its graph,
// else the size of its files with inputs and outputs; estimated may be nil.
func Model(m *repo.Model, settings *config.Config, estimated *estimator.Memory) *policy.Model {
	own := settings.Models[m.Name]
	batchable, reason := repo.Batchable(m.Config)
	model := &policy.Model{
		Name: m.Name, Revision: m.Revision(), Versions: repo.ServedVersions(m.Config, m.Versions),
		SloUs: SLO(m, settings).Microseconds(), Late: late(m.Name, settings), Priority: own.Priority,
		MaxBatchSize: uint32(max(0, m.Config.GetMaxBatchSize())), Batchable: batchable, PassThroughReason: reason,
		MemoryBytes: uint64(max(0, m.Size())), ActivationBytesPerRow: rowBytes(m.Config),
		Backend: cmp.Or(m.Config.GetBackend(), m.Config.GetPlatform()),
	}
	if estimated != nil && own.Memory == 0 {
		model.MemoryBytes = uint64(estimated.Parameters)
		model.ActivationBytesPerRow = uint64(math.Ceil(estimated.Working() / float64(max(1, m.Config.GetMaxBatchSize()))))
	}
	if own.Memory > 0 {
		model.MemoryBytes = uint64(own.Memory)
	}
	for _, step := range m.Config.GetEnsembleScheduling().GetStep() {
		model.DependsOn = append(model.DependsOn, step.GetModelName())
	}
	slices.Sort(model.DependsOn)
	model.DependsOn = slices.Compact(model.DependsOn)
	return model
}

// SLO of a model: that of conch.yaml, else that of its config.pbtxt, else the
// default.
func SLO(m *repo.Model, settings *config.Config) time.Duration {
	if own := settings.Models[m.Name].SLO; own > 0 {
		return own.Std()
	}
	if slo, ok, err := repo.SLO(m.Config); ok && err == nil {
		return slo
	}
	return settings.Defaults.SLO.Std()
}

func late(model string, settings *config.Config) policy.LatePolicy {
	if cmp.Or(settings.Models[model].Late, settings.Defaults.Late) == "drop" {
		return policy.LatePolicy_LATE_POLICY_DROP
	}
	return policy.LatePolicy_LATE_POLICY_SERVE
}

// rowBytes is what one row of a batch needs at the least: its inputs and
// outputs. Dimensions that vary count 1.
func rowBytes(c *tritonpb.ModelConfig) uint64 {
	var total uint64
	add := func(t tritonpb.DataType, dims []int64) {
		bytes := elementBytes(t)
		for _, d := range dims {
			if d > 1 && bytes < math.MaxUint32 {
				bytes *= uint64(min(d, math.MaxUint32))
			}
		}
		total += bytes
	}
	for _, in := range c.GetInput() {
		add(in.GetDataType(), in.GetDims())
	}
	for _, out := range c.GetOutput() {
		add(out.GetDataType(), out.GetDims())
	}
	return total
}

func elementBytes(t tritonpb.DataType) uint64 {
	switch t {
	case tritonpb.DataType_TYPE_BOOL, tritonpb.DataType_TYPE_INT8, tritonpb.DataType_TYPE_UINT8:
		return 1
	case tritonpb.DataType_TYPE_FP16, tritonpb.DataType_TYPE_BF16, tritonpb.DataType_TYPE_INT16, tritonpb.DataType_TYPE_UINT16:
		return 2
	case tritonpb.DataType_TYPE_FP32, tritonpb.DataType_TYPE_INT32, tritonpb.DataType_TYPE_UINT32:
		return 4
	default:
		return 8
	}
}

// Objective as a snapshot has it.
func Objective(name string) policy.Objective {
	if name == "min-cost" {
		return policy.Objective_OBJECTIVE_MIN_COST
	}
	return policy.Objective_OBJECTIVE_MAX_GOODPUT
}

// Constraints are the operator's orders about single models, by name.
func Constraints(models map[string]config.Model) []*policy.Constraint {
	var all []*policy.Constraint
	for _, name := range slices.Sorted(maps.Keys(models)) {
		m := models[name]
		constraint := &policy.Constraint{
			Gpus: slices.Sorted(slices.Values(m.GPUs)), MinInstances: m.MinInstances, MaxInstances: m.MaxInstances,
			Exclusive: m.Exclusive, Pinned: m.Pinned,
			MinThreadPercentage: m.MinThreadPercentage, MaxThreadPercentage: m.MaxThreadPercentage,
		}
		if proto.Size(constraint) == 0 {
			continue
		}
		constraint.Model = name
		all = append(all, constraint)
	}
	return all
}

// ChangeCost is what was measured; before that, what starting and loading took
// on plain machines.
func ChangeCost(driver string, loads map[string]float64, start float64) *policy.ChangeCost {
	cost := &policy.ChangeCost{PartitionStartSeconds: .1, DefaultLoadSeconds: .3}
	if driver == config.DriverEmbedded {
		cost.PartitionStartSeconds, cost.DefaultLoadSeconds = .01, .01
	}
	if start > 0 {
		cost.PartitionStartSeconds = start
	}
	if len(loads) > 0 {
		sum := 0.0
		for _, s := range loads {
			sum += s
		}
		cost.DefaultLoadSeconds = sum / float64(len(loads))
	}
	return cost
}
