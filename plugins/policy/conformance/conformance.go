// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
)

// Options of [Run].
type Options struct {
	// New makes the policy; it is called more than once, and what it returns has
	// to agree.
	New func(t *testing.T) policy.Policy
	// Parameters are set in every snapshot over the policy's defaults.
	Parameters map[string]string
	// Budget is the time of one call; default one second.
	Budget time.Duration
	// Snapshots makes the worlds; default [Snapshots]. A policy that needs more of
	// a snapshot than models and GPUs adds it here.
	Snapshots *rapid.Generator[*policy.Snapshot]
}

// Run runs the suite as subtests of t.
func Run(t *testing.T, o Options) {
	if o.Budget <= 0 {
		o.Budget = time.Second
	}
	if o.Snapshots == nil {
		o.Snapshots = Snapshots()
	}
	s := &suite{o: o, first: o.New(t), second: o.New(t)}
	d, err := s.first.Describe(t.Context())
	require.NoError(t, err, "Describe")
	s.parameters, err = d.Resolve(o.Parameters)
	require.NoError(t, err, "the parameters of the options")
	t.Run("describe", func(t *testing.T) { s.describe(t, d) })
	t.Run("empty snapshot", s.empty)
	t.Run("generated snapshots", s.generated)
	t.Run("bad parameter", func(t *testing.T) { s.badParameter(t, d) })
}

type suite struct {
	o             Options
	first, second policy.Policy
	parameters    map[string]string
}

// tester is what *testing.T and *rapid.T have in common here.
type tester interface {
	require.TestingT
	Helper()
}

func (s *suite) describe(t *testing.T, d *policy.Description) {
	require.NotEmpty(t, d.GetName())
	require.NotEmpty(t, d.GetVersion())
	require.NotEmpty(t, d.GetSummary())
	again, err := s.second.Describe(t.Context())
	require.NoError(t, err)
	require.True(t, proto.Equal(d, again), "two descriptions differ:\n%v\n%v", d, again)
	types := []string{policy.TypeString, policy.TypeInt, policy.TypeFloat, policy.TypeBool, policy.TypeDuration}
	defaults := make(map[string]string)
	for _, p := range d.GetParameters() {
		require.NotEmpty(t, p.GetName())
		require.NotContains(t, defaults, p.GetName(), "a parameter is described twice")
		require.Contains(t, types, p.GetType(), "parameter %s", p.GetName())
		require.NotEmpty(t, p.GetDocumentation(), "parameter %s", p.GetName())
		defaults[p.GetName()] = p.GetDefaultValue()
	}
	_, err = d.Resolve(defaults)
	require.NoError(t, err, "the defaults are values of their types and among their values")
	require.Empty(t, d.Unmet(&policy.Snapshot{}), "needs that the contract does not know")
	require.GreaterOrEqual(t, d.GetIntervalUs(), int64(0))
}

func (s *suite) empty(t *testing.T) {
	s.ask(t.Context(), t, &policy.Snapshot{Revision: 1})
	s.ask(t.Context(), t, &policy.Snapshot{Revision: 2, Models: []*policy.Model{{Name: "alone", SloUs: 1000, Rate: 5}}})
	s.ask(t.Context(), t, &policy.Snapshot{Revision: 3, Nodes: []*policy.Node{
		{Name: "n", Gpus: []*policy.GPU{{Id: "gpu0", Type: "T4", MemoryBytes: 1 << 34}}},
	}})
}

func (s *suite) generated(t *testing.T) {
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) { s.ask(ctx, t, s.o.Snapshots.Draw(t, "snapshot")) })
}

// ask asks both policies, the first one twice, and judges the answer.
func (s *suite) ask(ctx context.Context, t tester, snapshot *policy.Snapshot) {
	t.Helper()
	snapshot.PlanningBudgetUs = s.o.Budget.Microseconds()
	snapshot.Parameters = s.parameters
	before := proto.CloneOf(snapshot)
	answers := make([]*policy.Plan, 0, 3)
	for _, p := range []policy.Policy{s.first, s.first, s.second} {
		limited, cancel := context.WithTimeout(ctx, s.o.Budget)
		answer, err := p.Plan(limited, snapshot, policy.NoEvaluation{})
		cancel()
		require.NoError(t, err, "Plan within %s", s.o.Budget)
		answers = append(answers, answer)
	}
	require.True(t, proto.Equal(before, snapshot), "the policy changed the snapshot")
	for _, other := range answers[1:] {
		require.True(t, proto.Equal(answers[0], other), "equal snapshots got two plans:\n%v\n%v", answers[0], other)
	}
	require.Empty(t, Check(snapshot, answers[0]), "snapshot: %v\nplan: %v", snapshot, answers[0])
}

// badParameter asks with a value that is not of its parameter's type: the
// answer is an error or a plan, but the policy lives on.
func (s *suite) badParameter(t *testing.T, d *policy.Description) {
	i := slices.IndexFunc(d.GetParameters(), func(p *policy.Parameter) bool { return p.GetType() != policy.TypeString })
	name := "no such parameter"
	if i >= 0 {
		name = d.GetParameters()[i].GetName()
	}
	ctx, cancel := context.WithTimeout(t.Context(), s.o.Budget)
	defer cancel()
	snapshot := &policy.Snapshot{Revision: 1, Parameters: map[string]string{name: "no value of its type"}}
	if _, err := s.first.Plan(ctx, snapshot, policy.NoEvaluation{}); err != nil {
		t.Logf("the policy says: %v", err)
	}
	s.empty(t)
}

// Process starts an executable as a policy and stops it when the test ends.
func Process(t *testing.T, path string, args ...string) policy.Policy {
	t.Helper()
	config := policy.ClientConfig()
	config.Cmd = exec.CommandContext(context.Background(), path, args...) // t.Context ends before the cleanup
	config.Logger = hclog.NewNullLogger()
	client := plugin.NewClient(config)
	t.Cleanup(client.Kill)
	protocol, err := client.Client()
	require.NoError(t, err, "starting %s", path)
	raw, err := protocol.Dispense(policy.PluginName)
	require.NoError(t, err)
	p, ok := raw.(policy.Policy)
	require.True(t, ok, "go-plugin dispensed a %T", raw)
	return p
}
