// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package try runs a policy on snapshots as conch does, without a conch: it resolves parameters, checks needs, asks the policy, judges its
// answer with the host's own rules, explains it, and simulates what would become of it. `tritonctl policy try` shows the outcome to the
// author of a policy.
package try

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/builtin"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/plan"
	"github.com/conch-serving/conch/sidecar/policyhost"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// Options say what to run. The zero value is the built-in policy with its defaults, and no outcome.
type Options struct {
	// Policy by name; with Executable it only names that.
	Policy string
	// Parameters win over those of a snapshot, which win over the policy's defaults. Of a snapshot's those count that the policy knows: it may
	// have been recorded under another one.
	Parameters map[string]string
	// Executable of a third-party policy, run as a process; empty: a built-in one in this process.
	Executable string
	// Deadline of one plan of an executable; 0: the host's default.
	Deadline time.Duration
	// Evaluations that the policy may ask for; 0 leaves what the snapshot says.
	Evaluations uint32
	// Length of the traffic that is generated where the snapshot or Traffic say nothing; 0: the default.
	Length time.Duration
	// Traffic that was recorded; nil: generated.
	Traffic *evaluate.Traffic
	// Outcome asks for the simulation of the plan.
	Outcome bool
}

// Trial is the result of one snapshot.
type Trial struct {
	Revision uint64          `json:"revision"`
	Policy   string          `json:"policy"`
	Version  string          `json:"version,omitempty"`
	Took     time.Duration   `json:"-"`
	TookUS   int64           `json:"took_us"`
	Error    string          `json:"error,omitempty"`
	Plan     *policy.Plan    `json:"-"`
	Outcome  *policy.Outcome `json:"-"`
	// Violations are the host's; such a plan is not applied.
	Violations []string `json:"violations,omitempty"`
	// Change is what the plan costs where another is in force; nil where none is.
	Change *Change `json:"change,omitempty"`
	// Explain says, per model, where it is and why.
	Explain []string `json:"-"`
}

// Change is what has to be done from the snapshot's plan in force to another, by the difference that conch would apply.
type Change struct {
	// Loads are models that are loaded somewhere, LoadSeconds what these take one after the other as far as models say.
	Loads       int     `json:"loads"`
	LoadSeconds float64 `json:"load_seconds"`
	// Stops are partitions that end or get another process.
	Stops int `json:"stops"`
}

// changed is the change from the plan in force; nil where there is none.
func changed(s *policy.Snapshot, to *policy.Plan) *Change {
	if len(s.GetCurrent().GetPartitions()) == 0 {
		return nil
	}
	d := plan.Compute(s.GetCurrent(), to)
	c := &Change{Loads: len(d.Loads), Stops: len(d.Stop) + len(d.Replace)}
	x := policy.NewIndex(s)
	for _, l := range d.Loads {
		m := x.Model(l.Instance.GetModel())
		c.LoadSeconds += cmp.Or(m.GetChangeCost().GetSeconds(), m.GetLoadSeconds(), s.GetChangeCost().GetDefaultLoadSeconds())
	}
	return c
}

// Session is a policy that is open.
type Session struct {
	o         Options
	policy    sim.Policy
	evaluator *evaluate.InProcess
	host      *policyhost.Host
	// known are the names of the policy's parameters, used what it is open with.
	known map[string]bool
	used  map[string]string
}

// Open starts the policy and checks its parameters.
func Open(ctx context.Context, o Options) (*Session, error) {
	s := &Session{o: o, evaluator: &evaluate.InProcess{Recorded: o.Traffic}, known: make(map[string]bool)}
	if err := s.open(ctx, o.Parameters); err != nil {
		return nil, err
	}
	d, err := s.describe(ctx)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	for _, p := range d.GetParameters() {
		s.known[p.GetName()] = true
	}
	return s, nil
}

func (s *Session) open(ctx context.Context, parameters map[string]string) error {
	named := &scenario.Policy{Name: s.o.Policy, Parameters: parameters}
	s.used = parameters
	if s.o.Executable == "" {
		var err error
		s.policy, err = named.InProcessWith(ctx, s.evaluator)
		return err
	}
	host, err := named.InProcesses(ctx, policyhost.Options{Evaluator: s.evaluator, Budget: s.o.Deadline}, &policyhost.Executable{Path: s.o.Executable})
	if err != nil {
		return err
	}
	s.policy, s.host = host, host
	return nil
}

func (s *Session) describe(ctx context.Context) (*policy.Description, error) {
	if s.host != nil {
		return s.host.Status().Description, nil
	}
	made, _ := builtin.New(s.o.Policy) // it was opened
	return made.Describe(ctx)
}

// parametrise opens the policy anew where a snapshot's parameters are others than it is open with.
func (s *Session) parametrise(ctx context.Context, snapshot *policy.Snapshot) error {
	parameters := make(map[string]string)
	for name, value := range snapshot.GetParameters() {
		if s.known[name] {
			parameters[name] = value
		}
	}
	maps.Copy(parameters, s.o.Parameters)
	if maps.Equal(parameters, s.used) {
		return nil
	}
	return errors.Join(s.Close(), s.open(ctx, parameters))
}

// Close stops the policy.
func (s *Session) Close() error {
	if s.host == nil {
		return nil
	}
	return s.host.Close()
}

// Run asks the policy about one snapshot. What the policy does wrong is in the trial; an error means that ctx ended.
func (s *Session) Run(ctx context.Context, given *policy.Snapshot) (*Trial, error) {
	snapshot := proto.CloneOf(given)
	if s.o.Traffic != nil {
		snapshot.Traffic = s.o.Traffic.Describe()
	} else if snapshot.GetTraffic().GetSource() != evaluate.SourceGenerated || s.o.Length > 0 {
		snapshot.Traffic = evaluate.Promise(snapshot, s.o.Length)
	}
	if s.o.Evaluations > 0 {
		snapshot.Evaluations = s.o.Evaluations
	}
	t := &Trial{Revision: snapshot.GetRevision(), Policy: s.o.Policy}
	if err := s.parametrise(ctx, snapshot); err != nil {
		t.Error = "the parameters of the snapshot: " + err.Error()
		return t, nil //nolint:nilerr // the trial's outcome
	}
	began := time.Now()
	answer, err := s.policy.Plan(ctx, snapshot)
	t.Took = time.Since(began)
	t.TookUS = t.Took.Microseconds()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		t.Error = err.Error()
		return t, nil //nolint:nilerr // the trial's outcome
	}
	t.Plan, t.Policy, t.Version = answer, answer.GetPolicy(), answer.GetPolicyVersion()
	t.Change = changed(snapshot, answer)
	for _, v := range plan.Validate(snapshot, answer) {
		t.Violations = append(t.Violations, v.String())
	}
	if s.o.Outcome && len(t.Violations) == 0 {
		outcomes, err := s.evaluator.Evaluate(ctx, snapshot, []*policy.Plan{answer})
		if err != nil {
			return nil, err
		}
		t.Outcome = outcomes[0]
	}
	return t, nil
}

// Explained is [Session.Run] with the plan explained model by model.
func (s *Session) Explained(ctx context.Context, given *policy.Snapshot) (*Trial, error) {
	t, err := s.Run(ctx, given)
	if err != nil || t.Plan == nil {
		return t, err
	}
	for _, m := range given.GetModels() {
		e, err := plan.Explain(given, t.Plan, m.GetName())
		if err != nil {
			return nil, err
		}
		t.Explain = append(t.Explain, e.Text())
	}
	return t, nil
}

// ErrSnapshot is wrapped by what is wrong with a snapshot file.
var ErrSnapshot = errors.New("snapshot")

// ReadSnapshot reads a snapshot as `tritonctl record --snapshot` writes it: JSON, or protobuf as bytes.
func ReadSnapshot(path string) (*policy.Snapshot, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s, err := Decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Decode reads a snapshot from JSON or protobuf bytes.
func Decode(data []byte) (*policy.Snapshot, error) {
	s := &policy.Snapshot{}
	for _, b := range data {
		switch b {
		case ' ', '\t', '\r', '\n':
			continue
		case '{':
			if err := protojson.Unmarshal(data, s); err != nil {
				return nil, fmt.Errorf("%w: JSON: %w", ErrSnapshot, err)
			}
			return s, nil
		}
		break
	}
	if err := proto.Unmarshal(data, s); err != nil || proto.Size(s) == 0 {
		return nil, fmt.Errorf("%w: neither JSON nor the protobuf message conch.policy.v2.Snapshot; tritonctl record --snapshot FILE writes one", ErrSnapshot)
	}
	return s, nil
}
