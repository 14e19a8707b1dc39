// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
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

// Plan implements [Policy], with the errors of [Client.Describe].
func (c *Client) Plan(ctx context.Context, s *Snapshot) (*Plan, error) {
	codec := &answerCodec{}
	p, err := c.rpc.Plan(ctx, s, grpc.ForceCodecV2(codec))
	if err != nil {
		return nil, codec.explain(err)
	}
	return p, nil
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

// Unmarshal decodes the answer.
func (c *answerCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("policy: %T is not a protobuf message", v)
	}
	if err := proto.Unmarshal(data.Materialize(), m); err != nil {
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
