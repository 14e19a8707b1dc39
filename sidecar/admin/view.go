// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Recorder writes what arrives as a trace; a *record.Recorder is one.
type Recorder interface {
	Stream(ctx context.Context, w io.Writer, source string) (requests, lost uint64, err error)
}

// Of gives the admin API's view of a control loop and of the recorder of the
// request path.
func Of(c control.API, r Recorder) API { return view{c, r} }

type view struct {
	control  control.API
	recorder Recorder
}

func (v view) Version(context.Context) (client.Version, error) {
	return client.Version(v.control.Version()), nil
}

func (v view) Ready(context.Context) (client.Health, error) {
	h := client.Health{OK: true}
	for _, c := range v.control.Ready() {
		h.Checks = append(h.Checks, client.Check(c))
		h.OK = h.OK && c.OK
	}
	return h, nil
}

func (v view) Models(context.Context) ([]client.Model, error) {
	return each(v.control.Models(), model), nil
}

func (v view) Model(_ context.Context, name string) (client.Model, error) {
	m, err := v.control.Model(name)
	return model(m), coded(err)
}

func (v view) GPUs(context.Context) ([]client.GPU, error) {
	return each(v.control.GPUs(), gpu), nil
}

func (v view) Plan(context.Context) (client.Plan, error) {
	return planned(v.control.CurrentPlan())
}

func (v view) Diff(ctx context.Context) (client.Diff, error) {
	p, err := v.control.Propose(ctx)
	if err != nil {
		return client.Diff{}, coded(err)
	}
	return diff(p), nil
}

func (v view) Apply(ctx context.Context, r client.ApplyRequest) (client.ApplyResult, error) {
	result, err := v.control.Apply(ctx, control.ApplyRequest(r))
	if err != nil {
		return client.ApplyResult{}, coded(err)
	}
	p, err := planned(result.Plan)
	if err != nil {
		return client.ApplyResult{}, err
	}
	out := client.ApplyResult{Changed: result.Changed, Plan: p, Seconds: result.Duration.Seconds()}
	if result.Proposal != nil {
		out.Diff = diff(result.Proposal)
	}
	return out, nil
}

func (v view) Explain(ctx context.Context, name string) (client.Explanation, error) {
	e, err := v.control.Explain(ctx, name)
	if err != nil {
		return client.Explanation{}, coded(err)
	}
	detail, err := json.Marshal(e)
	if err != nil {
		return client.Explanation{}, fmt.Errorf("explanation of %s as JSON: %w", name, err)
	}
	return client.Explanation{Model: e.Model, Text: e.Text(), Detail: detail}, nil
}

func (v view) Policies(ctx context.Context) ([]client.Policy, error) {
	policies, err := v.control.Policies(ctx)
	return each(policies, policyOf), coded(err)
}

func (v view) Policy(ctx context.Context, name string) (client.Policy, error) {
	p, err := v.control.Policy(ctx, name)
	return policyOf(p), coded(err)
}

func (v view) UsePolicy(ctx context.Context, r client.UsePolicyRequest) (client.Policy, error) {
	p, err := v.control.UsePolicy(ctx, control.PolicyRequest(r))
	return policyOf(p), coded(err)
}

func (v view) Revisions(ctx context.Context) ([]client.RepositoryRevision, error) {
	revisions, err := v.control.Revisions(ctx)
	return each(revisions, revision), coded(err)
}

func (v view) Import(ctx context.Context, r client.ImportRequest) (client.RepositoryRevision, error) {
	imported, err := v.control.Import(ctx, control.ImportRequest(r))
	return revision(imported), coded(err)
}

func (v view) Rollback(ctx context.Context, r client.RollbackRequest) (client.RepositoryRevision, error) {
	made, err := v.control.Rollback(ctx, control.RollbackRequest(r))
	return revision(made), coded(err)
}

func (v view) Events(_ context.Context, since uint64) ([]client.Event, error) {
	return each(v.control.Events(since), event), nil
}

func (v view) Follow(ctx context.Context, since uint64, yield func(client.Event) error) error {
	return v.control.Follow(ctx, since, func(e control.Event) error { return yield(event(e)) })
}

// coded gives err the code that the control loop's sentinels stand for.
func coded(err error) error {
	if err == nil {
		return nil
	}
	out := &client.Error{Code: client.CodeInternal, Message: err.Error()}
	var violations plan.Violations
	switch {
	case errors.As(err, &violations):
		out.Code, out.Violations = client.CodeRefused, violationsOf(violations)
	case errors.Is(err, control.ErrNotFound), errors.Is(err, plan.ErrUnknownModel):
		out.Code = client.CodeNotFound
	case errors.Is(err, control.ErrConflict):
		out.Code = client.CodeConflict
	case errors.Is(err, control.ErrRefused):
		out.Code = client.CodeRefused
	case errors.Is(err, control.ErrUnavailable):
		out.Code = client.CodeUnavailable
	}
	return out
}

func model(m control.Model) client.Model {
	out := client.Model{
		Name: m.Name, Versions: m.Versions, Revision: m.Revision,
		State: string(m.State), StateReason: m.StateReason, Backend: m.Backend,
		SLOSeconds: m.SLO.Seconds(), Late: late(m.Late),
		MaxBatchSize: m.MaxBatchSize, Batchable: m.Batchable, PassThroughReason: m.PassThroughReason,
		DynamicBatching: m.DynamicBatching, MaxQueueDelaySeconds: m.MaxQueueDelay.Seconds(),
		Discipline: m.Discipline, Partitions: m.Partitions,
		Rate: m.Rate, Burstiness: m.Burstiness,
		Goodput: m.Statistics.GetGoodput(), BadRate: m.Statistics.GetBadRate(), MeanBatch: m.Statistics.GetMeanBatch(),
		LatencyP50Seconds: m.Statistics.GetLatencyP50Us() / 1e6, LatencyP99Seconds: m.Statistics.GetLatencyP99Us() / 1e6,
		Queued:               int(m.Statistics.GetQueuedRequests()),
		Profiles:             each(m.Profiles, profile),
		DeclaredAlphaSeconds: m.DeclaredAlpha.Seconds(), DeclaredBetaSeconds: m.DeclaredBeta.Seconds(),
	}
	return out
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

func profile(p *policy.Profile) client.Profile {
	return client.Profile{
		GPUType: p.GetGpuType(), Source: source(p.GetSource()), Usable: p.GetUsable(), Interfered: p.GetInterfered(),
		Points: each(p.GetPoints(), func(q *policy.ProfilePoint) client.ProfilePoint {
			return client.ProfilePoint{
				Batch: int(q.GetBatch()), ThreadPercentage: int(q.GetThreadPercentage()),
				LatencySeconds:      q.GetLatencyUs().GetValue() / 1e6,
				ErrorBoundSeconds:   q.GetLatencyUs().GetErrorBound() / 1e6,
				LatencyUpperSeconds: q.GetLatencyUpperUs() / 1e6,
				Observations:        q.GetObservations(),
			}
		}),
	}
}

func gpu(g control.GPU) client.GPU {
	return client.GPU{
		ID: g.GetId(), Node: g.Node, Type: g.GetType(), MemoryBytes: g.GetMemoryBytes(),
		Emulated: g.GetEmulated(), SharesEnforced: g.GetSharesEnforced(),
		Partitions: each(g.Partitions, partition),
	}
}

func partition(p control.Partition) client.Partition {
	out := client.Partition{
		ID: p.GetId(), ThreadPercentage: int(p.GetThreadPercentage()), MemoryLimitBytes: p.GetMemoryLimitBytes(),
		Rank: int(p.GetRank()), Up: p.Up, Reason: p.Reason,
		GRPC: p.GRPC, HTTP: p.HTTP, Metrics: p.Metrics, Models: []string{}, BusyShare: p.BusyShare,
	}
	for _, i := range p.GetInstances() {
		out.Models = append(out.Models, i.GetModel())
	}
	return out
}

func planned(p control.Plan) (client.Plan, error) {
	encoded, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(p.Plan)
	if err != nil {
		return client.Plan{}, fmt.Errorf("plan %d as JSON: %w", p.Revision, err)
	}
	return client.Plan{
		Revision: p.Revision, Policy: p.GetPolicy(),
		AppliedAt: p.AppliedAt, AppliedBy: p.AppliedBy, Plan: encoded,
	}, nil
}

func diff(p *control.Proposal) client.Diff {
	out := client.Diff{
		FromRevision: p.FromRevision, Empty: p.Diff.Empty() && len(p.Reloads) == 0,
		Text: p.Diff.Text(), Violations: violationsOf(p.Violations), Changes: []client.Change{},
	}
	if j := p.Judgement; j != nil {
		out.Verdict, out.Judgement = string(j.Verdict), j.Text
	}
	add := func(action, partition, model, detail string) {
		out.Changes = append(out.Changes, client.Change{Action: action, Partition: partition, Model: model, Detail: detail})
	}
	for _, q := range p.Diff.Start {
		add("start", q.GetId(), "", fmt.Sprintf("%d%% of %s", q.GetThreadPercentage(), plan.Hosts(q)))
	}
	for _, r := range p.Diff.Replace {
		add("replace", r.New.GetId(), "", fmt.Sprintf("%d%% of %s instead of %d%% of %s",
			r.New.GetThreadPercentage(), plan.Hosts(r.New), r.Old.GetThreadPercentage(), plan.Hosts(r.Old)))
	}
	for _, l := range p.Diff.Loads {
		add("load", l.Partition.GetId(), instance(l.Instance), "")
	}
	for _, u := range p.Diff.Updates {
		detail := "route"
		if u.Reload {
			detail = "reload"
		}
		add("update", u.Partition.GetId(), instance(u.New), detail)
	}
	for _, d := range p.Diff.Dispatch {
		add("dispatch", "", d.Model, d.Old.GetDiscipline()+" -> "+d.New.GetDiscipline())
	}
	for _, a := range p.Diff.AppRoutes {
		add("route", "", a.App, fmt.Sprintf("%v -> %v", a.Old, a.New))
	}
	for _, l := range p.Diff.Unloads {
		add("unload", l.Partition.GetId(), instance(l.Instance), "")
	}
	for _, q := range p.Diff.Stop {
		add("stop", q.GetId(), "", "")
	}
	return out
}

func instance(i *policy.Instance) string { return i.GetModel() }

func policyOf(p control.Policy) client.Policy {
	out := client.Policy{
		Name: p.Name, Builtin: p.Builtin, InUse: p.InUse, State: p.State, LastError: p.LastError,
		Version: p.Description.GetVersion(), Summary: p.Description.GetSummary(), Disciplines: p.Description.GetDisciplines(),
	}
	for _, q := range p.Description.GetParameters() {
		out.Parameters = append(out.Parameters, client.PolicyParameter{
			Name: q.GetName(), Type: q.GetType(), Default: q.GetDefaultValue(),
			Value: p.Parameters[q.GetName()], Documentation: q.GetDocumentation(), Values: q.GetValues(),
		})
	}
	return out
}

func event(e control.Event) client.Event {
	return client.Event{
		ID: e.ID, Time: e.Time, Kind: string(e.Kind), Author: e.Author, Reason: e.Reason,
		Message: e.Message, Seconds: e.Duration.Seconds(), Fields: e.Fields,
	}
}

func revision(r control.RepositoryRevision) client.RepositoryRevision {
	return client.RepositoryRevision(r)
}

func violationsOf(vs plan.Violations) []client.Violation {
	return each([]plan.Violation(vs), func(v plan.Violation) client.Violation {
		return client.Violation{Code: string(v.Code), Subject: v.Subject, Text: v.Text}
	})
}

// each maps a list; JSON shows an empty one as [] rather than null.
func each[From, To any](in []From, to func(From) To) []To {
	out := make([]To, len(in))
	for i, v := range in {
		out[i] = to(v)
	}
	return out
}
