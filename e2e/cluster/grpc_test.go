// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// client is one of the callers over gRPC and the address that it has a connection to.
type client struct {
	n       int
	address string
}

// clients keep their connections, as clients over gRPC do.
type clients struct {
	mu  sync.Mutex
	all map[client]*grpc.ClientConn
}

// to is the connection of a client.
func (c *clients) to(who client) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.all[who]; conn != nil {
		return conn, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+who.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond}, MinConnectTimeout: 2 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(encoded{})))
	if err == nil {
		c.all[who] = conn
	}
	return conn, err
}

func (c *clients) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.all {
		_ = conn.Close() // nothing is under way
	}
}

// infer sends a request, and looks at the answer: the model's is 2x+1.
func (c *clients) infer(who client, model string) error {
	conn, err := c.to(who)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	request, answer := modelInfer(model), []byte(nil)
	if err := conn.Invoke(ctx, "/inference.GRPCInferenceService/ModelInfer", &request, &answer); err != nil {
		return err
	}
	// Of the answer's fields the raw outputs are one of sixteen floats, 7 each.
	if !bytes.Contains(answer, floats(16, 7)) {
		return fmt.Errorf("the answer over gRPC is another one: %q", answer)
	}
	return nil
}

// unsent reports that a request over gRPC was not sent, since there is no connection.
func unsent(err error) bool {
	said := status.Convert(err)
	return err != nil && said.Code() == codes.Unavailable && (strings.HasPrefix(said.Message(), "connection error") || strings.HasPrefix(said.Message(), "last connection error"))
}

// cutOff reports that the connection broke on which a request over gRPC was sent.
func cutOff(err error) bool {
	said := status.Convert(err)
	return err != nil && said.Code() == codes.Unavailable && (strings.HasPrefix(said.Message(), "error reading from server") || strings.Contains(said.Message(), "transport"))
}

// encoded is a codec of messages that are encoded.
type encoded struct{}

func (encoded) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (encoded) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

func (encoded) Name() string { return "proto" }

// modelInfer is a ModelInferRequest with the input of the tests' models: sixteen floats, 3 each.
func modelInfer(model string) (m []byte) {
	text := func(to []byte, number protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), value)
	}
	input := text(nil, 1, []byte("INPUT"))
	input = text(input, 2, []byte("FP32"))
	input = text(input, 3, []byte{1, 16}) // the shape, packed
	m = text(m, 1, []byte(model))
	m = text(m, 5, input)
	return text(m, 7, floats(16, 3))
}

func floats(n int, value float32) (b []byte) {
	for range n {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(value))
	}
	return b
}
