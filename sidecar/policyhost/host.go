// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/conch-serving/conch/plugins/policy"
)

// Host runs the policy in use. Its methods may be called by several goroutines;
// plans are asked for one at a time.
type Host struct {
	o Options
	// calling is held during a call to the process and while it is exchanged.
	calling chan struct{}
	// using is held during a Use.
	using sync.Mutex

	// mu guards what follows; it is never held during a call.
	mu     sync.Mutex
	closed bool
	inUse  *inUse
	good   *policy.Plan
	// states are what policies have left for their next snapshot, by name and version.
	states map[string][]byte
	// listed is the latest list of the built-in policies.
	listed listed
}

// inUse is the policy in use and its state. What comes before process
// never changes.
type inUse struct {
	name        string
	executable  Executable
	description *policy.Description
	// given are the parameters of the Ref, resolved those over the defaults.
	given, resolved map[string]string

	process  *process
	guard    *guard
	since    time.Time
	restarts int
	plans    int
	lastPlan time.Time
	lastTook time.Duration
	lastErr  error
}

// New makes a host; it runs nothing before [Host.Use].
func New(o Options) *Host {
	def := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	def(&o.StartTimeout, 10*time.Second)
	def(&o.Budget, time.Second)
	def(&o.Grace, 250*time.Millisecond)
	def(&o.EvaluationTime, time.Minute)
	def(&o.BackoffMin, 500*time.Millisecond)
	def(&o.BackoffMax, time.Minute)
	def(&o.BreakerOpen, 30*time.Second)
	def(&o.BreakerOpenMax, 10*time.Minute)
	if o.MaxAnswerBytes <= 0 {
		o.MaxAnswerBytes = 16 << 20
	}
	if o.BreakerFailures <= 0 {
		o.BreakerFailures = 5
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Host{o: o, calling: make(chan struct{}, 1)}
}

// Use starts the policy, lets it describe itself, checks the parameters, by the
// description and by a plan of a snapshot without models, and only then puts it in the place of the one in use, which is stopped after its
// present call. Where anything fails the policy in use stays. The last good
// plan stays in any case.
func (h *Host) Use(ctx context.Context, ref Ref) (*policy.Description, error) {
	h.using.Lock()
	defer h.using.Unlock()
	next, err := h.prepare(ctx, ref)
	if err == nil {
		err = h.exchange(ctx, next)
	}
	if err != nil {
		err = fmt.Errorf("policy %s: %w", ref.Name, err)
		h.emit(EventSwapFailed, ref.Name, err, "the policy was not put in use: %v", err)
		return nil, err
	}
	return next.description, nil
}

// prepare makes a policy ready to be used.
func (h *Host) prepare(ctx context.Context, ref Ref) (*inUse, error) {
	h.mu.Lock()
	closed := h.closed
	h.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	executable, err := h.resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	p, d, err := h.startAndDescribe(ctx, ref.Name, executable)
	if err != nil {
		return nil, err
	}
	resolved, err := d.Resolve(ref.Parameters)
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("%w: %w", ErrParameter, err)
	}
	// An empty snapshot meets every need but those that this version cannot meet
	// at all.
	if unmet := d.Unmet(&policy.Snapshot{}); len(unmet) > 0 {
		p.stop()
		return nil, needs(unmet)
	}
	if err := h.tryParameters(ctx, p, ref, resolved); err != nil {
		p.stop()
		return nil, err
	}
	return &inUse{
		name: ref.Name, executable: executable, description: d,
		given: maps.Clone(ref.Parameters), resolved: resolved,
		process: p, guard: newGuard(h.o), since: h.o.Now(),
	}, nil
}

// tryParameters lets the policy itself judge the parameters that it was given: only
// it knows the forms of its texts. A snapshot without models leaves a policy nothing
// else to object to. A policy that hangs or dies over it is the guard's to deal
// with, at the first plan.
func (h *Host) tryParameters(ctx context.Context, p *process, ref Ref, resolved map[string]string) error {
	if len(ref.Parameters) == 0 {
		return nil
	}
	idle := &policy.Snapshot{PlanningBudgetUs: h.o.Budget.Microseconds(), Parameters: resolved}
	_, err := p.plan(ctx, idle, h.o.Budget+h.o.Grace, nil, 0)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, ErrRefused):
		return fmt.Errorf("%w: %w", ErrParameter, err)
	}
	return nil
}

func (h *Host) startAndDescribe(ctx context.Context, name string, e Executable) (*process, *policy.Description, error) {
	p, err := start(ctx, e, h.o, h.o.Logger.With("policy", name))
	if err != nil {
		return nil, nil, err
	}
	d, err := p.describe(ctx, h.o.Budget+h.o.Grace)
	if err != nil {
		p.kill()
		return nil, nil, err
	}
	return p, d, nil
}

// exchange puts next in the place of the policy in use.
func (h *Host) exchange(ctx context.Context, next *inUse) error {
	if err := h.acquire(ctx); err != nil {
		next.process.stop()
		return err
	}
	h.mu.Lock()
	closed, previous := h.closed, h.inUse
	if !closed {
		h.inUse = next
	}
	h.mu.Unlock()
	h.release()
	if closed {
		next.process.stop()
		return ErrClosed
	}
	h.emit(EventStarted, next.name, nil, "process %d of %s %s", next.process.pid(), next.description.GetName(), next.description.GetVersion())
	if previous != nil {
		h.emit(EventSwapped, next.name, nil, "%s took the place of %s", next.name, previous.name)
		// No call can begin on it any more: inUse changed while calling was held.
		previous.process.stop()
		h.emit(EventStopped, previous.name, nil, "%s is no longer in use", previous.name)
	}
	return nil
}

// Plan asks the policy in use. The snapshot's parameters are replaced by the
// policy's defaults, those of the snapshot that the policy knows, and those of
// its [Ref], later ones first; the snapshot itself is not changed.
//
// It fails with one of the errors of this package, or with that of ctx. A
// failure changes nothing but the policy's own process: [Host.LastGood] is
// still the plan to serve by.
func (h *Host) Plan(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
	if err := h.acquire(ctx); err != nil {
		return nil, err
	}
	defer h.release()
	h.mu.Lock()
	closed, u := h.closed, h.inUse
	h.mu.Unlock()
	switch {
	case closed:
		return nil, ErrClosed
	case u == nil:
		return nil, ErrNoPolicy
	}
	answer, err := h.plan(ctx, u, s)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", u.name, err)
	}
	return answer, nil
}

func (h *Host) plan(ctx context.Context, u *inUse, s *policy.Snapshot) (*policy.Plan, error) {
	if unmet := u.description.Unmet(s); len(unmet) > 0 {
		return nil, needs(unmet)
	}
	h.mu.Lock()
	halfOpened, err := u.guard.admit(h.o.Now())
	h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if halfOpened {
		h.emit(EventBreakerHalfOpen, u.name, nil, "one call is tried")
	}
	if err := h.ensure(ctx, u); err != nil {
		return nil, h.failed(ctx, u, EventStartFailed, err)
	}
	asked := h.question(s, u)
	asked.PolicyState = h.state(u)
	began := h.o.Now()
	answer, err := h.put(ctx, asked, u)
	took := h.o.Now().Sub(began)
	if err == nil {
		h.keepState(u, answer.GetPolicyState())
	}
	if err == nil {
		err = h.check(asked, answer, u)
	}
	if err != nil {
		return nil, h.failed(ctx, u, EventCallFailed, err)
	}
	h.mu.Lock()
	h.good = answer
	u.plans++
	u.lastPlan, u.lastTook, u.lastErr = began.Add(took), took, nil
	closedBreaker := u.guard.succeed()
	h.mu.Unlock()
	if closedBreaker {
		h.emit(EventBreakerClosed, u.name, nil, "the policy answers again")
	}
	return answer, nil
}

// question is a snapshot as a policy is asked it: with its parameters, a budget, and evaluations only where there is an evaluator. It has no state.
func (h *Host) question(s *policy.Snapshot, u *inUse) *policy.Snapshot {
	asked := withParameters(s, u)
	if asked.PlanningBudgetUs <= 0 {
		asked.PlanningBudgetUs = h.o.Budget.Microseconds()
	}
	if h.o.Evaluator == nil {
		asked.Evaluations = 0
	}
	asked.PolicyState = nil
	return asked
}

// put asks a policy's process a [Host.question].
func (h *Host) put(ctx context.Context, asked *policy.Snapshot, u *inUse) (*policy.Plan, error) {
	budget := time.Duration(asked.GetPlanningBudgetUs()) * time.Microsecond
	return u.process.plan(ctx, asked, budget+h.o.Grace, h.o.Evaluator, h.o.EvaluationTime)
}

// needs is the refusal of a policy that reads more than the snapshot holds, with
// what an operator can do about it.
func needs(unmet []string) error {
	remedies := make([]string, len(unmet))
	for i, need := range unmet {
		remedies[i] = policy.Remedy(need)
	}
	return fmt.Errorf("%w: %s", ErrNeeds, strings.Join(remedies, "; "))
}

// state is what the latest answer of the policy's name and version left.
func (h *Host) state(u *inUse) []byte {
	key := u.description.GetName() + "@" + u.description.GetVersion()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.states[key]
}

// keepState keeps what an answer leaves for the next snapshot, whether the plan
// will be applied or not. More than the contract allows is left out: Validate
// refuses such a plan.
func (h *Host) keepState(u *inUse, state []byte) {
	if len(state) > policy.MaxStateBytes {
		return
	}
	key := u.description.GetName() + "@" + u.description.GetVersion()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.states == nil {
		h.states = make(map[string][]byte)
	}
	h.states[key] = state
}

// check names the answer after its policy, whatever it calls itself, and asks the caller's check.
func (h *Host) check(s *policy.Snapshot, answer *policy.Plan, u *inUse) error {
	answer.Policy, answer.PolicyVersion = u.description.GetName(), u.description.GetVersion()
	if h.o.Check == nil {
		return nil
	}
	if err := h.o.Check(s, answer); err != nil {
		return fmt.Errorf("%w: %w", ErrRejected, err)
	}
	return nil
}

// ensure starts the process again where it is dead.
func (h *Host) ensure(ctx context.Context, u *inUse) error {
	if !u.process.exited() {
		return nil
	}
	u.process.kill()
	p, err := start(ctx, u.executable, h.o, h.o.Logger.With("policy", u.name))
	if err != nil {
		return err
	}
	h.mu.Lock()
	u.process = p
	u.restarts++
	h.mu.Unlock()
	h.emit(EventStarted, u.name, nil, "process %d in place of one that died", p.pid())
	return nil
}

// failed counts a failure of the policy; an end of the caller's context is
// none.
func (h *Host) failed(ctx context.Context, u *inUse, kind EventKind, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return err
	}
	if errors.Is(err, ErrRejected) || errors.Is(err, ErrEvaluation) {
		// The breaker is for crashes and silence: another snapshot may well get a
		// plan that can be applied.
		h.mu.Lock()
		u.lastErr = err
		h.mu.Unlock()
		h.emit(kind, u.name, err, "%v", err)
		return err
	}
	h.mu.Lock()
	u.lastErr = err
	opened := u.guard.fail(h.o.Now(), err, u.process.exited())
	failures, retryAt := u.guard.failures, u.guard.retryAt
	h.mu.Unlock()
	h.emit(kind, u.name, err, "failure %d in a row: %v", failures, err)
	if opened {
		h.emit(EventBreakerOpened, u.name, err, "left alone until %s after %d failures", retryAt.Format(time.RFC3339), failures)
	}
	return err
}

// withParameters is the snapshot with the policy's parameters. Everything else
// is shared with the snapshot, which is immutable.
func withParameters(s *policy.Snapshot, u *inUse) *policy.Snapshot {
	asked := &policy.Snapshot{}
	to := asked.ProtoReflect()
	s.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		to.Set(field, value)
		return true
	})
	asked.Parameters = make(map[string]string)
	for _, p := range u.description.GetParameters() {
		asked.Parameters[p.GetName()] = p.GetDefaultValue()
		if value, ok := s.GetParameters()[p.GetName()]; ok {
			asked.Parameters[p.GetName()] = value
		}
	}
	maps.Copy(asked.Parameters, u.given)
	return asked
}

// LastGood is the last plan that was good, of whichever policy; nil where there
// was none. It must not be changed.
func (h *Host) LastGood() *policy.Plan {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.good
}

// Close stops the process and waits for a call that is under way.
func (h *Host) Close() error {
	h.mu.Lock()
	already := h.closed
	h.closed = true
	h.mu.Unlock()
	if already {
		return nil
	}
	h.calling <- struct{}{}
	defer h.release()
	h.mu.Lock()
	u := h.inUse
	h.mu.Unlock()
	if u != nil {
		u.process.stop()
		h.emit(EventStopped, u.name, nil, "the host is closed")
	}
	return nil
}

func (h *Host) acquire(ctx context.Context) error {
	select {
	case h.calling <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *Host) release() { <-h.calling }

func (h *Host) emit(kind EventKind, name string, err error, format string, args ...any) {
	e := Event{Time: h.o.Now(), Kind: kind, Policy: name, Text: fmt.Sprintf(format, args...), Err: err}
	level := slog.LevelInfo
	if err != nil {
		level = slog.LevelWarn
	}
	h.o.Logger.Log(context.Background(), level, e.Text, "policy", name, "event", string(kind))
	if h.o.OnEvent != nil {
		h.o.OnEvent(e)
	}
}
