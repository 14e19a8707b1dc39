// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/mps"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// Desired is one generation of the desired state. It is immutable once it was
// given to Set.
type Desired struct {
	// Generation is numbered by Set.
	Generation uint64
	// Number is the plan's own, under which operators know it; it is kept with it.
	Number uint64
	// Plan is the answer to Snapshot; Revision has the files that it serves.
	Snapshot *policy.Snapshot
	Plan     *policy.Plan
	Revision *repo.Revision
	// Given: the servers serve this already, loaded by their own operator. Models are
	// followed as they are; nothing is staged, loaded, warmed up or unloaded.
	Given bool
	// PassThrough says why every request is forwarded alone and at once, whatever
	// the plan says of dispatch; empty where it is not.
	PassThrough string
	// Author and Reason are kept with it, and when it was set.
	Author, Reason string
	Time           time.Time
}

// Repository is where model files come from; a *repo.Store is one.
type Repository interface {
	Get(id string) (*repo.Revision, error)
	Stage(ctx context.Context, revision string, models []string, dir string) error
	Unstage(ctx context.Context, dir string, models ...string) error
}

// Router is the request path; a *dispatch.Dispatcher is one.
type Router interface {
	// Swap replaces the route table and returns at once.
	Swap(ctx context.Context, t *router.Table) error
	// Drained is closed once nothing runs for the model (for any, if empty) on a
	// partition that the table in force does not place it on.
	Drained(partition, model string) <-chan struct{}
	SetPartitionState(id string, up bool, reason string)
}

// Recorder takes the times that a warm-up measured.
type Recorder interface {
	Record(model, gpuType string, threadPercentage uint32, samples []warmup.Sample)
}

// WarmUp runs a model's first requests on the server at an address and measures its batches; warmup.Run is the implementation.
type WarmUp func(ctx context.Context, address string, c *tritonpb.ModelConfig, o warmup.Options) (warmup.Result, error)

// Action is something that was done.
type Action struct {
	Kind             decide.Kind
	Partition, Model string
	Start            time.Time
	Duration         time.Duration
	// Err is why it failed; it wraps context.Canceled where it was superseded.
	Err error
	// Text is a remark, such as why a model was not measured.
	Text string
}

// Condition says how far desired and observed state are apart for a partition or
// an instance, since when and why.
type Condition struct {
	decide.Condition
	Since time.Time
	// Err is the server's own refusal, where it is one.
	Err error
}

// Observed is what is there, beside what is not as it should be.
type Observed struct {
	// Generation of the desired state that it is compared with; 0 before the first.
	Generation uint64
	// Settled: every wanted instance is routed to, or has failed.
	Settled    bool
	Partitions []PartitionState
	Conditions []Condition
}

// PartitionState is a partition that is wanted, or an old server of one that
// still runs.
type PartitionState struct {
	ID       string
	Endpoint driver.Endpoint
	Up       bool
	// Reason says why it is down, or why it was.
	Reason   string
	Restarts int
	// Models are those that it serves, Missing those that it should and does not,
	// both sorted.
	Models, Missing []string
	// Retiring: an old server, which serves until enough new places are ready and
	// goes then.
	Retiring bool
	// Log is the file that has the server's output; empty where there is none.
	Log string
	// Begin is when the server started.
	Begin time.Time
	// Executions is how many batches it executes at once.
	Executions int
	// SharesEnforced says whether MPS holds the process to its share; ShareReason
	// why not.
	SharesEnforced bool
	ShareReason    string
}

// Errors; test with errors.Is.
var (
	// ErrConflict: another generation is desired than the caller saw.
	ErrConflict = errors.New("the desired state is another by now")
	// ErrSuperseded: a newer generation was set.
	ErrSuperseded = errors.New("a newer desired state was set")
	// ErrUnsupported: the plan holds what this build cannot serve.
	ErrUnsupported = errors.New("this build cannot serve that")
	// ErrClosed: the reconciler was closed.
	ErrClosed = errors.New("the reconciler is closed")
	// ErrNotOurs: the server is run by others.
	ErrNotOurs = errors.New("its server is run by others, who start it anew")
)

// StartError says why the server of a partition does not start, or stay.
type StartError struct{ Partition, Reason string }

// Error names the partition and the reason.
func (e *StartError) Error() string { return "partition " + e.Partition + ": " + e.Reason }

// Options of New. Recorder, OnAction, OnPartition, Settings, WarmUp and
// Logger may be nil; zero times take the defaults.
type Options struct {
	// Dir is where partitions have their repository directories. It is the
	// reconciler's alone, and should be on the file system of the repository's store.
	Dir string
	// Store keeps the desired state.
	Store      Store
	Driver     driver.Driver
	Repository Repository
	Router     Router
	Recorder   Recorder
	// WarmUp is warmup.Run unless given.
	WarmUp WarmUp
	// MPS is the daemon of this machine, for PartitionState.
	MPS mps.Daemon
	// OnAction is called with every action that ended, and OnPartition with every death and
	// return of a wanted partition's server.
	// The loop calls them: they must neither wait nor call the Reconciler.
	OnAction    func(Action)
	OnPartition func(driver.Event)
	// Faulted asks MPS whether a client of its has made a GPU fault (mps.Daemon's);
	// nil where there is no MPS. OnFault is called with each fault, and of the partitions
	// whose servers are started again for it.
	Faulted func(context.Context) (bool, error)
	OnFault func(partitions []string)
	// OnTakeOver is called in Start, if servers of an earlier conch were found.
	OnTakeOver func(TakeOver)
	// OnGroupFault is called with each merge group that is taken out of the table because its executions fail, as OnAction is.
	OnGroupFault func(GroupFault)
	// Settings passes the settings that clients have made before to the server at an
	// endpoint. It is called when the server has started and when it has loaded a model.
	Settings func(ctx context.Context, at driver.Endpoint) error
	// Fence returns an error while servers are not this conch's to change: nothing is begun then, what was begun asks once more before it loads or unloads, and
	// what fails meanwhile is no failure of a model's or a server's. Nil: they always are.
	Fence  func() error
	Logger *slog.Logger
	// LoadTimeout bounds one load (0 means 5m), DrainTimeout the wait for requests in
	// flight (30s), StopTimeout the end of one server (30s), SettingsTimeout one call
	// of Settings (5s).
	LoadTimeout, DrainTimeout, StopTimeout, SettingsTimeout time.Duration
	// WarmUpBudget is how long models of one GPU are measured before they serve, all
	// of them together (5s); what finds it used up serves after one request.
	WarmUpBudget time.Duration
	// Executions is how many batches a server executes at once that does not say so itself (1).
	Executions int
	// Health says how often servers are looked at.
	Health driver.Health
	// Backoff says when what failed is tried again.
	Backoff Backoff
	// ParallelLoads bounds the loads of one server at a time (3): each instance of the
	// python backend is a process that must come up within a time that the server
	// sets, and of many that start together one is late on a busy machine.
	ParallelLoads int
}

// TakeOver is what was found of an earlier conch's servers, by partition. Kept are those that serve on, Unwanted those that the desired state has
// not and that end once it does not need them, Missing those that it has and that are started anew.
type TakeOver struct {
	Kept, Unwanted, Missing []string
}
