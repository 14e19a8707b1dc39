// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// APIVersion is the apiVersion of every scenario.
const APIVersion = "conch-sim/v1"

// Scenario is a file, YAML or JSON.
type Scenario struct {
	APIVersion string `yaml:"apiVersion" json:"apiVersion"`
	Name       string `yaml:"name,omitempty" json:"name,omitempty"`
	// Seed of everything random; 0 counts as 1.
	Seed uint64 `yaml:"seed,omitempty" json:"seed,omitempty"`
	// Duration of arrivals, the first Warmup of which do not count. With a trace, 0 means all of it.
	Duration Duration `yaml:"duration,omitempty" json:"duration,omitempty"`
	Warmup   Duration `yaml:"warmup,omitempty" json:"warmup,omitempty"`

	// Snapshot is a policy.Snapshot as JSON with the names of policy.proto, as a live Conch shows it. Then GPUs and Interference are left
	// out, and Models only change what they name.
	Snapshot     map[string]any `yaml:"snapshot,omitempty" json:"snapshot,omitempty"`
	GPUs         []GPUs         `yaml:"gpus,omitempty" json:"gpus,omitempty"`
	Offers       []Offer        `yaml:"offers,omitempty" json:"offers,omitempty"`
	Interference []Interference `yaml:"interference,omitempty" json:"interference,omitempty"`
	Models       []Model        `yaml:"models,omitempty" json:"models,omitempty"`

	// Pipelines are DAGs of these models that clients ask for as one.
	Pipelines []Pipeline `yaml:"pipelines,omitempty" json:"pipelines,omitempty"`
	// StepDeadlines is how the deadlines of their steps follow from theirs: loss (default), present, left, waiting, share or end; docs/simulate.md says what
	// they are.
	StepDeadlines string `yaml:"stepDeadlines,omitempty" json:"stepDeadlines,omitempty"`

	// Rate is the total in requests per second, divided among models by their weights, or by popularity with Zipf's exponent in the order in
	// which they are listed. 0: every model has its own. With pipelines, of the models only those with a weight get a part.
	Rate float64  `yaml:"rate,omitempty" json:"rate,omitempty"`
	Zipf *float64 `yaml:"zipf,omitempty" json:"zipf,omitempty"`
	// Trace replaces all generated arrivals.
	Trace *Trace `yaml:"trace,omitempty" json:"trace,omitempty"`

	// Policy makes the plans; or Plan says where models are. Without either every model is on every GPU.
	Policy   *Policy  `yaml:"policy,omitempty" json:"policy,omitempty"`
	Plan     *Plan    `yaml:"plan,omitempty" json:"plan,omitempty"`
	Dispatch Dispatch `yaml:"dispatch,omitempty" json:"dispatch,omitempty"`

	Delays Delays `yaml:"delays,omitempty" json:"delays,omitempty"`
	// LearnDelays lets the queue learn delays and lateness as a live Conch does (sim.LearnDelays), instead of knowing them.
	LearnDelays bool    `yaml:"learnDelays,omitempty" json:"learnDelays,omitempty"`
	Jitter      float64 `yaml:"jitter,omitempty" json:"jitter,omitempty"`
	// ExpectInterference is what slowdown the queue plans with: worst (default) or none.
	ExpectInterference string      `yaml:"expectInterference,omitempty" json:"expectInterference,omitempty"`
	ChangeCost         ChangeCost  `yaml:"changeCost,omitempty" json:"changeCost,omitempty"`
	Failures           []Failure   `yaml:"failures,omitempty" json:"failures,omitempty"`
	Breakdowns         *Breakdowns `yaml:"breakdowns,omitempty" json:"breakdowns,omitempty"`
	Bins               int         `yaml:"bins,omitempty" json:"bins,omitempty"`
	Timeline           *Timeline   `yaml:"timeline,omitempty" json:"timeline,omitempty"`
}

// GPUs are a number of equal ones. They are called gpu0, gpu1, ... in the order of the file, in node "sim" unless named.
type GPUs struct {
	Type        string  `yaml:"type" json:"type"`
	Count       int     `yaml:"count,omitempty" json:"count,omitempty"` // 0 means 1
	Node        string  `yaml:"node,omitempty" json:"node,omitempty"`
	MemoryBytes uint64  `yaml:"memoryBytes,omitempty" json:"memoryBytes,omitempty"`
	CostPerHour float64 `yaml:"costPerHour,omitempty" json:"costPerHour,omitempty"`
	// Shares are the thread percentages of each one's partitions, where no policy and no plan cuts it; none: one of 100.
	Shares []uint32 `yaml:"shares,omitempty" json:"shares,omitempty"`
}

// Offer is a GPU type that can be rented: with one, the objective is min-cost.
type Offer struct {
	Type        string   `yaml:"type" json:"type"`
	MemoryBytes uint64   `yaml:"memoryBytes,omitempty" json:"memoryBytes,omitempty"`
	CostPerHour float64  `yaml:"costPerHour,omitempty" json:"costPerHour,omitempty"`
	MaxCount    uint32   `yaml:"maxCount,omitempty" json:"maxCount,omitempty"`
	Start       Duration `yaml:"start,omitempty" json:"start,omitempty"`
}

// Interference are gpulet's coefficients for a GPU type.
type Interference struct {
	GPUType        string  `yaml:"gpuType" json:"gpuType"`
	L2Self         float64 `yaml:"l2Self" json:"l2Self"`
	L2Other        float64 `yaml:"l2Other" json:"l2Other"`
	BandwidthSelf  float64 `yaml:"bandwidthSelf" json:"bandwidthSelf"`
	BandwidthOther float64 `yaml:"bandwidthOther" json:"bandwidthOther"`
	Constant       float64 `yaml:"constant" json:"constant"`
}

// Model is a model, or several alike.
type Model struct {
	Name string `yaml:"name" json:"name"`
	// Count above 1 makes NAME-0, NAME-1, ...
	Count int `yaml:"count,omitempty" json:"count,omitempty"`
	// Profile is l(b, p); several for several GPU types.
	Profile  *Profile  `yaml:"profile,omitempty" json:"profile,omitempty"`
	Profiles []Profile `yaml:"profiles,omitempty" json:"profiles,omitempty"`
	// SLO; of a model of the zoo the published one unless given.
	SLO Duration `yaml:"slo,omitempty" json:"slo,omitempty"`
	// Late is serve (default) or drop.
	Late string `yaml:"late,omitempty" json:"late,omitempty"`
	// MaxBatch; 0 means 64.
	MaxBatch uint32 `yaml:"maxBatch,omitempty" json:"maxBatch,omitempty"`
	// Operators are into how many steps of about equal length its graph can be cut; discipline segment (Abacus) needs it, nothing else reads it.
	Operators int `yaml:"operators,omitempty" json:"operators,omitempty"`
	// Rate in requests per second of each of Count; or Weight, its part of the scenario's rate (0 means 1).
	Rate     float64   `yaml:"rate,omitempty" json:"rate,omitempty"`
	Weight   float64   `yaml:"weight,omitempty" json:"weight,omitempty"`
	Arrivals *Arrivals `yaml:"arrivals,omitempty" json:"arrivals,omitempty"`
	// Dispatch of this model instead of the scenario's.
	Dispatch *Dispatch `yaml:"dispatch,omitempty" json:"dispatch,omitempty"`

	MemoryBytes uint64   `yaml:"memoryBytes,omitempty" json:"memoryBytes,omitempty"`
	Load        Duration `yaml:"load,omitempty" json:"load,omitempty"`
}

// Profile is how long batches take on one GPU type, one of: a published profile of the zoo, alpha and beta, or points.
type Profile struct {
	// GPUType; empty means the type of the scenario's GPUs, if that is one.
	GPUType string `yaml:"gpuType,omitempty" json:"gpuType,omitempty"`
	// Zoo is a model of Symphony's tables: l(b) = beta + alpha*b as published for the GPU type.
	Zoo   string   `yaml:"zoo,omitempty" json:"zoo,omitempty"`
	Alpha Duration `yaml:"alpha,omitempty" json:"alpha,omitempty"`
	Beta  Duration `yaml:"beta,omitempty" json:"beta,omitempty"`
	// Knee is the thread percentage beyond which more does not help, below which time is in inverse proportion to the share; 0 means 100.
	Knee uint32 `yaml:"knee,omitempty" json:"knee,omitempty"`
	// What a batch needs of a whole GPU, as fractions: compute (Creq), memory (Mreq), L2 and bandwidth.
	Creq      float64 `yaml:"creq,omitempty" json:"creq,omitempty"`
	Mreq      float64 `yaml:"mreq,omitempty" json:"mreq,omitempty"`
	L2        float64 `yaml:"l2,omitempty" json:"l2,omitempty"`
	Bandwidth float64 `yaml:"bandwidth,omitempty" json:"bandwidth,omitempty"`
	// Points are l(b, p) one by one.
	Points []Point `yaml:"points,omitempty" json:"points,omitempty"`
}

// Point is l of a batch at a share.
type Point struct {
	Batch   uint32   `yaml:"batch" json:"batch"`
	Share   uint32   `yaml:"share,omitempty" json:"share,omitempty"` // 0 means 100
	Latency Duration `yaml:"latency" json:"latency"`
	// Upper is the quantile that deadlines are planned with; 0: the latency.
	Upper Duration `yaml:"upper,omitempty" json:"upper,omitempty"`
}

// Arrivals shape a model's load. Steps or Diurnal multiply the model's rate over time.
type Arrivals struct {
	// Shape of the Gamma distribution of gaps; 0 and 1 mean Poisson, .05 to .3 bursty.
	Shape float64 `yaml:"shape,omitempty" json:"shape,omitempty"`
	// Rows of each request; 0 means 1.
	Rows    int32    `yaml:"rows,omitempty" json:"rows,omitempty"`
	Steps   []Step   `yaml:"steps,omitempty" json:"steps,omitempty"`
	Diurnal *Diurnal `yaml:"diurnal,omitempty" json:"diurnal,omitempty"`
}

// Step multiplies the model's rate by Factor from a time of the scenario on.
type Step struct {
	From   Duration `yaml:"from,omitempty" json:"from,omitempty"`
	Factor float64  `yaml:"factor" json:"factor"`
}

// Diurnal is workload.Diurnal around the model's rate.
type Diurnal struct {
	Swing  float64  `yaml:"swing" json:"swing"`
	Period Duration `yaml:"period" json:"period"`
	Pieces int      `yaml:"pieces,omitempty" json:"pieces,omitempty"`
	Spikes float64  `yaml:"spikes,omitempty" json:"spikes,omitempty"`
	Height float64  `yaml:"height,omitempty" json:"height,omitempty"`
	Length Duration `yaml:"length,omitempty" json:"length,omitempty"`
}

// Trace is a file of arrivals, beside the scenario.
type Trace struct {
	File string `yaml:"file" json:"file"`
	// Format is azure (counts per minute; the functions with most invocations go to the models in the order in which they are listed),
	// arrivals (one per line) or conch (recorded).
	Format string `yaml:"format" json:"format"`
	// Scale multiplies the counts of azure; 0 means 1. Speed is how many seconds of an azure trace pass in one; 0 means 1.
	Scale float64 `yaml:"scale,omitempty" json:"scale,omitempty"`
	Speed float64 `yaml:"speed,omitempty" json:"speed,omitempty"`
	// Truncated takes a recorded trace up to where it was cut off, as when its writer was killed; otherwise such an end is an error.
	Truncated bool `yaml:"truncated,omitempty" json:"truncated,omitempty"`
}

// Policy is the policy that makes plans, and when it is asked.
type Policy struct {
	Name       string            `yaml:"name" json:"name"`
	Parameters map[string]string `yaml:"parameters,omitempty" json:"parameters,omitempty"`
	// Executable is a third party's policy, beside the scenario: it runs as a process, as under conch. Process runs one of Conch's own as a
	// process too, by the conch-policies beside this program; the result is the same.
	Executable string `yaml:"executable,omitempty" json:"executable,omitempty"`
	Process    bool   `yaml:"process,omitempty" json:"process,omitempty"`
	// Every so often the policy is asked again; the other triggers are as in conch.yaml.
	Every     Duration `yaml:"every,omitempty" json:"every,omitempty"`
	RateUp    float64  `yaml:"rateUp,omitempty" json:"rateUp,omitempty"`
	RateUpBy  float64  `yaml:"rateUpBy,omitempty" json:"rateUpBy,omitempty"`
	RateDown  float64  `yaml:"rateDown,omitempty" json:"rateDown,omitempty"`
	BadRate   float64  `yaml:"badRate,omitempty" json:"badRate,omitempty"`
	OnFailure bool     `yaml:"onFailure,omitempty" json:"onFailure,omitempty"`
	Hold      Duration `yaml:"hold,omitempty" json:"hold,omitempty"`
	Cooldown  Duration `yaml:"cooldown,omitempty" json:"cooldown,omitempty"`
	// Takes is how long it thinks, in virtual time.
	Takes Duration `yaml:"takes,omitempty" json:"takes,omitempty"`
}

// Plan says where models are, without a policy. One of its keys is given.
type Plan struct {
	// Partitions one by one.
	Partitions []Partition `yaml:"partitions,omitempty" json:"partitions,omitempty"`
	// Subclusters deals models and GPUs out like cards: model i and GPU i are in sub-cluster i modulo this number, and within one every
	// model is on every GPU. It is Symphony's way past one dispatcher (section 4.4 of its paper): the queue of a sub-cluster sees its own
	// models and partitions alone, so that work per request does not grow with the cluster.
	Subclusters int `yaml:"subclusters,omitempty" json:"subclusters,omitempty"`
}

// Partition of a plan.
type Partition struct {
	GPU    string   `yaml:"gpu" json:"gpu"`                         // by id
	Share  uint32   `yaml:"share,omitempty" json:"share,omitempty"` // 0 means 100
	Models []string `yaml:"models" json:"models"`
}

// Dispatch is the discipline of every model, where no policy says otherwise. Empty: the queue's own default.
type Dispatch struct {
	Discipline string            `yaml:"discipline,omitempty" json:"discipline,omitempty"`
	Parameters map[string]string `yaml:"parameters,omitempty" json:"parameters,omitempty"`
	DropPolicy string            `yaml:"dropPolicy,omitempty" json:"dropPolicy,omitempty"`
}

// Delays are sim.Delays.
type Delays struct {
	Request    Duration `yaml:"request,omitempty" json:"request,omitempty"`
	Reply      Duration `yaml:"reply,omitempty" json:"reply,omitempty"`
	Control    Duration `yaml:"control,omitempty" json:"control,omitempty"`
	DataPerRow Duration `yaml:"dataPerRow,omitempty" json:"dataPerRow,omitempty"`
	Response   Duration `yaml:"response,omitempty" json:"response,omitempty"`
	Jitter     Duration `yaml:"jitter,omitempty" json:"jitter,omitempty"`
}

// ChangeCost is what changing a plan costs.
type ChangeCost struct {
	Start Duration `yaml:"start,omitempty" json:"start,omitempty"` // of a partition
	Load  Duration `yaml:"load,omitempty" json:"load,omitempty"`   // of a model that does not say
}

// Failure is sim.Failure.
type Failure struct {
	At        Duration `yaml:"at" json:"at"`
	For       Duration `yaml:"for,omitempty" json:"for,omitempty"`
	GPU       string   `yaml:"gpu,omitempty" json:"gpu,omitempty"`
	Partition string   `yaml:"partition,omitempty" json:"partition,omitempty"`
}

// Breakdowns are sim.Breakdowns.
type Breakdowns struct {
	Between Duration `yaml:"between" json:"between"`
	Repair  Duration `yaml:"repair" json:"repair"`
}

// Timeline is sim.Timeline.
type Timeline struct {
	From Duration `yaml:"from,omitempty" json:"from,omitempty"`
	To   Duration `yaml:"to,omitempty" json:"to,omitempty"`
	Max  int      `yaml:"max" json:"max"`
}

// Duration is written as Go writes durations: 25ms.
type Duration time.Duration

// UnmarshalYAML reads a scalar as UnmarshalText does, and says where it is.
func (d *Duration) UnmarshalYAML(node ast.Node) error {
	scalar, ok := node.(ast.ScalarNode)
	if !ok {
		return &yaml.SyntaxError{Message: "a duration is needed here, like 25ms", Token: node.GetToken()}
	}
	if err := d.UnmarshalText([]byte(fmt.Sprint(scalar.GetValue()))); err != nil {
		return &yaml.SyntaxError{Message: err.Error(), Token: node.GetToken()}
	}
	return nil
}

// UnmarshalText reads "25ms"; a bare number other than 0 is refused, because it has no unit.
func (d *Duration) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 {
		return fmt.Errorf("%s is no duration; write it like 25ms or 1.5s", strconv.Quote(s))
	}
	*d = Duration(v)
	return nil
}

// MarshalText is the other way.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d Duration) std() time.Duration { return time.Duration(d) }
