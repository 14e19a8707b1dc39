// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/bbolt"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/mps"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// Target is a state to reach: a plan, the snapshot that it answers and the
// repository revision whose files it serves.
type Target struct {
	Snapshot *policy.Snapshot
	Plan     *policy.Plan
	Revision *repo.Revision
	// Given: the servers serve this already by somebody else's hand. Models are
	// adopted as they are; nothing is staged, loaded, warmed up or unloaded.
	Given bool
	// PassThrough says why every request is forwarded alone and at once, whatever
	// the plan says of dispatch; empty where it is not.
	PassThrough string
	// Author and Reason are written to the journal.
	Author, Reason string
}

// Repository is where model files come from; a *repo.Store is one.
type Repository interface {
	Get(id string) (*repo.Revision, error)
	Stage(ctx context.Context, revision string, models []string, dir string) error
	Unstage(ctx context.Context, dir string, models ...string) error
}

// Router is the request path; a *dispatch.Dispatcher is one. Its methods are
// called one at a time.
type Router interface {
	// Swap replaces the route table and returns at once.
	Swap(ctx context.Context, t *router.Table) error
	// Drained is closed when nothing runs any more for the model (for any, if empty)
	// on a partition that the table in force does not place it on.
	Drained(partition, model string) <-chan struct{}
	SetPartitionState(id string, up bool, reason string)
}

// Recorder takes the times that a warm-up measured.
type Recorder interface {
	Record(model, gpuType string, threadPercentage uint32, samples []warmup.Sample)
}

// WarmUp runs a model's first requests; warmup.Run is one.
type WarmUp func(ctx context.Context, address string, c *tritonpb.ModelConfig, o warmup.Options) (warmup.Result, error)

// StepKind is what a step does: a stable word for events and metrics.
type StepKind string

// Kinds of step, in the order in which they run.
const (
	StepStage  StepKind = "stage"
	StepStart  StepKind = "start"
	StepLoad   StepKind = "load"
	StepWarmUp StepKind = "warm_up"
	// StepSettings tells a server what clients have set on all of them before.
	StepSettings StepKind = "settings"
	// StepNarrow makes the old route table safe for both old and new files.
	StepNarrow StepKind = "narrow"
	StepReload StepKind = "reload"
	StepSwap   StepKind = "swap"
	StepDrain  StepKind = "drain"
	StepUnload StepKind = "unload"
	StepStop   StepKind = "stop"
)

// StepEvent is a step that has ended.
type StepEvent struct {
	Kind             StepKind
	Partition, Model string
	Start            time.Time
	Duration         time.Duration
	// Undo is set where the step was taken back.
	Undo bool
	Err  error
	// Text is a remark, such as why a model was not measured.
	Text string
}

// name is the step in a few words.
func (e StepEvent) name() string {
	switch {
	case e.Model != "" && e.Partition != "":
		return fmt.Sprintf("%s %s on %s", e.Kind, e.Model, e.Partition)
	case e.Partition != "":
		return fmt.Sprintf("%s %s", e.Kind, e.Partition)
	}
	return string(e.Kind)
}

// Result is what an apply did.
type Result struct {
	// Steps are in the order in which they ended.
	Steps    []StepEvent
	Duration time.Duration
	// Warnings are what could not be cleaned up.
	Warnings []string
}

// PartitionState is a partition that serves.
type PartitionState struct {
	ID       string
	Endpoint driver.Endpoint
	Up       bool
	// Reason says why it is down, or why it was.
	Reason   string
	Restarts int
	// Models are those loaded, sorted.
	Models []string
	// Missing are models that did not load again after a restart.
	Missing []string
	// SharesEnforced says whether MPS holds the process to its share; ShareReason
	// why not.
	SharesEnforced bool
	ShareReason    string
}

// Errors of Apply; test with errors.Is.
var (
	// ErrStale: the diff starts from another plan than the one that serves.
	ErrStale = errors.New("the diff does not start from the serving plan")
	// ErrClosed: the applier was closed.
	ErrClosed = errors.New("the applier is closed")
)

// StepError says which step failed. What was done before it has been undone.
type StepError struct{ StepEvent }

// Error names the step and the reason.
func (e *StepError) Error() string { return fmt.Sprintf("step %q failed: %v", e.name(), e.Err) }

// Unwrap is the step's own error.
func (e *StepError) Unwrap() error { return e.Err }

// Options of New. Recorder, OnStep, OnPartition, Settings, WarmUp, Now and Logger may be
// nil.
type Options struct {
	// Dir is where partitions have their repository directories. It is the
	// applier's alone, and should be on the file system of the repository's store,
	// so that files can be linked.
	Dir string
	// DB keeps the journal, in buckets of its own.
	DB         *bbolt.DB
	Driver     driver.Driver
	Repository Repository
	Router     Router
	Recorder   Recorder
	// WarmUp is warmup.Run unless given.
	WarmUp WarmUp
	// MPS is the daemon of this machine, for PartitionState.
	MPS mps.Daemon
	// OnStep is told of every step that ended. OnPartition is told of every death
	// and return of a serving partition's server, after the request path was.
	// Neither may call the Applier's Apply or Close.
	OnStep      func(StepEvent)
	OnPartition func(driver.Event)
	// Settings tells the server at an endpoint what clients have set before, once it
	// has its models and before it gets requests; it may be nil.
	Settings func(ctx context.Context, at driver.Endpoint) error
	Now      func() time.Time
	Logger   *slog.Logger
	// DrainTimeout bounds the wait for requests in flight (0 means 30s), StopTimeout
	// the end of one server (30s), WarmUpBudget the warm-up of one model (5s).
	DrainTimeout, StopTimeout, WarmUpBudget time.Duration
	// SettingsTimeout bounds Settings of one server; 0 means 5s.
	SettingsTimeout time.Duration
	// Parallel bounds the steps of one kind that run at a time; 0 means 4.
	Parallel int
}
