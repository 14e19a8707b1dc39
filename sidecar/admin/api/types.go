// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// Version says which build of conch answers.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	Mode    string `json:"mode"`
	Driver  string `json:"driver"`
	// Replica is the name of this conch among several of a release in a cluster, its Pod's; it owns the models. Empty elsewhere.
	Replica string `json:"replica,omitempty"`
}

// Health is the answer of /livez and /readyz: every check with the reason it
// fails, if it does.
type Health struct {
	OK     bool    `json:"ok"`
	Checks []Check `json:"checks,omitempty"`
}

// Check is one line of Health.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}

// ModelState is what a client of a model would find.
type ModelState string

// States of a model.
const (
	// ModelReady: at least one partition that is up serves it.
	ModelReady ModelState = "ready"
	// ModelDown: it is placed, and all its partitions are down.
	ModelDown ModelState = "down"
	// ModelUnplaced: the serving plan does not place it; the reason says why.
	ModelUnplaced ModelState = "unplaced"
	// ModelUnloaded: an operator unloaded it.
	ModelUnloaded ModelState = "unloaded"
	// ModelInvalid: Triton would not load its files; the reason says what is wrong.
	ModelInvalid ModelState = "invalid"
	// ModelFailed: the server refused to load it; the reason is the server's.
	ModelFailed ModelState = "failed"
)

// Model is a model as conch serves it. Durations are seconds, rates are
// requests per second over the statistics window.
type Model struct {
	Name              string     `json:"name"`
	Versions          []string   `json:"versions"`
	Revision          string     `json:"revision,omitempty"`
	State             ModelState `json:"state"`
	StateReason       string     `json:"state_reason,omitempty"`
	Backend           string     `json:"backend,omitempty"`
	SLOSeconds        float64    `json:"slo_seconds"`
	Late              string     `json:"late"`
	MaxBatchSize      int        `json:"max_batch_size"`
	Batchable         bool       `json:"batchable"`
	PassThroughReason string     `json:"pass_through_reason,omitempty"`
	// EnsembleSteps is in how many steps Conch executes an ensemble; 0: it is none, or its requests pass through whole.
	EnsembleSteps int `json:"ensemble_steps,omitempty"`
	// DynamicBatching and its delay are what the operator's own config.pbtxt says.
	DynamicBatching      bool    `json:"dynamic_batching"`
	MaxQueueDelaySeconds float64 `json:"max_queue_delay_seconds"`
	// QueuePolicy is what the config.pbtxt asks of the queue and conch's queue keeps;
	// nil: nothing, or the servers keep it.
	QueuePolicy *QueuePolicy `json:"queue_policy,omitempty"`
	Discipline  string       `json:"discipline"`
	Partitions  []string     `json:"partitions"`
	Rate        float64      `json:"rate"`
	Burstiness  float64      `json:"burstiness"`
	Goodput     float64      `json:"goodput"`
	// BadRate is the part of the requests that were late, dropped, refused, failed, or given up at their caller's gRPC deadline. LateRate is the part that was late or
	// dropped: policies see only that, and triggers.badRate compares it.
	BadRate           float64   `json:"bad_rate"`
	LateRate          float64   `json:"late_rate"`
	MeanBatch         float64   `json:"mean_batch"`
	LatencyP50Seconds float64   `json:"latency_p50_seconds"`
	LatencyP99Seconds float64   `json:"latency_p99_seconds"`
	Queued            int       `json:"queued"`
	Profiles          []Profile `json:"profiles,omitempty"`
	// Conditions are those of the model: ready, progressing, degraded.
	Conditions []Condition `json:"conditions"`
	// Estimates are those of the model's graph, by GPU type.
	Estimates []Estimate `json:"estimates,omitempty"`
	// DeclaredAlphaSeconds and DeclaredBetaSeconds are models.NAME.profile of conch.yaml.
	DeclaredAlphaSeconds float64 `json:"declared_alpha_seconds,omitempty"`
	DeclaredBetaSeconds  float64 `json:"declared_beta_seconds,omitempty"`
}

// QueuePolicy is Triton's queue policy of a model (model configuration, "Dynamic
// Batcher").
type QueuePolicy struct {
	// PriorityLevels is 0 where all requests are equal.
	PriorityLevels       uint64 `json:"priority_levels"`
	DefaultPriorityLevel uint64 `json:"default_priority_level"`
	// Default is the rule of requests whose level has none in Levels.
	Default QueueRule   `json:"default"`
	Levels  []QueueRule `json:"levels,omitempty"`
}

// QueueRule is how requests wait.
type QueueRule struct {
	// Level that it is for; 0 in QueuePolicy.Default.
	Level uint64 `json:"level,omitempty"`
	// MaxQueueSize is how many may wait; 0: any number.
	MaxQueueSize uint32 `json:"max_queue_size"`
	// TimeoutSeconds is for how long one may wait; 0: as long as it takes.
	TimeoutSeconds float64 `json:"timeout_seconds"`
	// AllowTimeoutOverride: a request's own timeout may be shorter.
	AllowTimeoutOverride bool `json:"allow_timeout_override"`
	// TimeoutAction is reject or delay.
	TimeoutAction string `json:"timeout_action"`
}

// Profile is l(b, p) of a model on one GPU type.
type Profile struct {
	GPUType    string         `json:"gpu_type"`
	Source     string         `json:"source"`
	Usable     bool           `json:"usable"`
	Interfered bool           `json:"interfered,omitempty"`
	Points     []ProfilePoint `json:"points"`
}

// ProfilePoint is one batch size at one share.
type ProfilePoint struct {
	Batch               int     `json:"batch"`
	ThreadPercentage    int     `json:"thread_percentage"`
	LatencySeconds      float64 `json:"latency_seconds"`
	ErrorBoundSeconds   float64 `json:"error_bound_seconds"`
	LatencyUpperSeconds float64 `json:"latency_upper_seconds"`
	Observations        uint64  `json:"observations"`
}

// GPU is a device with the partitions it is cut into.
type GPU struct {
	ID             string `json:"id"`
	Node           string `json:"node"`
	Type           string `json:"type"`
	MemoryBytes    uint64 `json:"memory_bytes"`
	Emulated       bool   `json:"emulated"`
	SharesEnforced bool   `json:"shares_enforced"`
	// Cordon is set while nothing new may come to it.
	Cordon *Cordon `json:"cordon,omitempty"`
	// Unavailable is why no plan may use it, of whatever the cluster says; empty where one may.
	Unavailable string      `json:"unavailable,omitempty"`
	Partitions  []Partition `json:"partitions"`
}

// Key tells GPUs of all nodes apart: NODE/ID, or the id alone where the node has no name. The CPUs of every node are called "cpu".
func (g GPU) Key() string {
	if g.Node == "" {
		return g.ID
	}
	return g.Node + "/" + g.ID
}

// Partition is a share of a GPU served by one Triton process.
type Partition struct {
	ID string `json:"id"`
	// GPU is its GPU's id; "cpu" where it is on the node's CPUs; the ids with "+" between them where it has several GPUs.
	GPU              string `json:"gpu"`
	ThreadPercentage int    `json:"thread_percentage"`
	MemoryLimitBytes uint64 `json:"memory_limit_bytes,omitempty"`
	Rank             int    `json:"rank"`
	// SharesEnforced says whether MPS holds the process to its share; ShareReason why
	// not.
	SharesEnforced bool   `json:"shares_enforced"`
	ShareReason    string `json:"share_reason,omitempty"`
	Up             bool   `json:"up"`
	Reason         string `json:"reason,omitempty"`
	GRPC           string `json:"grpc"`
	HTTP           string `json:"http"`
	Metrics        string `json:"metrics"`
	// Models are those that the plan wants there, Serving those that it serves.
	Models  []string `json:"models"`
	Serving []string `json:"serving"`
	// Retiring: an old server, which serves until enough new places are ready and goes
	// then. It has no conditions.
	Retiring   bool        `json:"retiring,omitempty"`
	Conditions []Condition `json:"conditions"`
	// Restarts counts the restarts of its server that were not ordered; Started is when
	// the present server was started.
	Restarts int       `json:"restarts"`
	Started  time.Time `json:"started,omitzero"`
	// Log is the file of its output on conch's machine; empty where there is none.
	Log string `json:"log,omitempty"`
	// Executions is how many batches its server executes at once; absent while it has none.
	Executions int `json:"executions,omitempty"`
	// BusyShare is the fraction of the statistics window spent executing; where several
	// batches are executed at once, of all of these.
	BusyShare float64 `json:"busy_share"`
}

// Key tells partitions apart: the id, and for an old server that is to go "ID retiring", since what replaces it may have the same id.
func (p Partition) Key() string {
	if p.Retiring {
		return p.ID + " retiring"
	}
	return p.ID
}

// Policy is a scheduling policy that this conch can run.
type Policy struct {
	Name        string            `json:"name"`
	Builtin     bool              `json:"builtin"`
	InUse       bool              `json:"in_use"`
	Version     string            `json:"version,omitempty"`
	Summary     string            `json:"summary,omitempty"`
	State       string            `json:"state,omitempty"`
	LastError   string            `json:"last_error,omitempty"`
	Parameters  []PolicyParameter `json:"parameters,omitempty"`
	Disciplines []string          `json:"disciplines,omitempty"`
}

// PolicyParameter is one setting of a policy.
type PolicyParameter struct {
	Name          string `json:"name"`
	Type          string `json:"type"`
	Default       string `json:"default"`
	Value         string `json:"value,omitempty"`
	Documentation string `json:"documentation"`
	// Values are all that it may be; empty where its type alone decides.
	Values []string `json:"values,omitempty"`
}

// UsePolicyRequest swaps the policy while serving.
type UsePolicyRequest struct {
	Name       string            `json:"name"`
	Parameters map[string]string `json:"parameters,omitempty"`
	Author     string            `json:"author,omitempty"`
	Reason     string            `json:"reason,omitempty"`
}

// EventKind is a stable word for what happened; sidecar/control/events lists them.
type EventKind string

// Event is one thing that happened on the plan path.
type Event struct {
	ID      uint64            `json:"id"`
	Time    time.Time         `json:"time"`
	Kind    EventKind         `json:"kind"`
	Author  string            `json:"author"`
	Reason  string            `json:"reason,omitempty"`
	Message string            `json:"message"`
	Seconds float64           `json:"seconds,omitempty"`
	Fields  map[string]string `json:"fields,omitempty"`
}
