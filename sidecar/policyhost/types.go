// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost

import (
	"log/slog"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/policyhost/confine"
)

// Ref says which policy to use and with which parameters.
type Ref struct {
	// Name is what conch.yaml, events and `policy ls` call it.
	Name string
	// Executable is set for a third-party policy. Nil: Options.Policies is asked,
	// then the built-in policies.
	Executable *Executable
	// Parameters are set over the policy's own defaults.
	Parameters map[string]string
}

// Executable is a policy's program.
type Executable struct {
	// Path of the program.
	Path string
	// Args are passed to it.
	Args []string
	// SHA256 in hex, 64 characters, pins the file's content; empty: not pinned.
	SHA256 string
	// Env are further NAME=value pairs of its environment, which otherwise holds
	// only PATH, HOME, LANG, TMPDIR and what the handshake needs.
	Env []string
}

// Options of [New]. Zero values take the defaults.
type Options struct {
	// Builtins is the path of conch-policies, see [Beside]. Empty: there are no
	// built-in policies.
	Builtins string
	// BuiltinsSHA256 pins it, as [Executable.SHA256] does; empty: not pinned.
	BuiltinsSHA256 string
	// Policies are the third-party policies by name.
	Policies map[string]Executable
	// Check judges a plan before it counts as good; its error is found in what
	// Plan returns. Nil accepts every plan that answers its snapshot.
	Check func(*policy.Snapshot, *policy.Plan) error
	// Evaluator answers what policies ask with policy.Host.Evaluate; nil: nothing is
	// evaluated, and a snapshot's evaluations are 0.
	Evaluator Evaluator
	// Now is the clock of back-off and breaker; default time.Now.
	Now func() time.Time
	// Logger gets the host's own lines and those of the policy; default: none.
	Logger *slog.Logger
	// OnEvent is called with what happens. It is called synchronously and must not call
	// back into the host.
	OnEvent func(Event)
	// StartTimeout bounds the start of a process up to its handshake; default 10s.
	StartTimeout time.Duration
	// Budget is the planning time of a snapshot that names none; default 1s.
	Budget time.Duration
	// Grace is added to the budget before a call counts as hung; default 250ms.
	Grace time.Duration
	// EvaluationTime bounds all that Evaluator does for one plan; default 1 minute.
	EvaluationTime time.Duration
	// Launcher is the program, with its first arguments, that confines policies
	// (confine.Main); empty: they are not confined. Limits are what they may use.
	Launcher []string
	Limits   confine.Limits
	// MaxAnswerBytes bounds an answer; default 16 MiB.
	MaxAnswerBytes int
	// BackoffMin and BackoffMax bound the delay before a dead process is started
	// again: min, 2 min, 4 min ... max; default 500ms and 1 minute.
	BackoffMin, BackoffMax time.Duration
	// BreakerFailures in a row open the breaker; default 5.
	BreakerFailures int
	// BreakerOpen is how long it stays open before one trial; doubled with every
	// failed trial up to BreakerOpenMax; default 30s and 10 minutes.
	BreakerOpen, BreakerOpenMax time.Duration
}

// EventKind is the kind of an Event: a stable word for metrics and the API.
type EventKind string

// What a host reports.
const (
	EventStarted         EventKind = "started"
	EventStopped         EventKind = "stopped"
	EventSwapped         EventKind = "swapped"
	EventSwapFailed      EventKind = "swap_failed"
	EventCallFailed      EventKind = "call_failed"
	EventStartFailed     EventKind = "start_failed"
	EventBreakerOpened   EventKind = "breaker_opened"
	EventBreakerHalfOpen EventKind = "breaker_half_open"
	EventBreakerClosed   EventKind = "breaker_closed"
)

// Event is something that happened to the policy in use.
type Event struct {
	Time   time.Time
	Kind   EventKind
	Policy string
	// Text is a sentence for a person.
	Text string
	// Err is the failure, nil where there was none.
	Err error
}

// Breaker is the state of the circuit breaker.
type Breaker string

// States of the circuit breaker.
const (
	BreakerClosed   Breaker = "closed"
	BreakerOpen     Breaker = "open"
	BreakerHalfOpen Breaker = "half_open"
)

// State is what the process of the policy in use does.
type State string

// States of a process.
const (
	// StateNone: no policy is in use.
	StateNone State = "none"
	// StateRunning: the process is up.
	StateRunning State = "running"
	// StateDown: the process is dead and will be started by a later call.
	StateDown State = "down"
)

// Status is the state of the policy in use, as `tritonctl policy ls` shows it.
type Status struct {
	Name        string
	Description *policy.Description
	Parameters  map[string]string
	State       State
	PID         int
	Since       time.Time
	Breaker     Breaker
	// Failures in a row, and Restarts since the policy came into use.
	Failures, Restarts int
	// Plans answered and accepted since the policy came into use.
	Plans int
	// RetryAt is when a call will be tried again; zero: now.
	RetryAt   time.Time
	LastError string
	// LastPlan is when the last good plan came and LastDuration what it took.
	LastPlan     time.Time
	LastDuration time.Duration
}

// Known is a policy that could be used.
type Known struct {
	Name    string
	Builtin bool
	Path    string
	InUse   bool
}
