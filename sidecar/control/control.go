// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/conditions"
	"github.com/conch-serving/conch/sidecar/control/estimates"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/history"
	"github.com/conch-serving/conch/sidecar/control/merging"
	"github.com/conch-serving/conch/sidecar/control/orders"
	"github.com/conch-serving/conch/sidecar/control/planner"
	"github.com/conch-serving/conch/sidecar/control/snapshot"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/observe"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Reconciler brings the desired state about and keeps it; an *apply.Reconciler is
// one.
type Reconciler interface {
	Start(ctx context.Context) (*apply.Desired, error)
	Set(ctx context.Context, d apply.Desired, ifGeneration uint64) (uint64, error)
	Settle(ctx context.Context, generation uint64, models ...string) error
	Retry(models ...string)
	StartAnew(partition, reason string) error
	BreakFirst(present, next *policy.Plan, s *policy.Snapshot) []string
	Observed() apply.Observed
}

// Repository keeps model files; a *repo.Store is one.
type Repository interface {
	ImportReporting(ctx context.Context, dir string, by repo.Origin, progress func(repo.Progress)) (*repo.Revision, error)
	Load(ctx context.Context, onto, dir string, o repo.Order, by repo.Origin) (*repo.Revision, error)
	Unload(ctx context.Context, onto string, models []string, by repo.Origin) (*repo.Revision, error)
	Rollback(ctx context.Context, id string, by repo.Origin) (*repo.Revision, error)
	Withdraw(ctx context.Context, id string) error
	Revert(ctx context.Context, onto, order, before string, by repo.Origin) (*repo.Revision, error)
	Current() (*repo.Revision, error)
	Count() (int, error)
	Log(limit int) ([]*repo.Revision, error)
	Derive(ctx context.Context, dir string, d repo.Derivation, by repo.Origin) (*repo.Revision, error)
	Compare(from, to string) (*repo.Comparison, error)
	Collect(ctx context.Context, r repo.Retention) (repo.Collected, error)
	Verify(ctx context.Context, mend bool) (repo.Verification, error)
	ReadFile(revision, model, path string) ([]byte, error)
}

// Requests is the request path as far as planning needs it; a
// *dispatch.Dispatcher is one.
type Requests interface {
	SetProfile(p *policy.Profile)
	Counts(model string) (dispatch.ModelCounts, bool)
	// LeaveEnsembles sets which ensembles are left to Triton; Ensemble says in how many steps Conch executes one, or why it does not.
	LeaveEnsembles(names []string)
	Ensemble(model string) (steps int, reason string, ok bool)
	// Pipeline are the steps of an ensemble that Conch executes, each after those whose results it takes; none for any other name.
	Pipeline(model string) []dispatch.Step
	// Ready is the error that requests get before the first routes are in force; nil after it.
	Ready() error
	Draining() bool
	// Unhealthy lists the places whose executions fail.
	Unhealthy() []router.PlaceHealth
	// Wanted lists the models that load on demand, are not loaded and have requests
	// under way; FailLoad ends the wait of those requests and says why.
	Wanted() []string
	FailLoad(model, why string)
}

// Clock is the time that the loop lives in.
type Clock interface {
	Now() time.Time
	// After fires once, d from now.
	After(d time.Duration) <-chan time.Time
}

// SystemClock is real time, and virtual time inside testing/synctest.
func SystemClock() Clock { return systemClock{} }

type systemClock struct{}

func (systemClock) Now() time.Time                         { return time.Now() }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Options of New. Nothing may be nil but where it says so, Logger and Clock.
type Options struct {
	// Config is provisioned and valid.
	Config *config.Config
	// Nodes are the machines with their GPUs, as they are now; NodesChanged says that they are others than before.
	Nodes      func() []*policy.Node
	Repository Repository
	// Attached is nil unless others run the servers.
	Attached Attached
	Requests Requests
	Recorder *observe.Recorder
	Metrics  *observe.PlanMetrics
	// Store keeps events, orders, plans, their numbers and what was learnt.
	Store store.Store
	// Told is called with every event as the log has it; it must not wait, and may be nil.
	Told func(api.Event)
	// WantGPUs is called with how many GPUs of each type the load wants, each time that it is weighed; nil while there is nothing to judge by. It must not wait, and may
	// be nil.
	WantGPUs func(map[string]int)
	// Cluster says since when the API server of the cluster that has the servers of a release is silent, and how that shows; zero while it answers. The release is empty without a
	// cluster. It must not wait, and may be nil.
	Cluster func() (release string, silent time.Time, cause string)
	// Policies and Reconciler make the two parts that call back.
	Policies   func(Hooks) (planner.Host, error)
	Reconciler func(Hooks) (Reconciler, error)
	// Evaluator weighs plans before they are applied; nil: only consent counts.
	Evaluator Evaluator
	// Estimates of the repository's models; nil: nothing is estimated.
	Estimates *estimates.Book
	// Groups makes merge groups; nil: there are none.
	Groups *merging.Book
	// CheckDispatch says why the request path would refuse a plan's dispatch
	// entry; it may be nil.
	CheckDispatch func(*policy.Dispatch) error
	Clock         Clock
	Logger        *slog.Logger
	Version       api.Version
}

// Control is the plan way. Make it with New, start it with Run.
type Control struct {
	nodes      func() []*policy.Node
	repository Repository
	attached   Attached
	requests   Requests
	recorder   *observe.Recorder
	metrics    *observe.PlanMetrics
	store      store.Store
	policies   planner.Host
	evaluator  Evaluator
	reconciler Reconciler
	clock      Clock
	log        *slog.Logger
	version    api.Version
	told       func(api.Event)
	wantGPUs   func(map[string]int)
	cluster    func() (release string, silent time.Time, cause string)
	events     *events.Log
	conditions conditions.Tracker
	orders     *orders.Store
	plans      *history.Store
	checks     []plan.DispatchCheck
	estimates  *estimates.Book
	groups     *merging.Book // nil: nothing is merged
	// estimateOff remembers which estimates were reported as off; it belongs to the loop.
	estimateOff estimates.Watch

	// hurry ends the wait of a caller for servers: another caller wants to plan.
	hurry chan struct{}
	// waiting counts the callers that wait for their turn to plan.
	waiting atomic.Int64
	// settling: the caller that plans has desired its plan, and waits for the servers.
	settling atomic.Bool
	// planning is held by the caller that plans, imports or swaps the policy: one at a
	// time, waiting with a context.
	planning chan struct{}
	// wake makes the loop look at what happened; the reasons are in alarms.
	wake chan struct{}
	// generation of the desired state; it belongs to the holder of planning.
	generation uint64
	// tails are orders that were answered before they ended.
	tails sync.WaitGroup
	// rejected is the plan that Check refused last, for the operator to look at;
	// it belongs to the holder of planning.
	rejected *policy.Plan

	mu       sync.Mutex
	config   *config.Config
	snapshot uint64
	serving  serving
	// servedBefore is the repository revision that served before the one that does.
	servedBefore string
	// before is the number of the last plan before this process.
	before uint64
	// policyBefore is the policy under which it came to be.
	policyBefore string
	// revision of the repository that the next plan is for.
	files *repo.Revision
	// grids are the profiles that files declare, of those models.
	grids snapshot.Grids
	// misfit are variants of apps that are none, of those models.
	misfit snapshot.Misfits
	// wanted are the variants that do not run and were asked for, by app and model.
	wanted map[string]wanted
	// history of the models' rates.
	history snapshot.History
	// alarms are reasons to plan that need no threshold.
	alarms []string
	// urgent: one of them waits for nothing; byOrder: an operator's order is among them.
	urgent, byOrder bool
	// loads are the seconds that models took to load last, by name, and starts
	// those of a partition.
	loads  map[string]float64
	starts float64
	// loadedAt is when models were loaded last, by name, and began when this loop was
	// made.
	loadedAt map[string]time.Time
	began    time.Time
	demand   demand
	// rates are those that the last plan was made for.
	rates map[string]float64
	// advice is what the load of late says about the number of GPUs.
	advice GPUAdvice
	// spent is what the actions since the last plan took, by kind.
	spent map[string]time.Duration
	// starting is why the loop has nothing to serve yet; empty once it has.
	starting string
	// failure, holding and proposed are what was last written down about plans that did
	// not come to serve: the same thing is not worth a second event.
	failure  string
	holding  string
	unknown  string // models of conch.yaml
	proposed *policy.Plan
	// withheld is why the plan that was made last does not serve; nil where it does, or would change nothing.
	withheld *api.Held

	// logs are the files of the partitions' last servers.
	logs map[string]string
	// shown are the conditions of the last look.
	shown conditions.All
	// moved says why attached servers are to be followed; empty where they are.
	moved string
	// placing: the policy places models of the repository on attached servers.
	placing bool
	// asRead is the configuration as it was read; config has mode observe where the
	// servers were released.
	asRead *config.Config
	// remarks about attached servers that were written down.
	remarks map[string]bool
}

// serving is the plan in force.
type serving struct {
	Plan
	snapshot *policy.Snapshot
	files    *repo.Revision
	// given and passThrough are the apply.Desired's.
	given       bool
	passThrough string
}

// New makes a loop and the parts that call back into it. Nothing runs yet.
func New(o Options) (*Control, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = SystemClock()
	}
	c := &Control{
		nodes: o.Nodes, repository: o.Repository, attached: o.Attached, requests: o.Requests, recorder: o.Recorder, evaluator: o.Evaluator, metrics: o.Metrics, store: o.Store, told: o.Told, wantGPUs: o.WantGPUs, cluster: o.Cluster,
		clock: o.Clock, log: o.Logger, version: o.Version, config: o.Config,
		planning: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		hurry: make(chan struct{}, 1), spent: map[string]time.Duration{}, loads: map[string]float64{}, logs: map[string]string{}, starting: "not started yet",
		loadedAt: map[string]time.Time{}, began: o.Clock.Now(), demand: demand{refused: map[string]refused{}},
		wanted: map[string]wanted{}, asRead: o.Config, remarks: map[string]bool{}, estimates: o.Estimates, groups: o.Groups,
	}
	if c.cluster == nil {
		c.cluster = func() (string, time.Time, string) { return "", time.Time{}, "" }
	}
	if c.estimates == nil {
		c.estimates = estimates.New(estimates.Options{})
	}
	if o.CheckDispatch != nil {
		c.checks = append(c.checks, o.CheckDispatch)
	}
	var err error
	if c.events, err = events.Open(o.Store, o.Logger); err != nil {
		return nil, err
	}
	if c.orders, err = orders.Open(o.Store); err != nil {
		return nil, err
	}
	c.plans = history.New(o.Store)
	if err := c.restore(); err != nil {
		return nil, err
	}
	c.version.Mode, c.version.Driver = string(c.config.Mode), o.Config.Driver.Kind
	if c.attached != nil && c.orders.Declared().Released {
		c.observeOnly()
	}
	if c.policies, err = o.Policies(c); err != nil {
		return nil, err
	}
	if c.reconciler, err = o.Reconciler(c); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Control) current() serving {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.serving
}

func (c *Control) settings() *config.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.config
}
