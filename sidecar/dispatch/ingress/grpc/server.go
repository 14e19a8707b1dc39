// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/buffers"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// Inferer is the request path.
type Inferer interface {
	// Begin answers one request, takes over one reference to it, and does not wait. Then is called once with the answer, which it frees, by any goroutine,
	// this one included, and must not block. What is sent meanwhile belongs to the turn of the goroutine.
	Begin(ctx context.Context, t *wire.Turn, r *batch.Request, then func(*wire.Turn, *batch.Response, error))
	// InferStream serves one ModelStreamInfer call.
	InferStream(downstream grpc.ServerStream) error
	// Stream passes a call of any other method through.
	Stream(method string, downstream grpc.ServerStream) error
}

// Aggregator answers for all partitions as if they were one server: Triton's service without inference, for which it is not asked. So there is one
// place for what a single partition does not have: the index, statistics, and shared-memory registration, which every partition must receive.
type Aggregator = tritonpb.GRPCInferenceServiceServer

// Options of New.
type Options struct {
	Inferer    Inferer
	Aggregator Aggregator
	// Credentials are those of clients' connections; nil means in the clear. The
	// gate bounds what clients make Conch hold where the listener is the gate's.
	Credentials credentials.TransportCredentials
	// MaxMessage is the largest message that is received; 0: there is no limit but gRPC's.
	MaxMessage int
	// MaxAge is how old a client's connection may become, give or take a tenth, before the client is asked to make another one; 0: there is no limit.
	// Calls that are under way on it then have Grace to end; 0: as long as they take.
	MaxAge, Grace time.Duration
	// GRPC has grpc-go serve ModelInfer, too.
	GRPC bool
	// Refused is called for inference requests that the Inferer never receives, with the answer's error: calls of ModelInfer and ModelStreamInfer
	// for which there is no room, and messages of theirs that cannot be read or never came whole. Their model is not known. It may be nil.
	//
	// It is not called for a call whose grpc-encoding has no decompressor. grpc-go ends that call with UNIMPLEMENTED where it sets the call up
	// (Server.processRPC): before interceptors and handlers, that of unknown services included. An InTapHandle is called earlier, but the
	// transport has taken grpc-encoding out of the headers that it receives. Only a stats.Handler receives the call. grpc-go makes half a dozen
	// events of every call for one, and copies its metadata: all requests would pay for what no client of Triton's sends. Nor is it called for
	// calls that the transport itself ends, whose headers are malformed or whose deadline has passed.
	Refused func(ctx context.Context, model string, cause error)
	// Pool supplies buffers for frames; nil means one of its own.
	Pool mem.BufferPool
	// Logger logs panics of handlers; nil discards.
	Logger *slog.Logger
}

// Triton's own settings, so that a client meets the limits it is used to.
const (
	window        = 4 << 20
	maxHeaderList = 16 << 10
)

// connectionBuffer is larger than grpc-go's 32 KiB: a 600 KB message then takes a
// quarter of the system calls, which saved a fifth of what Conch adds to it.
const connectionBuffer = 128 << 10

// Bounds of one connection that Triton does not have and that clients do not reach
// in normal use.
const (
	// maxStreams bounds the handlers of a client that opens and resets streams;
	// the limit on all requests bounds the others.
	maxStreams = 16 << 10
	// pings more frequent than this are a flood. Triton lets clients ping as often
	// as they like while calls are under way.
	pingInterval = 10 * time.Millisecond
	// handshake is how long a client may take for the HTTP/2 handshake.
	handshake = 20 * time.Second
)

// streamWorkers is how many goroutines are kept for calls. A call beyond them
// gets a new one, which first has to grow its stack.
const streamWorkers = 128

// New makes the gRPC server: serve it with Serve(listener), end it with
// GracefulStop or Stop.
func New(o Options) *Server {
	if o.Credentials == nil {
		o.Credentials = insecure.NewCredentials()
	}
	if o.Pool == nil {
		o.Pool = new(buffers.Pool)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxMessage == 0 {
		o.MaxMessage = math.MaxInt32
	}
	if o.Refused == nil {
		o.Refused = func(context.Context, string, error) {}
	}
	served := &Server{}
	secured := gate.Credentials(o.Credentials)
	if !o.GRPC {
		served.wire = newWire(o, &unaryInfer{inferer: o.Inferer, refused: o.Refused, log: o.Logger})
		secured = inner{secured}
		o.MaxAge = 0 // wire sees to that
	}
	s := grpc.NewServer([]grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: o.MaxAge, MaxConnectionAgeGrace: o.Grace}),
		grpc.ForceServerCodecV2(batch.Codec{}),
		grpc.MaxRecvMsgSize(o.MaxMessage),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.InitialWindowSize(window),
		grpc.InitialConnWindowSize(4 * window),
		grpc.MaxHeaderListSize(maxHeaderList),
		experimental.BufferPool(o.Pool),
		grpc.ReadBufferSize(connectionBuffer),
		grpc.WriteBufferSize(connectionBuffer),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshake),
		grpc.Creds(secured),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingInterval, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.ChainStreamInterceptor(recovering(o.Logger), exceeded),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			method, ok := grpc.MethodFromServerStream(stream)
			if !ok {
				return status.Error(codes.Internal, "a call without a method")
			}
			return stage(stream, nil, func(stream grpc.ServerStream) error { return o.Inferer.Stream(method, stream) })
		}),
	}...)
	f := &front{Aggregator: o.Aggregator, inferer: o.Inferer, refused: o.Refused}
	infer := tritonpb.GRPCInferenceService_ServiceDesc
	s.RegisterService(staged(&infer, map[string]grpc.StreamHandler{
		"ModelInfer":       f.modelInfer,
		"ModelStreamInfer": func(_ any, stream grpc.ServerStream) error { return stage(stream, o.Refused, o.Inferer.InferStream) },
	}), f)
	alive := healthpb.Health_ServiceDesc
	s.RegisterService(staged(&alive, nil), &health{aggregator: o.Aggregator})
	served.grpc = s
	return served
}

// inner are the credentials of connections behind package wire, which have done their handshake.
type inner struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (inner) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(interface{ AuthInfo() credentials.AuthInfo })
	if !ok {
		return nil, nil, errors.New("a connection that has not come through the front")
	}
	return raw, c.AuthInfo(), nil
}

// Clone implements credentials.TransportCredentials.
func (i inner) Clone() credentials.TransportCredentials { return inner{i.TransportCredentials.Clone()} }

// front is the generated service: its control-plane methods are the
// Aggregator's. ModelInfer and ModelStreamInfer are never called: the descriptor
// names others in their place.
type front struct {
	Aggregator
	inferer Inferer
	refused func(ctx context.Context, model string, cause error)
}

// unreadable is the answer to bytes that are no request. They are not passed on: a
// server might accept what this reader refuses, and crash.
func unreadable(err error) error {
	if errors.Is(err, batch.ErrTooMany) {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return status.Error(codes.Internal, "Unable to parse request")
}

// health is grpc.health.v1 as Triton has it: one status for the whole server.
type health struct {
	healthpb.UnimplementedHealthServer
	aggregator Aggregator
}

// Check implements grpc.health.v1.Health.
func (h *health) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	r, err := h.aggregator.ServerReady(ctx, &tritonpb.ServerReadyRequest{})
	if err != nil {
		return nil, err
	}
	if !r.GetReady() {
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// Watch implements grpc.health.v1.Health: Triton does not implement it, and
// returns an empty message.
func (h *health) Watch(*healthpb.HealthCheckRequest, grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	return status.Error(codes.Unimplemented, "")
}
