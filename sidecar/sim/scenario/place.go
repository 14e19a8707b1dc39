// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/builtin"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/policyhost"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/discipline"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
)

// place gives the world its plan or its policy.
func (s *Scenario) place(w *sim.World, asked sim.Policy) error {
	snapshot := w.Snapshot
	if p := s.Policy; p != nil {
		if asked == nil {
			return fmt.Errorf("policy %s is not open: see Policy.Open", p.Name)
		}
		w.Policy, snapshot.Parameters = asked, maps.Clone(p.Parameters)
		w.Replan = sim.Replan{
			Every: p.Every.std(), RateUp: p.RateUp, RateUpBy: p.RateUpBy, RateDown: p.RateDown, BadRate: p.BadRate, OnFailure: p.OnFailure,
			Hold: p.Hold.std(), Cooldown: p.Cooldown.std(), Takes: p.Takes.std(),
		}
		return nil
	}
	var err error
	switch {
	case s.Plan == nil && len(snapshot.GetCurrent().GetPartitions()) > 0:
		w.Plan = proto.CloneOf(snapshot.GetCurrent())
	case s.Plan != nil && len(s.Plan.Partitions) > 0:
		w.Plan, err = s.Plan.given(snapshot)
	default:
		groups := 1
		if s.Plan != nil {
			groups = s.Plan.Subclusters
		}
		w.Plan = s.dealt(snapshot, groups)
	}
	if err != nil {
		return err
	}
	s.dispatch(w.Plan, snapshot)
	return nil
}

// dispatch says how a plan's models are dispatched, where the scenario says so: for all of them, or for some.
func (s *Scenario) dispatch(plan *policy.Plan, snapshot *policy.Snapshot) {
	set := func(name string, d Dispatch) {
		plan.Dispatch = slices.DeleteFunc(plan.Dispatch, func(o *policy.Dispatch) bool { return o.GetModel() == name })
		plan.Dispatch = append(plan.Dispatch, &policy.Dispatch{Model: name, Discipline: d.Discipline, Parameters: d.Parameters, DropPolicy: d.DropPolicy})
	}
	if d := s.Dispatch; d.Discipline != "" || d.DropPolicy != "" || len(d.Parameters) > 0 {
		plan.Dispatch = nil
		for _, m := range snapshot.GetModels() {
			set(m.GetName(), d)
		}
	}
	for _, m := range s.Models {
		if m.Dispatch == nil {
			continue
		}
		for _, name := range m.names() {
			set(name, *m.Dispatch)
		}
	}
}

// given are the partitions of the file.
func (p *Plan) given(snapshot *policy.Snapshot) (*policy.Plan, error) {
	x := policy.NewIndex(snapshot)
	made := &policy.Plan{SnapshotRevision: snapshot.GetRevision(), Policy: "scenario"}
	onGPU := map[string]int{}
	for i, part := range p.Partitions {
		at := slices.IndexFunc(x.GPUs(), func(g policy.NodeGPU) bool { return g.GetId() == part.GPU })
		if at < 0 {
			return nil, fmt.Errorf("plan: partitions[%d]: there is no GPU %q; the first is called gpu0", i, part.GPU)
		}
		placed := &policy.Partition{
			Id: fmt.Sprintf("%s.%d", part.GPU, onGPU[part.GPU]), Node: x.GPUs()[at].Node, Gpus: []string{part.GPU},
			ThreadPercentage: cmp.Or(part.Share, 100), Rank: uint32(i),
		}
		onGPU[part.GPU]++
		for _, name := range part.Models {
			if x.Model(name) == nil {
				return nil, fmt.Errorf("plan: partitions[%d]: there is no model %q", i, name)
			}
			placed.Instances = append(placed.Instances, policy.ModelInstance(name, 0))
		}
		made.Partitions = append(made.Partitions, placed)
	}
	return made, nil
}

// dealt puts model i and GPU i into sub-cluster i modulo their number, and within one every model on every partition.
func (s *Scenario) dealt(snapshot *policy.Snapshot, groups int) *policy.Plan {
	x := policy.NewIndex(snapshot)
	var shares [][]uint32
	for _, g := range s.GPUs {
		for range max(1, g.Count) {
			shares = append(shares, g.Shares)
		}
	}
	made := &policy.Plan{SnapshotRevision: snapshot.GetRevision(), Policy: "scenario"}
	for i, g := range x.GPUs() {
		cut := []uint32{100}
		if s.Snapshot == nil && len(shares[g.GetIndex()]) > 0 {
			cut = shares[g.GetIndex()]
		}
		for k, share := range cut {
			placed := &policy.Partition{
				Id: fmt.Sprintf("%s.%d", g.GetId(), k), Node: g.Node, Gpus: []string{g.GetId()}, ThreadPercentage: share, Rank: uint32(len(made.Partitions)),
			}
			for m := i % groups; m < len(snapshot.GetModels()); m += groups {
				placed.Instances = append(placed.Instances, policy.ModelInstance(snapshot.GetModels()[m].GetName(), 0))
			}
			made.Partitions = append(made.Partitions, placed)
		}
	}
	return made
}

func sortPoints(points []*policy.ProfilePoint) {
	slices.SortFunc(points, func(a, b *policy.ProfilePoint) int {
		return cmp.Or(cmp.Compare(a.GetThreadPercentage(), b.GetThreadPercentage()), cmp.Compare(a.GetBatch(), b.GetBatch()))
	})
}

// Policies are the names of those that Conch brings.
func Policies() []string { return builtin.Names() }

// Disciplines are the names of those that can be simulated.
func Disciplines() []string { return append(discipline.Names(), segmented) }

// Open opens the policy as the scenario says: in this process, or as a process of its own, which Close ends. Dir is what the executable is
// relative to, own the path of this program, beside which conch-policies is. A nil policy of a scenario that names none is fine.
func (p *Policy) Open(ctx context.Context, dir, own string) (sim.Policy, func() error, error) {
	nothing := func() error { return nil }
	if p == nil {
		return nil, nothing, nil
	}
	// A budget is real time, and virtual time waits: a busy machine must not make another plan.
	o := policyhost.Options{Grace: time.Minute}
	var third *policyhost.Executable
	switch {
	case p.Executable != "":
		path := p.Executable
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		full, err := filepath.Abs(path)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: policy %s: %w", ErrScenario, p.Name, err)
		}
		third = &policyhost.Executable{Path: full}
	case p.Process:
		o.Builtins = policyhost.Beside(own)
	default:
		made, err := p.InProcess(ctx)
		return made, nothing, err
	}
	host, err := p.InProcesses(ctx, o, third)
	if err != nil {
		return nil, nil, err
	}
	return host, host.Close, nil
}

// InProcess opens the policy in this process, if it is one that Conch brings. A nil policy of a scenario that names none is fine.
func (p *Policy) InProcess(ctx context.Context) (sim.Policy, error) {
	if p == nil {
		return nil, nil
	}
	return p.InProcessWith(ctx, &evaluate.InProcess{})
}

// InProcessWith is InProcess with an evaluator of the caller's.
func (p *Policy) InProcessWith(ctx context.Context, evaluator *evaluate.InProcess) (sim.Policy, error) {
	made, ok := builtin.New(p.Name)
	if !ok {
		return nil, fmt.Errorf("%w: there is no policy %q in this program; there are %s. A policy of others is named with policy.executable in a scenario", ErrScenario, p.Name, strings.Join(builtin.Names(), ", "))
	}
	d, err := made.Describe(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: policy %s: %w", ErrScenario, p.Name, err)
	}
	resolved, err := d.Resolve(p.Parameters)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrScenario, err)
	}
	return &resolving{policy: made, description: d, parameters: resolved, evaluator: evaluator}, nil
}

// resolving does what the host does around a policy: its needs, its parameters, its state, and evaluations.
type resolving struct {
	policy      policy.Policy
	description *policy.Description
	parameters  map[string]string
	evaluator   *evaluate.InProcess
	state       []byte
}

// evaluations that a policy gets for each plan of a simulation, which promises none of its own.
const evaluations = 64

func (r *resolving) Plan(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
	s = proto.CloneOf(s)
	if s.Traffic == nil {
		if s.Traffic = evaluate.Promise(s, 2*time.Second); s.Traffic != nil {
			s.Evaluations = evaluations
		}
	}
	if unmet := r.description.Unmet(s); len(unmet) > 0 {
		remedies := make([]string, len(unmet))
		for i, need := range unmet {
			remedies[i] = policy.Remedy(need)
		}
		return nil, fmt.Errorf("policy %s: the snapshot lacks what it needs: %s", r.description.GetName(), strings.Join(remedies, "; "))
	}
	s.Parameters = r.parameters
	if r.state != nil {
		s.PolicyState = r.state // else what the snapshot was recorded with
	}
	plan, err := r.policy.Plan(ctx, s, r.evaluator.Host(s))
	if err == nil {
		r.state = plan.GetPolicyState()
	}
	if err == nil && plan.GetPolicy() == "" {
		plan.Policy, plan.PolicyVersion = r.description.GetName(), r.description.GetVersion()
	}
	return plan, err
}

// InProcesses opens the policy as Conch does, as a process: a third party's executable, or one of conch-policies. Close the host afterwards.
func (p *Policy) InProcesses(ctx context.Context, o policyhost.Options, executable *policyhost.Executable) (*policyhost.Host, error) {
	if p == nil {
		return nil, fmt.Errorf("%w: it names no policy", ErrScenario)
	}
	host := policyhost.New(o)
	if _, err := host.Use(ctx, policyhost.Ref{Name: p.Name, Executable: executable, Parameters: p.Parameters}); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrScenario, err), host.Close())
	}
	return host, nil
}
