// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton

import (
	"context"
	"errors"
	"fmt"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// MaxMessage is the largest gRPC message that Triton takes and sends, in bytes.
const MaxMessage = math.MaxInt32

// window is Triton's own initial flow-control window: with gRPC's default of 64 KiB a large tensor waits for many round trips.
const window = 4 << 20

// The states of a model version in the repository index. A model that was never loaded has the empty state.
const (
	StateReady       = "READY"
	StateUnavailable = "UNAVAILABLE"
	StateLoading     = "LOADING"
	StateUnloading   = "UNLOADING"
)

// Client speaks to one Triton server. It is safe for concurrent use.
type Client struct {
	endpoint string
	conn     *grpc.ClientConn
	// Stub is the generated client, for what Client has no method for. Its errors are plain gRPC statuses.
	Stub pb.GRPCInferenceServiceClient
}

// DialOptions are the options that a connection to Triton needs: no TLS (partitions are on loopback) and Triton's message limits.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
	}
}

// Dial prepares a client for host:port or unix:path. It does not wait for the server: the first call does, and fails if none is there.
// Options are added to DialOptions.
func Dial(endpoint string, options ...grpc.DialOption) (*Client, error) {
	target := endpoint
	if endpoint == "" {
		return nil, errors.New("triton: empty endpoint; give host:port or unix:path")
	}
	conn, err := grpc.NewClient("passthrough:///"+target, append(DialOptions(), options...)...)
	if err != nil {
		return nil, fmt.Errorf("triton %s: %w", endpoint, err)
	}
	return &Client{endpoint: endpoint, conn: conn, Stub: pb.NewGRPCInferenceServiceClient(conn)}, nil
}

// Conn is the connection under the client.
func (c *Client) Conn() *grpc.ClientConn { return c.conn }

// Close closes the connection; calls under way fail.
func (c *Client) Close() error { return c.conn.Close() }

// Error is a failed call: what was asked of which server, and the gRPC status it gave.
type Error struct {
	Endpoint string
	Call     string // such as `load model "resnet"`
	Err      error  // the gRPC status error
}

// Error says which server failed at what, with its own words.
func (e *Error) Error() string {
	s := status.Convert(e.Err)
	return fmt.Sprintf("triton %s: %s: %s: %s", e.Endpoint, e.Call, s.Code(), s.Message())
}

// Unwrap gives the gRPC status error, so that status.Code works on an Error.
func (e *Error) Unwrap() error { return e.Err }

// GRPCStatus is the server's status.
func (e *Error) GRPCStatus() *status.Status { return status.Convert(e.Err) }

// IsNotFound says whether an error is Triton's for a model it does not serve.
func IsNotFound(err error) bool { return status.Code(err) == codes.NotFound }

func (c *Client) failed(err error, call string, args ...any) error {
	if err == nil {
		return nil
	}
	return &Error{Endpoint: c.endpoint, Call: fmt.Sprintf(call, args...), Err: err}
}

// Live says whether the server is up.
func (c *Client) Live(ctx context.Context) (bool, error) {
	r, err := c.Stub.ServerLive(ctx, &pb.ServerLiveRequest{})
	return r.GetLive(), c.failed(err, "ask whether it is live")
}

// Ready says whether the server calls itself ready, which with strict readiness depends on its models.
func (c *Client) Ready(ctx context.Context) (bool, error) {
	r, err := c.Stub.ServerReady(ctx, &pb.ServerReadyRequest{})
	return r.GetReady(), c.failed(err, "ask whether it is ready")
}

// ModelReady says whether a version of a model takes requests; an empty version asks for any. A model that does not exist is not ready.
func (c *Client) ModelReady(ctx context.Context, model, version string) (bool, error) {
	r, err := c.Stub.ModelReady(ctx, &pb.ModelReadyRequest{Name: model, Version: version})
	return r.GetReady(), c.failed(err, "ask whether model %q is ready", model)
}

// Metadata is the server's name, version and extensions.
func (c *Client) Metadata(ctx context.Context) (*pb.ServerMetadataResponse, error) {
	r, err := c.Stub.ServerMetadata(ctx, &pb.ServerMetadataRequest{})
	return r, c.failed(err, "read the server metadata")
}

// Index lists the models of the repository with their states; ready asks for those that serve only.
func (c *Client) Index(ctx context.Context, ready bool) ([]*pb.RepositoryIndexResponse_ModelIndex, error) {
	r, err := c.Stub.RepositoryIndex(ctx, &pb.RepositoryIndexRequest{Ready: ready})
	return r.GetModels(), c.failed(err, "read the repository index")
}

// Load loads or reloads a model and returns once it serves or has failed. Give the context a deadline: a load can hang for ever in Triton.
func (c *Client) Load(ctx context.Context, model string) error {
	_, err := c.Stub.RepositoryModelLoad(ctx, &pb.RepositoryModelLoadRequest{ModelName: model})
	return c.failed(err, "load model %q", model)
}

// LoadConfig is Load with the JSON of a complete ModelConfig in place of config.pbtxt. The override stays until the model's files change.
func (c *Client) LoadConfig(ctx context.Context, model, configJSON string) error {
	_, err := c.Stub.RepositoryModelLoad(ctx, &pb.RepositoryModelLoadRequest{ModelName: model, Parameters: map[string]*pb.ModelRepositoryParameter{
		"config": {ParameterChoice: &pb.ModelRepositoryParameter_StringParam{StringParam: configJSON}},
	}})
	return c.failed(err, "load model %q with a config", model)
}

// Unload takes a model out of service. It returns before the model's last request is answered: see the index.
func (c *Client) Unload(ctx context.Context, model string) error {
	_, err := c.Stub.RepositoryModelUnload(ctx, &pb.RepositoryModelUnloadRequest{ModelName: model})
	return c.failed(err, "unload model %q", model)
}

// ModelConfig is a loaded model's config with Triton's defaults filled in. An empty version asks for the highest.
func (c *Client) ModelConfig(ctx context.Context, model, version string) (*pb.ModelConfig, error) {
	r, err := c.Stub.ModelConfig(ctx, &pb.ModelConfigRequest{Name: model, Version: version})
	return r.GetConfig(), c.failed(err, "read the config of model %q", model)
}

// ModelMetadata is a loaded model's versions and tensors, batch dimension included. An empty version asks for the highest.
func (c *Client) ModelMetadata(ctx context.Context, model, version string) (*pb.ModelMetadataResponse, error) {
	r, err := c.Stub.ModelMetadata(ctx, &pb.ModelMetadataRequest{Name: model, Version: version})
	return r, c.failed(err, "read the metadata of model %q", model)
}

// Statistics are the counters of loaded models. An empty model asks for all, an empty version for all of a model's versions.
func (c *Client) Statistics(ctx context.Context, model, version string) ([]*pb.ModelStatistics, error) {
	r, err := c.Stub.ModelStatistics(ctx, &pb.ModelStatisticsRequest{Name: model, Version: version})
	return r.GetModelStats(), c.failed(err, "read the statistics of model %q", model)
}
