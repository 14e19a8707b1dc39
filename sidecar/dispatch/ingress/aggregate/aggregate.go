// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Partition is one Triton process, with what this package uses of it.
type Partition struct {
	ID     string
	HTTP   string // "host:port" or "unix:path"; empty if the process has no HTTP endpoint
	Up     bool
	Models []string // names of the models that are served there

	// WarmedUp returns the part of its statistics of a model that no client's request added; nil means nothing.
	WarmedUp func(model string) []*tritonpb.ModelStatistics

	// Conn is a connection to the process.
	Conn grpc.ClientConnInterface
}

// Partitions lists all partitions in a stable order.
type Partitions interface {
	Partitions() []Partition
}

// Model is a model of the route table.
type Model struct {
	Config   *tritonpb.ModelConfig
	Written  *tritonpb.ModelConfig // as its author wrote it; nil: like Config
	Versions []string              // served versions, ascending; none: the model is not loaded
	Absent   []string              // versions that are not served, though the model is known
	Cold     bool                  // a request loads it
	// ServedBy are the models that serve a name that is no model itself, such as
	// an app; Config is then that of one of them, but for the name.
	ServedBy []string
	// Group is the merge group in which the model's requests run as rows, and which partitions have in place of the model; empty: there is none.
	Group string
	// Internal models are not for clients: merge groups are.
	Internal bool
}

// Entry is a model of the repository.
type Entry struct {
	Name string
	// Versions that are not served for a Reason; none for a model that is served, or that was never loaded.
	Versions []string
	Reason   string
}

// Models is the route table. Its methods must be cheap: they are called for every inference request over HTTP.
type Models interface {
	// Lookup finds a model that is served, or was.
	Lookup(name string) (Model, bool)
	// Ready returns the error that inference requests get while it is not known which models are served, else nil.
	Ready() error
	// Repository lists the models of the repository, served or not, sorted by name.
	Repository() []Entry
}

// Count counts the requests of clients for a version of a model since it was last loaded, as Triton counts.
type Count struct {
	Success, Fail         uint64        // requests
	SuccessTime, FailTime time.Duration // sum over requests, from arrival to answer
	QueueTime             time.Duration // sum over successful requests, waiting in Conch
	// Ran counts successful requests by the rows that ran together with them; 0 stands for more than a batch may have.
	Ran map[int]uint64
	// Executions that partitions have answered: their statistics will show as many.
	Executions uint64
	// Rows of successful requests.
	Rows uint64
	// Walked counts the successful requests of an ensemble whose steps Conch executed, by their rows: no partition counts them. LastWalk is when the
	// last one ended.
	Walked   map[int]uint64
	LastWalk time.Time
	// Asked are the requests to partitions that those count as successes: the other successes are requests of ensembles.
	Asked uint64
}

// Counts has the requests of clients.
type Counts interface {
	// Count is false for a version of which nothing is known.
	Count(model, version string) (Count, bool)
}

// Repository loads and unloads models. Errors are gRPC status errors with Triton's text.
type Repository interface {
	Load(ctx context.Context, model string, parameters map[string]*tritonpb.ModelRepositoryParameter) error
	Unload(ctx context.Context, model string, parameters map[string]*tritonpb.ModelRepositoryParameter) error
}

// Regions records the memory that clients have registered.
type Regions interface {
	Registered(name, key string, offset, size uint64)
	// Unregistered with the empty name is for all regions.
	Unregistered(name string)
}

// Options are what an Aggregate needs; Partitions and Models are required.
type Options struct {
	Partitions Partitions
	Models     Models
	Counts     Counts     // nil: statistics are the partitions' sums
	Repository Repository // nil: models cannot be loaded by clients
	// Regions is called when servers have mapped or unmapped system shared memory; it may be nil.
	Regions Regions
	// Timeout bounds a call to a partition; zero means two seconds.
	Timeout time.Duration
}

// DefaultTimeout bounds a query to a partition.
const DefaultTimeout = 2 * time.Second

// Aggregate answers about all partitions. It is safe for concurrent use.
type Aggregate struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer

	o      Options
	memory memory
	// telling is held while partitions get orders that may have to be taken back.
	telling sync.Mutex
	anew    bygone
}

// New makes an Aggregate.
func New(o Options) *Aggregate {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Regions == nil {
		o.Regions = nobody{}
	}
	return &Aggregate{o: o, memory: memory{orders: map[key]proto.Message{}}}
}

type nobody struct{}

func (nobody) Registered(string, string, uint64, uint64) {}
func (nobody) Unregistered(string)                       {}

// HTTPEndpoints are the HTTP endpoints of the partitions that are up.
func (a *Aggregate) HTTPEndpoints() []string {
	var list []string
	for _, p := range a.up() {
		if p.HTTP != "" {
			list = append(list, p.HTTP)
		}
	}
	return list
}

func (a *Aggregate) up() []Partition {
	return slices.DeleteFunc(slices.Clone(a.o.Partitions.Partitions()), func(p Partition) bool { return !p.Up })
}

// with returns the partitions that are up and have the model.
func (a *Aggregate) with(model string) []Partition {
	return slices.DeleteFunc(a.up(), func(p Partition) bool { return !slices.Contains(p.Models, model) })
}

// having returns the partitions that are up and can be asked about the model: none, where its merge group runs in its
// place.
func (a *Aggregate) having(name string, m Model) []Partition {
	if m.Group != "" {
		return nil
	}
	return a.with(name)
}

// Model returns the configuration of a served model; an empty version is any. The error is Triton's, or that of
// Models.Ready.
func (a *Aggregate) Model(name, version string) (*tritonpb.ModelConfig, error) {
	if err := a.o.Models.Ready(); err != nil {
		return nil, err
	}
	version, err := canonicalVersion(version)
	if err != nil {
		return nil, err
	}
	m, err := a.find(name, version)
	return m.Config, err
}

func (a *Aggregate) find(name, version string) (Model, error) {
	m, ok := a.o.Models.Lookup(name)
	switch {
	case !ok || m.Internal:
		return m, status.Errorf(codes.NotFound, "Request for unknown model: '%s' is not found", name)
	case len(m.Versions) == 0 && version != "" && slices.Contains(m.Absent, version):
		return m, status.Errorf(codes.Unavailable, "Request for unknown model: '%s' version %s is not at ready state", name, version)
	case len(m.Versions) == 0 && version == "":
		return m, status.Errorf(codes.NotFound, "Request for unknown model: '%s' has no available versions", name)
	case version != "" && !slices.Contains(m.Versions, version):
		return m, status.Errorf(codes.NotFound, "Request for unknown model: '%s' version %s is not found", name, version)
	}
	return m, nil
}

// canonicalVersion reads a version as Triton does, which accepts any text that begins with a number: "01" and "1.0" are
// 1.
func canonicalVersion(version string) (string, error) {
	if version == "" {
		return "", nil
	}
	n, err := strconv.ParseInt(triton.LeadingInt(version), 10, 64)
	if err != nil {
		return "", status.Errorf(codes.InvalidArgument,
			"failed to get model version from specified version string '%s' (details: stol), version should be an integral value > 0", version)
	}
	if n < 0 {
		return "", status.Errorf(codes.InvalidArgument,
			"invalid model version specified '%s' , version should be an integral value > 0", version)
	}
	return strconv.FormatInt(n, 10), nil
}

// ServerLive is always true: Conch is live if it answers.
func (a *Aggregate) ServerLive(context.Context, *tritonpb.ServerLiveRequest) (*tritonpb.ServerLiveResponse, error) {
	return &tritonpb.ServerLiveResponse{Live: true}, nil
}

// ServerReady is true if a partition that is up reports that it is ready. A server that Conch did not start reports that by its own setting: with
// Triton's default, strict readiness, it is not ready after a model failed to load. Conch's own servers are started without it, so that one model
// does not take the others out of service. All are asked at once, so that a probe does not wait for a server that hangs.
func (a *Aggregate) ServerReady(ctx context.Context, r *tritonpb.ServerReadyRequest) (*tritonpb.ServerReadyResponse, error) {
	up := a.up()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready := make(chan bool, len(up))
	for _, p := range up {
		go func() {
			answer, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.ServerReady, r)
			ready <- err == nil && answer.GetReady()
		}()
	}
	for range up {
		if <-ready {
			return &tritonpb.ServerReadyResponse{Ready: true}, nil
		}
	}
	return &tritonpb.ServerReadyResponse{}, nil
}

// ModelReady is true if a partition that has the model is up, or if a request
// would load the model: clients that check readiness first would never send that
// request otherwise.
func (a *Aggregate) ModelReady(_ context.Context, r *tritonpb.ModelReadyRequest) (*tritonpb.ModelReadyResponse, error) {
	version, err := canonicalVersion(r.GetVersion())
	if err != nil {
		return nil, err
	}
	m, err := a.find(r.GetName(), version)
	ready := err == nil && (m.Cold || len(a.with(r.GetName())) > 0)
	for _, name := range m.ServedBy {
		ready = ready || err == nil && len(a.with(name)) > 0
	}
	return &tritonpb.ModelReadyResponse{Ready: ready}, nil
}

// ServerMetadata is a partition's, or Conch's own while no partition answers.
func (a *Aggregate) ServerMetadata(ctx context.Context, r *tritonpb.ServerMetadataRequest) (*tritonpb.ServerMetadataResponse, error) {
	for _, p := range a.up() {
		answer, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.ServerMetadata, r)
		if err == nil {
			return answer, nil
		}
	}
	return &tritonpb.ServerMetadataResponse{Name: "triton"}, nil
}

// ModelMetadata is that of a partition that has the model, or derived from the configuration.
func (a *Aggregate) ModelMetadata(ctx context.Context, r *tritonpb.ModelMetadataRequest) (*tritonpb.ModelMetadataResponse, error) {
	version, err := canonicalVersion(r.GetVersion())
	if err != nil {
		return nil, err
	}
	m, err := a.find(r.GetName(), version)
	if err != nil {
		return nil, err
	}
	for _, p := range a.having(r.GetName(), m) {
		answer, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.ModelMetadata, r)
		if err == nil {
			return answer, nil
		}
	}
	versions := m.Versions
	if version != "" {
		versions = []string{version}
	}
	derived := triton.Metadata(m.Config, versions)
	derived.Name = r.GetName()
	return derived, nil
}

// ModelConfig is that of a partition that has the model, which has filled in Triton's defaults, or the file's. Settings
// that Conch took out of the file, because it implements them itself, are in it as a server would report them.
func (a *Aggregate) ModelConfig(ctx context.Context, r *tritonpb.ModelConfigRequest) (*tritonpb.ModelConfigResponse, error) {
	version, err := canonicalVersion(r.GetVersion())
	if err != nil {
		return nil, err
	}
	m, err := a.find(r.GetName(), version)
	if err != nil {
		return nil, err
	}
	for _, p := range a.having(r.GetName(), m) {
		answer, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.ModelConfig, r)
		if err == nil {
			delete(answer.GetConfig().GetParameters(), revisionParameter)
			answer.Config = asWritten(answer.GetConfig(), m.Written)
			return answer, nil
		}
	}
	if m.Written != nil {
		return &tritonpb.ModelConfigResponse{Config: asWritten(m.Config, m.Written)}, nil
	}
	if m.Config.GetName() != r.GetName() {
		named := proto.CloneOf(m.Config)
		named.Name = r.GetName()
		return &tritonpb.ModelConfigResponse{Config: named}, nil
	}
	return &tritonpb.ModelConfigResponse{Config: m.Config}, nil
}

// RepositoryModelLoad loads a model where the plan wants it.
func (a *Aggregate) RepositoryModelLoad(ctx context.Context, r *tritonpb.RepositoryModelLoadRequest) (*tritonpb.RepositoryModelLoadResponse, error) {
	if err := a.checkRepository(r.GetRepositoryName()); err != nil {
		return nil, err
	}
	if err := a.o.Repository.Load(ctx, r.GetModelName(), r.GetParameters()); err != nil {
		return nil, err
	}
	return &tritonpb.RepositoryModelLoadResponse{}, nil
}

// RepositoryModelUnload unloads a model everywhere.
func (a *Aggregate) RepositoryModelUnload(ctx context.Context, r *tritonpb.RepositoryModelUnloadRequest) (*tritonpb.RepositoryModelUnloadResponse, error) {
	if err := a.checkRepository(r.GetRepositoryName()); err != nil {
		return nil, err
	}
	if err := a.o.Repository.Unload(ctx, r.GetModelName(), r.GetParameters()); err != nil {
		return nil, err
	}
	return &tritonpb.RepositoryModelUnloadResponse{}, nil
}

func (a *Aggregate) checkRepository(name string) error {
	if name != "" {
		return status.Error(codes.Unimplemented, "'repository_name' specification is not supported")
	}
	if a.o.Repository == nil {
		return status.Error(codes.Unavailable, "explicit model load / unload is not allowed if polling is enabled")
	}
	return nil
}
