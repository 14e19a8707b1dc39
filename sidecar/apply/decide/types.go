// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import "time"

// Key names what a server is for: a partition, and the hash of everything that
// its process is started with. A partition that needs another process (another
// GPU, share or limit) has another hash.
type Key struct{ Partition, Hash string }

// Want is the desired state.
type Want struct {
	// Partitions in the plan's order.
	Partitions []Partition
	// Models are those that the partitions hold, by name.
	Models map[string]Model
	// Memory of the GPUs in bytes, by id; 0 or absent is not known.
	Memory map[string]uint64
	// Whole is how many GPUs a node has for servers that take whole ones, whichever they are, by the GPUs' Node; absent where servers share GPUs.
	Whole map[string]int
	// Instead are models that are not wanted any more, by name, with those that serve
	// in their place: an old one stays until one of these is ready.
	Instead map[string][]string
	// Members are the members of merge groups that are wanted, by name, as they are wanted where their group fails.
	Members map[string]Model
	// Given: others load and unload; only which servers are followed is ours.
	Given bool
}

// Partition is a server that is wanted.
type Partition struct {
	Key
	GPU string
	// Memory is what it may take of the GPU in bytes; 0 is not known.
	Memory uint64
	// Room is what its models may take together in bytes where Memory does not say;
	// 0 is not known.
	Room      uint64
	Rank      int
	Instances []Instance
	// Claim is how its GPU is claimed for it; empty: it is not. Servers of one GPU whose claims differ cannot be there at once.
	Claim string
}

// Instance is a model that is wanted in a partition.
type Instance struct {
	Model    string
	MaxBatch int
}

// Model is what is to be known of a model that is wanted.
type Model struct {
	// Revision is what a server reports of files that it need not load again; empty
	// where any will do.
	Revision string
	// Memory once loaded, in bytes; 0 is not known.
	Memory uint64
	// Calls are the models that an ensemble's steps call.
	Calls []string
	// Members of a merge group: its rows are theirs.
	Members []string
}

// Seen is the observed state, with the memory of what failed.
type Seen struct {
	// Servers in the order in which they were started.
	Servers []*Server
	// Starts are failures of servers to start or to stay.
	Starts map[Key]Failure
	// Loads are failures of loads.
	Loads map[Load]Failure
	// Measured is for how long models were measured on a GPU of late, and are by now;
	// beyond MeasureBudget they serve without.
	Measured      map[string]time.Duration
	MeasureBudget time.Duration
	// ParallelLoads bounds the loads of one server at a time.
	ParallelLoads int
}

// Load is a revision of a model on a server.
type Load struct {
	Key
	Model, Revision string
}

// Failure is what went wrong and when it is tried again.
type Failure struct {
	// Attempts in a row.
	Attempts int
	// Next is when it is tried again; zero is never: only other files or an order
	// help.
	Next   time.Time
	Reason string
	// Hung: the load never ended, and the server has to be started again before
	// another is tried.
	Hung bool
	// Deaths counts servers that died in the load. Suspects are loaded alone.
	Deaths int
	// Ran: it was loaded, and its executions fail: of a merge group, which is unloaded, and loaded again when it is tried again.
	Ran bool
}

// chance reports that it may not be the model's own: one server died while it
// loaded the model, which it may have done of something else.
func (f Failure) chance() bool { return f.Attempts == 1 && f.Deaths == 1 }

// Phase of a server.
type Phase int

// Phases.
const (
	// Starting: it does not answer yet.
	Starting Phase = iota
	// Up: it answers.
	Up
	// Stopping: it was asked to end.
	Stopping
)

// Server is one process, from its start to its end. A server that died is seen
// no more.
type Server struct {
	// ID is this process's alone.
	ID uint64
	Key
	GPU    string
	Memory uint64
	// Claim is how its GPU is claimed for it; empty: it is not.
	Claim string
	Phase Phase
	// Broken says why it has to be killed; empty where it need not.
	Broken string
	// Anew says why another process is to take its place, once its requests are
	// answered; empty where none is.
	Anew string
	// Known: what it has loaded was read from it.
	Known bool
	// Loaded are its models, by name.
	Loaded map[string]Loaded
	// Busy are the actions under way, by model; that on the server itself has the
	// name "".
	Busy map[string]Action
	// Hung are models whose load never ends in this process.
	Hung map[string]bool
}

// Stays reports that the process is up, and that no other is to take its place.
func (v *Server) Stays() bool { return v.Phase == Up && v.Broken == "" && v.Anew == "" }

// Loaded is a model that a server has ready.
type Loaded struct {
	// Revision as the server reports it; empty where it does not.
	Revision string
	// Answers: it may be routed to, because a request was answered since it was
	// loaded, or because it served when its files were changed in its place.
	Answers bool
	// Tried: a request was answered with these very files.
	Tried bool
	// Leaving: its unload has begun, and cannot be called off.
	Leaving bool
	// Calls are the models that its steps call.
	Calls []string
	// Members of a merge group.
	Members []string
	// Memory in bytes, and the MaxBatch of its place, as they were wanted last.
	Memory   uint64
	MaxBatch int
}

// Kind of action: a stable word for events and metrics.
type Kind string

// Kinds of action.
const (
	Start  Kind = "start"
	LoadIt Kind = "load"
	WarmUp Kind = "warm_up"
	// Unload waits for the leases on the place, then unloads.
	Unload Kind = "unload"
	// Stop waits for the leases on the server, then ends it.
	Stop Kind = "stop"
	// Kill ends a broken server at once.
	Kill Kind = "kill"
	// Swap replaces the route table. It is never among Decision.Actions: Routes says it.
	Swap Kind = "swap"
)

// Action is something that should be under way. Equal actions are the same one.
type Action struct {
	Kind Kind
	Key
	// Server is 0 for a start.
	Server uint64
	Model  string
	// Revision to load.
	Revision string
	// Measure: the warm-up takes the times of batches, too.
	Measure bool
}

// Slot is what an action occupies: of one slot there is one action at a time.
type Slot struct {
	Key
	Server uint64
	Model  string
}

// Slot of an action.
func (a Action) Slot() Slot { return Slot{a.Key, a.Server, a.Model} }

// Decision is what follows from what is wanted and seen.
type Decision struct {
	// Actions are all that should be under way, those that are included. What is
	// under way and not among them is superseded.
	Actions []Action
	// Routes says where requests go. It has to be in force before an action begins.
	Routes Routes
	// Conditions say how far apart desired and observed are, by partition and model.
	Conditions []Condition
	// Settled: every wanted instance is routed to, or has failed.
	Settled bool
	// Blocked says why no server is started for a partition until something else is mended, by its key.
	Blocked map[Key]string
	// Wake is when to decide again although nothing happens; zero is never.
	Wake time.Time
}

// Routes are the places that requests may go to.
type Routes struct {
	Partitions []RoutePartition
	// Places by model, in the plan's order. A model of Want without a place is
	// refused.
	Places map[string][]Place
}

// RoutePartition is a server in the route table.
type RoutePartition struct {
	// ID is the partition's, or for an old server beside the new one a name of its
	// own.
	ID string
	// Server is 0 where there is none yet: requests wait for it.
	Server    uint64
	Partition string
}

// Place is a model's instance that is routed to.
type Place struct {
	// Route is the ID of a RoutePartition.
	Route    string
	MaxBatch int
	// Revision that is loaded there.
	Revision string
	// Waiting: nothing is there yet, and requests queue for it.
	Waiting bool
	// Group is the merge group whose place it is, of a member that runs as rows of it; empty: the model's own.
	Group string
}

// ConditionKind is a stable word for a condition.
type ConditionKind string

// Kinds of condition.
const (
	// Under way.
	IsStarting  ConditionKind = "starting"
	IsLoading   ConditionKind = "loading"
	IsWarmingUp ConditionKind = "warming_up"
	IsUnloading ConditionKind = "unloading"
	IsStopping  ConditionKind = "stopping"
	// IsWaiting: for memory, for the canary, for a model that it calls, for its turn.
	IsWaiting ConditionKind = "waiting"
	// IsFailing: it failed and is tried again, or is not, as the reason says.
	IsFailing ConditionKind = "failing"
	// IsRetiring: an old server or place that serves until enough new ones are ready.
	IsRetiring ConditionKind = "retiring"
)

// Condition is one thing in which observed and desired differ.
type Condition struct {
	Partition string
	// Model is empty for a condition of the partition itself.
	Model    string
	Kind     ConditionKind
	Reason   string
	Attempts int
	// Next is when it is tried again; zero where that is not known.
	Next time.Time
}
