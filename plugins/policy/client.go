// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// ErrGarbled means that a plugin's answer is not the message it should be, or
// is larger than the connection allows.
var ErrGarbled = errors.New("policy: the answer is not a valid message")

// Client is the host's half: a [Policy] at the other end of a connection.
type Client struct {
	rpc PolicyClient
}

var _ Policy = (*Client)(nil)

// NewClient returns the policy served at the other end of c.
func NewClient(c grpc.ClientConnInterface) *Client {
	return &Client{rpc: NewPolicyClient(c)}
}

// Describe implements [Policy]. An answer that does not decode is [ErrGarbled];
// other errors are gRPC statuses.
func (c *Client) Describe(ctx context.Context) (*Description, error) {
	codec := &answerCodec{}
	d, err := c.rpc.Describe(ctx, &DescribeRequest{}, grpc.ForceCodecV2(codec))
	if err != nil {
		return nil, codec.explain(err)
	}
	return d, nil
}

// Plan implements [Policy], with the errors of [Client.Describe]. The policy's
// questions go to h, within Snapshot.evaluations: one that asks for more, or
// that ends the call without a plan, is [ErrGarbled]. An error of h ends the
// call and is returned as it is.
func (c *Client) Plan(ctx context.Context, s *Snapshot, h Host) (*Plan, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	codec := &answerCodec{}
	stream, err := c.rpc.Plan(ctx, grpc.ForceCodecV2(codec))
	if err != nil {
		return nil, codec.explain(err)
	}
	message := &HostMessage{Message: &HostMessage_Snapshot{Snapshot: s}}
	left := s.GetEvaluations()
	for {
		// A failed Send means that the stream is over; Recv says why.
		if err := stream.Send(message); err != nil && !errors.Is(err, io.EOF) {
			return nil, codec.explain(err)
		}
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: the policy ended the call without a plan", ErrGarbled)
		}
		if err != nil {
			return nil, codec.explain(err)
		}
		switch what := answer.GetMessage().(type) {
		case *PolicyMessage_Plan:
			if what.Plan == nil {
				return nil, fmt.Errorf("%w: an empty plan message", ErrGarbled)
			}
			return what.Plan, nil
		case *PolicyMessage_Evaluate:
			plans := what.Evaluate.GetPlans()
			if len(plans) > MaxEvaluatePlans || uint32(len(plans)) > left {
				return nil, fmt.Errorf("%w: it asks to evaluate %d plans; at most %d a question, and %d of the snapshot's %d evaluations are left",
					ErrGarbled, len(plans), MaxEvaluatePlans, left, s.GetEvaluations())
			}
			left -= uint32(len(plans))
			outcomes, err := h.EvaluateDraw(ctx, what.Evaluate.GetDraw(), plans...)
			if err != nil {
				return nil, err
			}
			message = &HostMessage{Message: &HostMessage_Outcomes{Outcomes: &Outcomes{Outcomes: outcomes}}}
		default:
			return nil, fmt.Errorf("%w: a message that is neither a question nor a plan", ErrGarbled)
		}
	}
}

// answerCodec is the protobuf codec of one call. gRPC reports an answer that
// does not decode as an internal error like any other, so the codec remembers
// that it was the one to fail.
type answerCodec struct {
	err error
}

// Name is the content-subtype of protobuf over gRPC.
func (*answerCodec) Name() string { return "proto" }

// Marshal encodes the request.
func (*answerCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("policy: %T is not a protobuf message", v)
	}
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Unmarshal decodes the answer, unless that would take too much memory.
func (c *answerCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("policy: %T is not a protobuf message", v)
	}
	wire := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer wire.Free()
	if err := weigh(wire.ReadOnlyData(), m.ProtoReflect().Descriptor()); err != nil {
		c.err = err
		return err
	}
	if err := proto.Unmarshal(wire.ReadOnlyData(), m); err != nil {
		c.err = err
		return err
	}
	return nil
}

// tooLarge is how grpc-go begins the text of its own refusal to receive a
// message; the status code alone could as well be the policy's.
const tooLarge = "grpc: received message larger than max"

func (c *answerCodec) explain(err error) error {
	switch {
	case c.err != nil:
		return fmt.Errorf("%w: %w", ErrGarbled, c.err)
	case status.Code(err) == codes.ResourceExhausted && strings.Contains(status.Convert(err).Message(), tooLarge):
		return fmt.Errorf("%w: %s", ErrGarbled, status.Convert(err).Message())
	}
	return err
}
