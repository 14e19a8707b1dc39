// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The handshake between host and plugin, as go-plugin does it: the host sets
// the cookie in the plugin's environment, the plugin answers with one line on
// standard output that names the protocol version and where it listens.
const (
	// ProtocolVersion of the contract. It changes when a policy built against the
	// old one could no longer be understood.
	ProtocolVersion = 2
	// CookieKey and CookieValue are no secret; they tell a plugin that it was
	// started by Conch and not by a person.
	CookieKey   = "CONCH_POLICY_PLUGIN"
	CookieValue = "6d0a3b5e-policy-v2"
	// PluginName is what the host dispenses.
	PluginName = "policy"
	// maxSnapshotBytes bounds a snapshot as the plugin receives it; gRPC's own 4
	// MiB are too few for a thousand models with their profiles.
	maxSnapshotBytes = 256 << 20
)

// Serve serves p as this process's plugin and returns when the host is done
// with it. A process that was not started by Conch prints an error on standard error
// and exits with status 1; see [Hosted].
func Serve(p Policy) {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  handshake(),
		VersionedPlugins: Plugins(p),
		GRPCServer: func(o []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(o, grpc.MaxRecvMsgSize(maxSnapshotBytes))...)
		},
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Info, JSONFormat: true}),
	})
}

// Hosted reports whether the environment is that of a plugin that Conch
// started. A program that does more than serve a policy asks it before [Serve].
func Hosted(getenv func(string) string) bool {
	return getenv(CookieKey) == CookieValue
}

// ClientConfig is what a host needs to start a policy: handshake, protocol
// version, gRPC only, and the typed client. The caller adds the command.
func ClientConfig() *plugin.ClientConfig {
	return &plugin.ClientConfig{
		HandshakeConfig:  handshake(),
		VersionedPlugins: Plugins(nil),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
	}
}

// Plugins is the plugin set of each protocol version, serving p; nil on the
// host's side.
func Plugins(p Policy) map[int]plugin.PluginSet {
	return map[int]plugin.PluginSet{
		ProtocolVersion: {PluginName: &grpcPlugin{policy: p}},
	}
}

func handshake() plugin.HandshakeConfig {
	return plugin.HandshakeConfig{
		ProtocolVersion:  ProtocolVersion,
		MagicCookieKey:   CookieKey,
		MagicCookieValue: CookieValue,
	}
}

// grpcPlugin is both halves of the plugin as go-plugin wants them.
type grpcPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	policy Policy
}

var _ plugin.GRPCPlugin = (*grpcPlugin)(nil)

// GRPCServer registers the policy on the plugin's server.
func (p *grpcPlugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	if p.policy == nil {
		return errors.New("policy: nothing to serve: Plugins was given no policy")
	}
	RegisterPolicyServer(s, &server{policy: p.policy})
	return nil
}

// GRPCClient returns a [*Client].
func (p *grpcPlugin) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return NewClient(c), nil
}

// server is a [Policy] as the generated server interface.
type server struct {
	UnimplementedPolicyServer
	policy Policy
}

func (s *server) Describe(ctx context.Context, _ *DescribeRequest) (*Description, error) {
	return s.policy.Describe(ctx)
}

func (s *server) Plan(stream grpc.BidiStreamingServer[HostMessage, PolicyMessage]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	snapshot := first.GetSnapshot()
	if snapshot == nil {
		return status.Error(codes.InvalidArgument, "policy: the first message of a Plan call is the snapshot")
	}
	var host Host = NoEvaluation{}
	if snapshot.GetEvaluations() > 0 {
		host = &remoteHost{stream: stream, left: snapshot.GetEvaluations()}
	}
	plan, err := s.policy.Plan(stream.Context(), snapshot, host)
	if err != nil {
		return err
	}
	return stream.Send(&PolicyMessage{Message: &PolicyMessage_Plan{Plan: plan}})
}

// remoteHost is the [Host] at the other end of a Plan call. Questions are asked
// one at a time.
type remoteHost struct {
	stream grpc.BidiStreamingServer[HostMessage, PolicyMessage]
	asking sync.Mutex
	left   uint32
}

// Evaluate implements [Host].
func (h *remoteHost) Evaluate(ctx context.Context, plans ...*Plan) ([]*Outcome, error) {
	return h.EvaluateDraw(ctx, 0, plans...)
}

// EvaluateDraw implements [Host].
func (h *remoteHost) EvaluateDraw(ctx context.Context, draw uint32, plans ...*Plan) ([]*Outcome, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h.asking.Lock()
	defer h.asking.Unlock()
	left, err := Spend(h.left, plans)
	if err != nil {
		return nil, err
	}
	h.left = left
	if err := h.stream.Send(&PolicyMessage{Message: &PolicyMessage_Evaluate{Evaluate: &EvaluateRequest{Plans: plans, Draw: draw}}}); err != nil {
		return nil, err
	}
	answer, err := h.stream.Recv()
	if err != nil {
		return nil, err
	}
	outcomes := answer.GetOutcomes().GetOutcomes()
	if len(outcomes) != len(plans) {
		return nil, fmt.Errorf("policy: the host answered %d plans with %d outcomes", len(plans), len(outcomes))
	}
	return outcomes, nil
}
