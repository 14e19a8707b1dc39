// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/observe"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// intent is what a plan is to be made for, before anything is observed.
type intent struct {
	config *config.Config
	files  *repo.Revision
	failed map[string]failure
	// given and passThrough are the apply.Target's.
	given       bool
	passThrough string
}

// out says why a model is not planned for; empty if it is.
func (in intent) out(m *repo.Model) (ModelState, string) {
	if err := m.Err(); err != nil {
		return ModelInvalid, err.Error()
	}
	if m.Unloaded {
		return ModelUnloaded, "unloaded by order; load it to serve it again"
	}
	if f, ok := in.failed[m.Name]; ok && f.revision == m.Revision() {
		return ModelFailed, f.reason + "; change its files and import them, or load it again"
	}
	for _, step := range m.Config.GetEnsembleScheduling().GetStep() {
		if member := in.files.Model(step.GetModelName()); member != nil && member.Unloaded {
			return ModelUnloaded, "it calls " + member.Name + ", which is unloaded; load that to serve it again"
		}
	}
	return "", ""
}

func (c *Control) intent() intent {
	c.mu.Lock()
	defer c.mu.Unlock()
	return intent{
		config: c.config, files: c.files, failed: maps.Clone(c.failed),
		given: c.attached != nil && !c.placing,
	}
}

// observe makes the next snapshot.
func (c *Control) observe(in intent) *policy.Snapshot {
	now := c.clock.Now()
	up := map[string]bool{}
	for _, p := range c.applier.Partitions() {
		up[p.ID] = p.Up
	}
	c.mu.Lock()
	c.snapshot++
	revision, s := c.snapshot, c.serving
	loads, starts, advised := maps.Clone(c.loads), c.starts, c.advice.Advice
	c.mu.Unlock()
	settings := in.config
	w := observe.World{
		Revision: revision, Seed: settings.Seed, Budget: settings.Policy.Deadline.Std(), Objective: objective(settings.Objective),
		Nodes: c.nodes, Current: s.Plan.Plan, Parameters: c.policies.Status().Parameters,
		ChangeCost:  changeCost(settings.Driver.Kind, loads, starts),
		Constraints: constraints(settings.Models),
		Queued: func(model string) int {
			counts, _ := c.requests.Counts(model)
			return counts.Waiting
		},
		Up:     func(id string) bool { return up[id] },
		Advice: advised,
	}
	for _, m := range in.files.Models {
		if state, _ := in.out(m); state != "" {
			continue
		}
		one := describe(m, settings)
		one.LoadSeconds = loads[m.Name]
		w.Models = append(w.Models, one)
	}
	return c.recorder.Snapshot(now, w)
}

// describe is a model as a snapshot has it, without what is observed.
func describe(m *repo.Model, settings *config.Config) *policy.Model {
	own := settings.Models[m.Name]
	batchable, reason := repo.Batchable(m.Config)
	one := &policy.Model{
		Name: m.Name, Revision: m.Revision(), Versions: repo.ServedVersions(m.Config, m.Versions),
		SloUs: slo(m, settings).Microseconds(), Late: late(m.Name, settings), Priority: own.Priority,
		MaxBatchSize: uint32(max(0, m.Config.GetMaxBatchSize())), Batchable: batchable, PassThroughReason: reason,
		MemoryBytes: uint64(max(0, m.Size())), ActivationBytesPerRow: rowBytes(m.Config),
		Backend: cmp.Or(m.Config.GetBackend(), m.Config.GetPlatform()),
	}
	if own.Memory > 0 {
		one.MemoryBytes = uint64(own.Memory)
	}
	for _, step := range m.Config.GetEnsembleScheduling().GetStep() {
		one.DependsOn = append(one.DependsOn, step.GetModelName())
	}
	slices.Sort(one.DependsOn)
	one.DependsOn = slices.Compact(one.DependsOn)
	return one
}

// slo of a model: conch.yaml's own word, else its config.pbtxt's, else the
// default.
func slo(m *repo.Model, settings *config.Config) time.Duration {
	if own := settings.Models[m.Name].SLO; own > 0 {
		return own.Std()
	}
	if said, ok, err := repo.SLO(m.Config); ok && err == nil {
		return said
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

func objective(name string) policy.Objective {
	if name == "min-cost" {
		return policy.Objective_OBJECTIVE_MIN_COST
	}
	return policy.Objective_OBJECTIVE_MAX_GOODPUT
}

// constraints are the operator's orders about single models, by name.
func constraints(models map[string]config.Model) []*policy.Constraint {
	var all []*policy.Constraint
	for _, name := range slices.Sorted(maps.Keys(models)) {
		m := models[name]
		one := &policy.Constraint{
			Gpus: slices.Sorted(slices.Values(m.GPUs)), MinInstances: m.MinInstances, MaxInstances: m.MaxInstances,
			Exclusive: m.Exclusive, Pinned: m.Pinned,
			MinThreadPercentage: m.MinThreadPercentage, MaxThreadPercentage: m.MaxThreadPercentage,
		}
		if proto.Size(one) == 0 {
			continue
		}
		one.Model = name
		all = append(all, one)
	}
	return all
}

// changeCost is what was measured; before that, what starting and loading took
// on plain machines.
func changeCost(driver string, loads map[string]float64, start float64) *policy.ChangeCost {
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

// sameSettings reports whether what the request path knows of models besides
// the plan is the same in both snapshots.
func sameSettings(a, b *policy.Snapshot) bool {
	if len(a.GetModels()) != len(b.GetModels()) {
		return false
	}
	for i, m := range a.GetModels() {
		n := b.GetModels()[i]
		if m.GetName() != n.GetName() || m.GetSloUs() != n.GetSloUs() || m.GetLate() != n.GetLate() || m.GetRevision() != n.GetRevision() {
			return false
		}
	}
	return true
}

// reference names a policy as conch.yaml does.
func (c *Control) reference(p config.Policy) policyhost.Ref {
	ref := policyhost.Ref{Name: p.Name, Parameters: p.Parameters}
	if p.Executable != "" {
		ref.Executable = &policyhost.Executable{Path: p.Executable, SHA256: p.Checksum}
	}
	return ref
}

func breakerStates() []string {
	return []string{string(policyhost.BreakerClosed), string(policyhost.BreakerOpen), string(policyhost.BreakerHalfOpen)}
}
