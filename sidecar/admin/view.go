// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Recorder writes what arrives as a trace; a *record.Recorder is one.
type Recorder interface {
	Stream(ctx context.Context, w io.Writer, source string) (requests, lost uint64, err error)
}

// Seen is what operators are shown of the plan way, as control knows it. None of it
// waits for a plan that is being made.
type Seen interface {
	Readiness() control.Readiness
	Look() control.Look
	LookAtModels() []control.ModelLook
	// GlanceAtModels is LookAtModels without profiles and estimates.
	GlanceAtModels() []control.ModelLook
	// LookAtModel of a name that the repository does not have is control.ErrNotFound.
	LookAtModel(name string) (control.ModelLook, error)
}

// Control is what operators may see of the plan way, and order; *control.Control implements it.
type Control interface {
	Seen
	Version() api.Version
	Snapshot(context.Context) (*policy.Snapshot, error)
	GPUAdvice() control.GPUAdvice
	// Cordon returns the change that takes the models off the GPU, proposed or applied; nil where no model leaves.
	Cordon(context.Context, api.CordonRequest) (*control.Proposal, error)
	Restart(context.Context, api.RestartRequest) error
	LogFile(partition string) (string, error)
	Load(ctx context.Context, o repo.Order, by repo.Origin) error
	Unload(ctx context.Context, model string, by repo.Origin, dependents bool) error
	// CurrentPlan is the plan that serves.
	CurrentPlan() control.Plan
	// Held is why the plan that was made last does not serve; nil where it does, or would change nothing.
	Held() *api.Held
	// OfCluster are the conditions of the cluster that carries plans out; nil without one.
	OfCluster() []api.Condition
	// Propose says what a plan would change; it changes nothing.
	Propose(context.Context, api.DiffRequest) (*control.Proposal, error)
	History() ([]api.PlanRecord, error)
	Pin(context.Context, api.PinRequest) (control.Plan, error)
	Apply(context.Context, api.ApplyRequest) (*control.Applied, error)
	Explain(ctx context.Context, model string) (*plan.Explanation, error)
	Policies(ctx context.Context, describe bool) ([]api.Policy, error)
	Policy(ctx context.Context, name string, describe bool) (api.Policy, error)
	UsePolicy(context.Context, api.UsePolicyRequest) (api.Policy, error)
	Revisions(context.Context) ([]*repo.Revision, error)
	CurrentRevision() string
	Import(context.Context, api.ImportRequest, func(repo.Progress)) (files *repo.Revision, changed bool, err error)
	Rollback(context.Context, api.RollbackRequest) (*repo.Revision, error)
	CompareRevisions(ctx context.Context, from, to string) (*repo.Comparison, error)
	Collect(context.Context, api.CollectRequest) (repo.Collected, error)
	Verify(context.Context, api.VerifyRequest) (repo.Verification, error)
	// Release gives attached servers back.
	Release(context.Context, api.ReleaseRequest) (api.ReleaseResult, error)
	// Events gives those after id since, oldest first.
	Events(since uint64) []api.Event
}

// Traffic is what the request path remembers of requests.
type Traffic interface {
	// Slowest are a model's slowest requests of the last minute, slowest first.
	Slowest(model string) []api.SlowRequest
}

// Of gives the admin API's view of a control loop, and of the recorder and the memory of the
// request path.
func Of(c Control, r Recorder, t Traffic) API { return view{c, r, t, &encoded{}} }

type view struct {
	control  Control
	recorder Recorder
	traffic  Traffic
	plan     *encoded
}

// encoded is the plan in force as JSON, which is made once: those who watch ask for it all the time.
type encoded struct {
	mu   sync.Mutex
	of   *policy.Plan
	text json.RawMessage
}

func (e *encoded) json(p control.Plan) (_ json.RawMessage, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.of != p.Plan || e.text == nil {
		if e.text, err = encode(p); err != nil {
			return nil, err
		}
		e.of = p.Plan
	}
	return e.text, nil
}

func (v view) Version(context.Context) (api.Version, error) {
	return v.control.Version(), nil
}

func (v view) Plan(context.Context) (api.Plan, error) {
	p := v.control.CurrentPlan()
	text, err := v.plan.json(p)
	out := describe(p, text)
	out.Held, out.Conditions = v.control.Held(), v.control.OfCluster()
	return out, err
}

func (v view) Diff(ctx context.Context, r api.DiffRequest) (api.Diff, error) {
	p, err := v.control.Propose(ctx, r)
	if err != nil {
		return api.Diff{}, coded(err)
	}
	out := diff(p)
	out.Proposed, err = p.File()
	return out, err
}

func (v view) History(context.Context) ([]api.PlanRecord, error) {
	all, err := v.control.History()
	return orEmpty(all), coded(err)
}

func (v view) Pin(ctx context.Context, r api.PinRequest) (api.Plan, error) {
	p, err := v.control.Pin(ctx, r)
	if err != nil {
		return api.Plan{}, coded(err)
	}
	return planned(p)
}

func (v view) Apply(ctx context.Context, r api.ApplyRequest) (api.ApplyResult, error) {
	result, err := v.control.Apply(ctx, r)
	if err != nil {
		return api.ApplyResult{}, coded(err)
	}
	p, err := planned(result.Plan)
	if err != nil {
		return api.ApplyResult{}, err
	}
	out := api.ApplyResult{Changed: result.Changed, Plan: p, Seconds: result.Duration.Seconds()}
	if result.Proposal != nil {
		out.Diff = diff(result.Proposal)
	}
	return out, nil
}

func (v view) Explain(ctx context.Context, name string) (api.Explanation, error) {
	e, err := v.control.Explain(ctx, name)
	if err != nil {
		return api.Explanation{}, coded(err)
	}
	detail, err := json.Marshal(e)
	if err != nil {
		return api.Explanation{}, fmt.Errorf("explanation of %s as JSON: %w", name, err)
	}
	return api.Explanation{Model: e.Model, Text: e.Text(), Detail: detail}, nil
}

func (v view) Policies(ctx context.Context, describe bool) ([]api.Policy, error) {
	policies, err := v.control.Policies(ctx, describe)
	return orEmpty(policies), coded(err)
}

func (v view) Policy(ctx context.Context, name string, describe bool) (api.Policy, error) {
	p, err := v.control.Policy(ctx, name, describe)
	return p, coded(err)
}

func (v view) UsePolicy(ctx context.Context, r api.UsePolicyRequest) (api.Policy, error) {
	p, err := v.control.UsePolicy(ctx, r)
	return p, coded(err)
}

func (v view) Events(_ context.Context, since uint64) ([]api.Event, error) {
	return orEmpty(v.control.Events(since)), nil
}

// coded gives err the code that the control loop's sentinels stand for.
func coded(err error) error {
	if err == nil {
		return nil
	}
	out := &api.Error{Code: api.CodeInternal, Message: err.Error()}
	var violations plan.Violations
	var load *driver.LoadError
	switch {
	case errors.As(err, &violations):
		out.Code, out.Violations = api.CodeRefused, violationsOf(violations)
	case errors.Is(err, control.ErrNotFound), errors.Is(err, plan.ErrUnknownModel):
		out.Code = api.CodeNotFound
	case errors.Is(err, control.ErrConflict):
		out.Code = api.CodeConflict
	case errors.Is(err, control.ErrInvalid):
		out.Code = api.CodeInvalid
	case errors.Is(err, control.ErrRefused):
		out.Code = api.CodeRefused
	case errors.Is(err, control.ErrUnavailable):
		out.Code = api.CodeUnavailable
	case errors.As(err, &load):
		out.Code = api.CodeRefused // by the server
	}
	return out
}

func planned(p control.Plan) (api.Plan, error) {
	text, err := encode(p)
	return describe(p, text), err
}

func encode(p control.Plan) (json.RawMessage, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(p.Plan)
	if err != nil {
		return nil, fmt.Errorf("plan %d as JSON: %w", p.Revision, err)
	}
	return text, nil
}

func describe(p control.Plan, text json.RawMessage) api.Plan {
	return api.Plan{
		Revision: p.Revision, Policy: p.GetPolicy(),
		AppliedAt: p.AppliedAt, AppliedBy: p.AppliedBy, Reason: p.Reason, Pin: p.Pin, Plan: text,
	}
}

func diff(p *control.Proposal) api.Diff {
	out := api.Diff{
		FromRevision: p.FromRevision, Empty: p.Diff.Empty() && len(p.Reloads) == 0,
		Text: p.Diff.Text(), Violations: violationsOf(p.Violations), Changes: []api.Change{}, BreakFirst: p.Diff.BreakFirst,
	}
	if j := p.Judgement; j != nil {
		out.Verdict, out.Judgement, out.DisturbedRequests = string(j.Verdict), j.Text, j.Disturbed
		if j.Now != nil && j.Then != nil {
			out.Expected = &api.Expected{GoodputNow: j.Now.GetGoodput(), GoodputThen: j.Then.GetGoodput(), BadNow: j.Now.GetBadRate(), BadThen: j.Then.GetBadRate()}
		}
	}
	add := func(action, partition, model, detail string) {
		out.Changes = append(out.Changes, api.Change{Action: action, Partition: partition, Model: model, Detail: detail})
	}
	for _, q := range p.Diff.Start {
		add("start", q.GetId(), "", fmt.Sprintf("%d%% of %s", q.GetThreadPercentage(), q.Hosts()))
	}
	for _, r := range p.Diff.Replace {
		add("replace", r.New.GetId(), "", fmt.Sprintf("%d%% of %s instead of %d%% of %s",
			r.New.GetThreadPercentage(), r.New.Hosts(), r.Old.GetThreadPercentage(), r.Old.Hosts()))
	}
	for _, l := range p.Diff.Loads {
		add("load", l.Partition.GetId(), l.Instance.GetModel(), "")
	}
	for _, u := range p.Diff.Updates {
		detail := "route"
		if u.Reload {
			detail = "reload"
		}
		add("update", u.Partition.GetId(), u.New.GetModel(), detail)
	}
	for _, d := range p.Diff.Dispatch {
		add("dispatch", "", d.Model, d.Old.GetDiscipline()+" -> "+d.New.GetDiscipline())
	}
	for _, a := range p.Diff.AppRoutes {
		add("route", "", a.App, fmt.Sprintf("%v -> %v", a.Old, a.New))
	}
	for _, l := range p.Diff.Unloads {
		add("unload", l.Partition.GetId(), l.Instance.GetModel(), "")
	}
	for _, q := range p.Diff.Stop {
		add("stop", q.GetId(), "", "")
	}
	return out
}

func violationsOf(vs plan.Violations) []api.Violation {
	return each([]plan.Violation(vs), func(v plan.Violation) api.Violation {
		return api.Violation{Code: string(v.Code), Subject: v.Subject, Text: v.Text}
	})
}

// orEmpty is what JSON shows as [] rather than null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// each maps a list; JSON shows an empty one as [] rather than null.
func each[From, To any](in []From, to func(From) To) []To {
	out := make([]To, len(in))
	for i, v := range in {
		out[i] = to(v)
	}
	return out
}
