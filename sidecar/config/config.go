// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"sort"
	"strings"

	"github.com/conch-serving/conch/plugins/policy/grid"
)

// APIVersion is the only version of conch.yaml that this build reads.
const APIVersion = "conch/v1"

// Mode says what conch may do on its own.
type Mode string

// The modes, from the most careful to the least.
const (
	// ModeObserve shows plans and never applies them. Every model is served
	// by every GPU that it fits, as a plain Triton on each GPU would.
	ModeObserve Mode = "observe"
	// ModeAdvise applies a plan only when an operator orders it.
	ModeAdvise Mode = "advise"
	// ModeControl applies plans as soon as they pass validation.
	ModeControl Mode = "control"
)

// Wire says what serves inference.
type Wire string

const (
	// WireOwn is Conch's own HTTP/2, for calls of ModelInfer, and its own HTTP/1.1, for plain requests.
	WireOwn Wire = "own"
	// WireGRPC is grpc-go and net/http, for everything.
	WireGRPC Wire = "grpc-go"
)

// Config is conch.yaml. The zero value of a field means "not set".
type Config struct {
	APIVersion string   `yaml:"apiVersion"`
	Mode       Mode     `yaml:"mode"`
	Listen     Listen   `yaml:"listen"`
	Repository string   `yaml:"repository"`
	State      string   `yaml:"state"`
	Driver     Driver   `yaml:"driver"`
	GPUs       GPUs     `yaml:"gpus"`
	Objective  string   `yaml:"objective"`
	Policy     Policy   `yaml:"policy"`
	Defaults   Defaults `yaml:"defaults"`
	Demand     Demand   `yaml:"demand"`
	// ModelControl says what clients may order through Triton's protocol.
	ModelControl ModelControl     `yaml:"modelControl"`
	Models       map[string]Model `yaml:"models"`
	Apps         map[string]App   `yaml:"apps"`
	// Interference per type of GPU, Offers of GPUs that could be rented, and CPUs
	// that models may use.
	Interference []Interference `yaml:"interference"`
	Offers       []Offer        `yaml:"offers"`
	CPUs         CPUs           `yaml:"cpus"`
	Estimates    Estimates      `yaml:"estimates"`
	Merge        Merge          `yaml:"merge"`
	Interval     Duration       `yaml:"interval"`
	Triggers     Triggers       `yaml:"triggers"`
	Changes      Changes        `yaml:"changes"`
	Limits       Limits         `yaml:"limits"`
	Seed         uint64         `yaml:"seed"`
	Wire         Wire           `yaml:"wire"`
	Log          Log            `yaml:"log"`
	Tracing      Tracing        `yaml:"tracing"`

	// lines remembers where in the file each path was set.
	lines map[string]int
	// profiles are the files that models name, read.
	profiles map[string][]grid.Profile
}

// Listen holds the addresses of the front doors: host:port, or "off".
type Listen struct {
	GRPC    string `yaml:"grpc"`
	HTTP    string `yaml:"http"`
	Metrics string `yaml:"metrics"`
	// Admin is unix:///path or host:port.
	Admin string `yaml:"admin"`
	// ReusePort lets another conch open the gRPC and HTTP addresses too, to take
	// over from this one.
	ReusePort bool `yaml:"reusePort"`
	// MaxConnectionAge is how old a gRPC client's connection may become; 0: as old as it likes. MaxConnectionAgeGrace is how long calls on it may then
	// take; 0: as long as they need.
	MaxConnectionAge      Duration  `yaml:"maxConnectionAge"`
	MaxConnectionAgeGrace Duration  `yaml:"maxConnectionAgeGrace"`
	TLS                   ServerTLS `yaml:"tls"`
	// AdminTLS and AdminToken, the file of a secret, are for an admin address that is
	// host:port; it needs both.
	AdminTLS   AdminTLS `yaml:"adminTLS"`
	AdminToken string   `yaml:"adminToken"`
	// UI is the door of the console for browsers; off unless it has an address.
	UI UI `yaml:"ui"`
}

// UI is how browsers reach the console: with a token, with a client certificate, or with both.
type UI struct {
	// Address is host:port, or off.
	Address string `yaml:"address"`
	// TLS is needed unless the address is one of this machine's own (loopback).
	TLS AdminTLS `yaml:"tls"`
	// Token is the file of a secret that a person shows once for each browser.
	Token string `yaml:"token"`
	// Hosts are the names by which browsers reach it, besides localhost.
	Hosts []string `yaml:"hosts"`
	// AllowChanges lets it give orders.
	AllowChanges bool `yaml:"allowChanges"`
}

// AdminTLS is how operators reach conch over TCP.
type AdminTLS struct {
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
	// ClientCA holds the authorities of client certificates; operators need one then,
	// besides the token.
	ClientCA   string `yaml:"clientCA"`
	MinVersion string `yaml:"minVersion"`
}

// ServerTLS is the TLS of the addresses for clients. Without a certificate they have no
// TLS.
type ServerTLS struct {
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
	// ClientCA holds the authorities of client certificates; ClientCertificates
	// says whether one must be shown.
	ClientCA           string `yaml:"clientCA"`
	ClientCertificates string `yaml:"clientCertificates"`
	MinVersion         string `yaml:"minVersion"`
	// Metrics extends it to the metrics door.
	Metrics bool `yaml:"metrics"`
}

// Enabled reports whether clients come over TLS.
func (t ServerTLS) Enabled() bool { return t.Certificate != "" }

// Whether clients must show a certificate.
const (
	ClientCertificatesRequired = "required"
	ClientCertificatesOptional = "optional"
)

// ClientTLS is how conch reaches the gRPC door of Triton servers, or of a
// collector. Without a field of it, in the clear.
type ClientTLS struct {
	// CA holds the authorities of the servers' certificates; the system's unless given.
	CA          string `yaml:"ca"`
	Certificate string `yaml:"certificate"`
	Key         string `yaml:"key"`
	// ServerName is the name in the servers' certificates.
	ServerName string `yaml:"serverName"`
	MinVersion string `yaml:"minVersion"`
}

// Enabled reports whether servers are reached over TLS.
func (t ClientTLS) Enabled() bool {
	return t != ClientTLS{} && t != ClientTLS{MinVersion: t.MinVersion}
}

// ModelControl says which orders about models conch takes from clients.
type ModelControl struct {
	// Clients is ClientsOff, ClientsOn or ClientsFiles.
	Clients string `yaml:"clients"`
}

// What clients may order.
const (
	// ClientsOff: nothing, as with Triton's --model-control-mode=none.
	ClientsOff = "off"
	// ClientsOn: load models of the repository, and unload them.
	ClientsOn = "on"
	// ClientsFiles: besides, bring a config and files with a load, which is code
	// that the servers run.
	ClientsFiles = "files"
)

// Off is the address of a front door that stays closed.
const Off = "off"

// Driver says where Triton processes come from.
type Driver struct {
	Kind             string            `yaml:"kind"`
	TritonServer     string            `yaml:"tritonserver"`
	BackendDirectory string            `yaml:"backendDirectory"`
	Arguments        []string          `yaml:"arguments"`
	Environment      map[string]string `yaml:"environment"`
	// Stretch multiplies emulated times.
	Stretch float64 `yaml:"stretch"`
	// Executions is how many batches each server of conch's own executes at once.
	Executions int `yaml:"executions"`
	// Endpoints are the servers of the attach driver, one partition each.
	Endpoints []Endpoint `yaml:"endpoints"`
	// Service names them by a Service of a cluster instead.
	Service Service `yaml:"service"`
	// SharedMemory has large tensors go to the servers of the attach driver through shared memory, as to servers of conch's own. It says that the servers are
	// on this host, and that nothing else registers regions under conch's names with them, or unregisters all regions.
	SharedMemory bool  `yaml:"sharedMemory"`
	Probe        Probe `yaml:"probe"`
	// StartTimeout bounds the start of a server, LoadTimeout the load of a model.
	StartTimeout Duration `yaml:"startTimeout"`
	LoadTimeout  Duration `yaml:"loadTimeout"`
	// OrphanGrace is how long servers of conch's own go on without a conch.
	OrphanGrace Duration   `yaml:"orphanGrace"`
	TLS         ClientTLS  `yaml:"tls"`
	Kubernetes  Kubernetes `yaml:"kubernetes"`
}

// The kinds of driver of this build.
const (
	DriverEmbedded   = "embedded"
	DriverProcess    = "process"
	DriverAttach     = "attach"
	DriverKubernetes = "kubernetes"
)

// Endpoint is a Triton server that others run. HTTP and Metrics are host:port or
// "off".
type Endpoint struct {
	GRPC    string `yaml:"grpc"`
	HTTP    string `yaml:"http"`
	Metrics string `yaml:"metrics"`
	// Repository is the model repository of that server, on this machine, that conch
	// may write; empty leaves its models to others.
	Repository string `yaml:"repository"`
	// Executions is how many batches the server executes at once; 0: as many as it has GPUs with instances.
	Executions int `yaml:"executions"`
}

// Service are servers that others run in a cluster: the Pods behind Services, one partition each.
type Service struct {
	// Name of the Service, or Selector: labels of one or several.
	Name     string `yaml:"name"`
	Selector string `yaml:"selector"`
	// Namespace of the Service; empty: that of conch's own Pod, or of the kubeconfig.
	Namespace string `yaml:"namespace"`
	// Kubeconfig says how the API server is reached; empty: as a Pod of the cluster does.
	Kubeconfig string `yaml:"kubeconfig"`
	// Executions is how many batches each server executes at once; 0: as many as it has GPUs with instances.
	Executions int `yaml:"executions"`
}

// Probe says how servers are asked whether they live.
type Probe struct {
	Period   Duration `yaml:"period"`
	Deadline Duration `yaml:"deadline"`
}

// Merge is either "auto" or a list.
type Merge struct {
	// Auto offers whatever groups there are among the models.
	Auto bool
	List []MergeGroup
}

// MergeGroup names models to merge.
type MergeGroup struct {
	Members []string `yaml:"members"`
	Mode    string   `yaml:"mode"`
}

// MergeBackbone is the mode that serves.
const MergeBackbone = "backbone"

// GPUs is either "auto" or a list.
type GPUs struct {
	Auto bool
	List []GPU
}

// GPU describes Count equal devices.
type GPU struct {
	Type      string  `yaml:"type"`
	Count     int     `yaml:"count"`
	Memory    Size    `yaml:"memory"`
	SMCount   uint32  `yaml:"smCount"`
	Bandwidth Size    `yaml:"bandwidth"`
	Cost      float64 `yaml:"costPerHour"`
	Emulated  bool    `yaml:"emulated"`
}

// Policy names the plugin that decides the placement.
type Policy struct {
	Name       string            `yaml:"name"`
	Parameters map[string]string `yaml:"parameters"`
	Deadline   Duration          `yaml:"deadline"`
	// Evaluations is how many plans it may have evaluated for one snapshot, Steps
	// what else it may count (0: its own default), Traffic how much of it is
	// generated for that.
	Evaluations *uint32  `yaml:"evaluations"`
	Steps       uint64   `yaml:"steps"`
	Traffic     Duration `yaml:"traffic"`
	// Executable is the plugin's file; empty means conch-policies beside conch.
	Executable string `yaml:"executable"`
	// Checksum is the SHA-256 of the executable in hexadecimal.
	Checksum string `yaml:"checksum"`
}

// Defaults hold for every model without a setting of its own.
type Defaults struct {
	SLO        Duration          `yaml:"slo"`
	Late       string            `yaml:"late"`
	Discipline string            `yaml:"discipline"`
	Parameters map[string]string `yaml:"parameters"`
	DropPolicy string            `yaml:"dropPolicy"`
	// Load and Idle are as a Model's.
	Load string   `yaml:"load"`
	Idle Duration `yaml:"idle"`
}

// Model is what the operator says of one model.
type Model struct {
	SLO        Duration          `yaml:"slo"`
	Late       string            `yaml:"late"`
	Discipline string            `yaml:"discipline"`
	Parameters map[string]string `yaml:"parameters"`
	DropPolicy string            `yaml:"dropPolicy"`
	// Ensemble is EnsembleSplit or EnsemblePass; of a model that is no ensemble it says nothing.
	Ensemble string `yaml:"ensemble"`
	Priority int32  `yaml:"priority"`
	// Load is when it is loaded: LoadKeep, LoadDemand or LoadNever. Idle is how long
	// a model that loads on demand stays without requests.
	Load string   `yaml:"load"`
	Idle Duration `yaml:"idle"`
	// GPUs are the only ones it may be on.
	GPUs                []string `yaml:"gpus"`
	MinInstances        uint32   `yaml:"minInstances"`
	MaxInstances        uint32   `yaml:"maxInstances"`
	Exclusive           bool     `yaml:"exclusive"`
	Pinned              bool     `yaml:"pinned"`
	MinThreadPercentage uint32   `yaml:"minThreadPercentage"`
	MaxThreadPercentage uint32   `yaml:"maxThreadPercentage"`
	Memory              Size     `yaml:"memory"`
	Profile             *Profile `yaml:"profile"`
	// Profiles is a file with l(b, p) on a grid (package plugins/policy/grid).
	Profiles string `yaml:"profiles"`
}

// Who executes the steps of an ensemble.
const (
	// EnsembleSplit: Conch, each with the other requests of its model, where Conch can. The default.
	EnsembleSplit = "split"
	// EnsemblePass: Triton. Its requests pass through whole.
	EnsemblePass = "pass"
)

// EnsemblesLeft lists the models whose ensembles are left to Triton, sorted.
func (c *Config) EnsemblesLeft() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		if c.Models[name].Ensemble == EnsemblePass {
			names = append(names, name)
		}
	}
	return names
}

// Profile declares l(b) = beta + alpha*b at a share of 100%.
type Profile struct {
	Alpha Duration `yaml:"alpha"`
	Beta  Duration `yaml:"beta"`
}

// Triggers say what makes a new plan before the interval is over.
type Triggers struct {
	// RateUp and RateDown are fractions of the rate that the plan was made
	// for, RateUpBy is requests per second; the first that holds counts.
	RateUp   float64  `yaml:"rateUp"`
	RateUpBy float64  `yaml:"rateUpBy"`
	RateDown float64  `yaml:"rateDown"`
	BadRate  float64  `yaml:"badRate"`
	Hold     Duration `yaml:"hold"`
	Cooldown Duration `yaml:"cooldown"`
}

// Changes say how conch weighs a plan against the one in force before it applies
// it by itself.
type Changes struct {
	// Loss is the part of the expected goodput that a plan may cost without an
	// operator's word.
	Loss float64 `yaml:"loss"`
	// Horizon is how long a gain counts, Payoff what a disturbed request counts in
	// requests gained.
	Horizon Duration `yaml:"horizon"`
	Payoff  float64  `yaml:"payoff"`
}

// Limits bound what conch holds for its callers.
type Limits struct {
	QueueRequests int  `yaml:"queueRequests"`
	QueueBytes    Size `yaml:"queueBytes"`
	MessageBytes  Size `yaml:"messageBytes"`
	// Connections bounds the open connections of clients; Stall is how long one may
	// send nothing of a request that it began, or take nothing of its answer.
	Connections int      `yaml:"connections"`
	Stall       Duration `yaml:"stall"`
	// SharedMemory is what a partition on this host may share with conch, so that
	// large tensors cross no socket; 0 means none. It is never nil after Load.
	SharedMemory *Size    `yaml:"sharedMemory"`
	Drain        Duration `yaml:"drain"`
	// Hang is the least time after which an execution is taken for one that hangs; 0
	// means that none is. It is never nil after Load.
	Hang *Duration `yaml:"hang"`
}

// Log says how conch logs.
type Log struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
}

// Tracing says where spans of requests go. Without an endpoint there are none.
type Tracing struct {
	// Endpoint is host:port of an OpenTelemetry collector's OTLP over gRPC.
	Endpoint string `yaml:"endpoint"`
	// Sample is the part, from 0 to 1, of the requests without a trace of their
	// client's that get one. It is never nil after Load where there is an endpoint.
	Sample *float64 `yaml:"sample"`
	// Clients says whether a client that sends a trace decides if it is recorded.
	Clients string    `yaml:"clients"`
	TLS     ClientTLS `yaml:"tls"`
}

// Enabled reports whether requests are traced.
func (t Tracing) Enabled() bool { return t.Endpoint != "" }

// Whether a client that sends a trace decides if it is recorded.
const (
	TracingClientsFollow = "follow"
	TracingClientsIgnore = "ignore"
)

// Load reads, decodes, overlays, provisions and validates the file at path.
// An empty path means no file. Overlay may be nil; it holds what the command
// line says and wins over the file.
func Load(path string, overlay func(*Config), env Environment) (*Config, error) {
	c := &Config{}
	if path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("configuration: %w; name a readable file with --config", err)
		}
		if c, err = Parse(path, data); err != nil {
			return nil, err
		}
	}
	if overlay != nil {
		overlay(c)
	}
	c.Provision(env)
	if err := c.Validate(env); err != nil {
		return nil, named(path, err)
	}
	if err := c.readProfiles(path); err != nil {
		return nil, err
	}
	c.findBundles(path)
	return c, nil
}

// Reloadable compares a running configuration with the next one. It returns
// nil when everything that differs can change while conch serves (hotSections),
// else an error that names the sections that need a restart.
func Reloadable(running, next *Config) error {
	var fixed []string
	a, b := reflect.ValueOf(*running), reflect.ValueOf(*next)
	for i := range a.NumField() {
		field := a.Type().Field(i)
		key := yamlKey(field)
		if key == "" || hotSections[key] {
			continue
		}
		if !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			fixed = append(fixed, key)
		}
	}
	if len(fixed) == 0 {
		return nil
	}
	sort.Strings(fixed)
	return fmt.Errorf("reload refused, nothing was changed: %s cannot change while conch runs; restart it, or put the old values back", strings.Join(fixed, ", "))
}
