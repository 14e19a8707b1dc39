// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/estimates"
)

// Models implements API.
func (v view) Models(context.Context) ([]api.Model, error) {
	return each(v.control.LookAtModels(), Model), nil
}

// Glance implements API.
func (v view) Glance(context.Context) ([]api.Model, error) {
	return each(v.control.GlanceAtModels(), Model), nil
}

// Model implements API.
func (v view) Model(_ context.Context, name string) (api.Model, error) {
	m, err := v.control.LookAtModel(name)
	if err != nil {
		return api.Model{}, coded(err)
	}
	return Model(m), nil
}

// Slowest implements API.
func (v view) Slowest(_ context.Context, name string) ([]api.SlowRequest, error) {
	if _, err := v.control.LookAtModel(name); err != nil {
		return nil, coded(err)
	}
	return v.traffic.Slowest(name), nil
}

// Model is a model as operators see it.
func Model(l control.ModelLook) api.Model {
	out := api.Model{Name: l.Files.Name, Revision: l.Files.Digest, Profiles: []api.Profile{}, Conditions: l.Conditions}
	if l.Model == nil {
		out.Versions = versions(l.Files.Versions)
		out.State, out.StateReason = l.Out.State, l.Out.Reason
		return out
	}
	m := l.Model
	out.Versions = versions(m.GetVersions())
	out.Backend, out.Late, out.MaxBatchSize = m.GetBackend(), late(m.GetLate()), int(m.GetMaxBatchSize())
	out.SLOSeconds = float64(m.GetSloUs()) / 1e6
	out.Batchable, out.PassThroughReason = m.GetBatchable(), m.GetPassThroughReason()
	switch {
	case l.Steps > 0:
		out.EnsembleSteps, out.PassThroughReason = l.Steps, ""
	case l.Unsplit != "":
		out.PassThroughReason = "ensemble: " + l.Unsplit
	}
	if l.PassThrough != "" {
		out.Batchable, out.PassThroughReason = false, l.PassThrough
	}
	out.DynamicBatching = l.Batching != nil
	out.MaxQueueDelaySeconds = float64(l.Batching.GetMaxQueueDelayMicroseconds()) / 1e6
	out.QueuePolicy = queuePolicy(l.Files.QueuePolicy())
	if p := l.Declared; p != nil {
		out.DeclaredAlphaSeconds, out.DeclaredBetaSeconds = p.Alpha.Std().Seconds(), p.Beta.Std().Seconds()
	}
	out.Rate, out.Burstiness, out.Queued = l.Rates.Window, l.Rates.Burstiness, l.Waiting
	out.Goodput, out.BadRate, out.LateRate, out.MeanBatch = l.Statistics.GetGoodput(), l.Bad, l.Statistics.GetBadRate(), l.Statistics.GetMeanBatch()
	out.LatencyP50Seconds, out.LatencyP99Seconds = l.Statistics.GetLatencyP50Us()/1e6, l.Statistics.GetLatencyP99Us()/1e6
	out.Profiles = each(l.Profiles, profile)
	for _, e := range l.Estimates {
		out.Estimates = append(out.Estimates, estimate(e))
	}
	out.Discipline = l.Discipline
	if l.Out.State != "" {
		out.State, out.StateReason = l.Out.State, l.Out.Reason
		return out
	}
	place(&out, l)
	return out
}

// queuePolicy is the queue policy of a dynamic_batching; nil: none.
func queuePolicy(d *tritonpb.ModelDynamicBatching) *api.QueuePolicy {
	if d == nil {
		return nil
	}
	out := &api.QueuePolicy{Default: queueRule(0, d.GetDefaultQueuePolicy())}
	if out.PriorityLevels = d.GetPriorityLevels(); out.PriorityLevels == 0 {
		return out
	}
	out.DefaultPriorityLevel = d.GetDefaultPriorityLevel()
	for _, level := range slices.Sorted(maps.Keys(d.GetPriorityQueuePolicy())) {
		out.Levels = append(out.Levels, queueRule(level, d.GetPriorityQueuePolicy()[level]))
	}
	return out
}

func queueRule(level uint64, p *tritonpb.ModelQueuePolicy) api.QueueRule {
	return api.QueueRule{
		Level: level, MaxQueueSize: p.GetMaxQueueSize(), TimeoutSeconds: float64(p.GetDefaultTimeoutMicroseconds()) / 1e6,
		AllowTimeoutOverride: p.GetAllowTimeoutOverride(), TimeoutAction: strings.ToLower(p.GetTimeoutAction().String()),
	}
}

// place says where a model is and whether a client would be served.
func place(out *api.Model, l control.ModelLook) {
	var down string
	up := false
	for _, p := range l.Places {
		out.Partitions = append(out.Partitions, p.Partition)
		switch {
		case p.Serves(out.Name):
			up = true
		case p.Server == nil:
			down = p.Partition + ": down"
		case p.Server.Up:
			down = p.Partition + ": it is not loaded yet"
		default:
			down = p.Partition + ": " + cmp.Or(p.Server.Reason, "down")
		}
	}
	switch {
	case up:
		out.State = api.ModelReady
	case l.Failing != nil:
		out.State, out.StateReason = api.ModelFailed, l.Failing.Reason+"; change its files and import them, or load it again"
	case len(l.Places) > 0:
		out.State, out.StateReason = api.ModelDown, down
	default:
		out.State, out.StateReason = api.ModelUnplaced, l.Unplaced
	}
}

func versions(numbers []int64) (all []string) {
	for _, n := range numbers {
		all = append(all, strconv.FormatInt(n, 10))
	}
	return all
}

func late(l policy.LatePolicy) string {
	switch l {
	case policy.LatePolicy_LATE_POLICY_SERVE:
		return "serve"
	case policy.LatePolicy_LATE_POLICY_DROP:
		return "drop"
	default:
		return ""
	}
}

func source(s policy.ProfileSource) string {
	switch s {
	case policy.ProfileSource_PROFILE_SOURCE_ESTIMATED:
		return "estimated"
	case policy.ProfileSource_PROFILE_SOURCE_CALIBRATED:
		return "calibrated"
	case policy.ProfileSource_PROFILE_SOURCE_OBSERVED:
		return "observed"
	case policy.ProfileSource_PROFILE_SOURCE_DECLARED:
		return "declared"
	default:
		return "unknown"
	}
}

func profile(p *policy.Profile) api.Profile {
	return api.Profile{
		GPUType: p.GetGpuType(), Source: source(p.GetSource()), Usable: p.GetUsable(), Interfered: p.GetInterfered(),
		Points: each(p.GetPoints(), func(q *policy.ProfilePoint) api.ProfilePoint {
			return api.ProfilePoint{
				Batch: int(q.GetBatch()), ThreadPercentage: int(q.GetThreadPercentage()),
				LatencySeconds:      q.GetLatencyUs().GetValue() / 1e6,
				ErrorBoundSeconds:   q.GetLatencyUs().GetErrorBound() / 1e6,
				LatencyUpperSeconds: q.GetLatencyUpperUs() / 1e6,
				Observations:        q.GetObservations(),
			}
		}),
	}
}

func estimate(e *estimates.Estimate) api.Estimate {
	out := api.Estimate{GPUType: e.Type, Reason: e.Reason}
	if e.Estimate == nil {
		return out
	}
	out.RelativeBound, out.Basis, out.Fits, out.Warnings = e.Bound, e.Basis, e.Fits, e.Warnings
	out.ParameterBytes, out.ActivationBytes, out.WorkspaceBytes = e.Memory.Parameters, e.Memory.Activations, e.Memory.Workspace
	out.ArenaBytes, out.ContextBytes, out.GPUMemoryBytes = e.Memory.Arena, e.Memory.Context, e.MemoryOfGPU
	for _, q := range e.Points {
		out.Points = append(out.Points, api.EstimatePoint{
			Batch: int(q.Batch), ThreadPercentage: int(q.ThreadPercentage), LatencySeconds: q.LatencyUS / 1e6, ErrorBoundSeconds: q.ErrorBoundUS / 1e6,
			Creq: q.Creq, Mreq: q.Mreq, BandwidthUtilization: q.BandwidthUtilization, L2Utilization: q.L2Utilization,
		})
	}
	return out
}
