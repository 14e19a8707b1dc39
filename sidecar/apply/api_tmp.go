package apply

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.etcd.io/bbolt"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Target is a state to reach: a plan, the snapshot that it answers and the repository revision whose files it serves.
type Target struct {
	Snapshot *policy.Snapshot
	Plan     *policy.Plan
	Revision *repo.Revision
	// Author and Reason are written to the journal and into events.
	Author, Reason string
}

// Repository is where model files come from; a *repo.Store is one.
type Repository interface {
	Get(id string) (*repo.Revision, error)
	Stage(ctx context.Context, revision string, models []string, dir string) error
	Unstage(ctx context.Context, dir string, models ...string) error
}

// Drainer waits until the request path has nothing in flight on a partition that the route table no longer names.
type Drainer interface {
	WaitIdle(ctx context.Context, partition string) error
}

// Recorder takes the times that warm-up measured.
type Recorder interface {
	Record(model, gpuType string, threadPercentage uint32, samples []warmup.Sample)
}

// StepKind is what a step does: a stable word for events and metrics.
type StepKind string

// Kinds of step, in the order in which they run.
const (
	StepStage  StepKind = "stage"
	StepStart  StepKind = "start"
	StepLoad   StepKind = "load"
	StepWarmUp StepKind = "warm_up"
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

// Result is what an apply did.
type Result struct {
	Steps    []StepEvent
	Duration time.Duration
	// Warnings are what could not be cleaned up after the swap.
	Warnings []string
}

// PartitionState is a partition of the serving plan.
type PartitionState struct {
	ID       string
	Endpoint driver.Endpoint
	Up       bool
	Reason   string
	Restarts int
	Models   []string
	// Missing are models that did not load again after a restart.
	Missing []string
	// SharesEnforced and ShareReason say whether MPS holds the process to its share.
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

// StepError says which step failed; what was done before it has been undone.
type StepError struct {
	StepEvent
}

// Error names the step.
func (e *StepError) Error() string { return "" }

// Unwrap is the step's own error.
func (e *StepError) Unwrap() error { return e.Err }

// Options of New.
type Options struct {
	// Dir is where partitions have their repository directories; on the file system of the repository's store.
	Dir string
	// DB keeps the journal, in buckets of its own.
	DB         *bbolt.DB
	Driver     driver.Driver
	Repository Repository
	Router     Router
	Drainer    Drainer
	// Recorder may be nil.
	Recorder Recorder
	// OnStep is told of every step that ended, OnPartition of every death and return of a partition's server (after the route table is right). Both may be nil and must not call the Applier.
	OnStep      func(StepEvent)
	OnPartition func(driver.Event)
	Now         func() time.Time
	Logger      *slog.Logger
	// DrainTimeout bounds the wait for requests in flight (30s), WarmUp the whole of one model's warm-up (5s).
	DrainTimeout, WarmUp time.Duration
}

// Applier holds the serving state. One apply runs at a time; the others wait.
type Applier struct{}

var errUnfinished = errors.New("being written")

// New makes an applier that serves nothing yet.
func New(o Options) (*Applier, error) { return nil, errUnfinished }

// Interrupted is an apply that a crash cut off.
type Interrupted struct {
	Started time.Time
	// Steps that had begun; Last is the last of them.
	Steps  int
	Last   string
	Author string
	Reason string
}

// Resumed is what the journal held.
type Resumed struct {
	// Target is the last that served; nil at the very first start. Its revision is the one it was applied with.
	Target *Target
	// Interrupted is nil after a clean end.
	Interrupted *Interrupted
}

// Resume reads the journal and removes what a crash left behind. Call it once, before the first Apply; then apply Resumed.Target (or a newer plan) with a diff from nil.
func (a *Applier) Resume(ctx context.Context) (*Resumed, error) { return nil, errUnfinished }

// Apply takes the serving state to the target. On error the old state still serves.
func (a *Applier) Apply(ctx context.Context, t Target, d *plan.Diff) (*Result, error) {
	return nil, errUnfinished
}

// Current is what serves; nil before the first Apply.
func (a *Applier) Current() *Target { return nil }

// Partitions are those that serve, sorted by id.
func (a *Applier) Partitions() []PartitionState { return nil }

// Close stops every process, draining them as long as ctx allows.
func (a *Applier) Close(ctx context.Context) error { return nil }
