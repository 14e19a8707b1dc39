// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// connections are the gRPC connections for queries, apart from those that carry inference. They are made when first used
// and dropped when their partition is no longer listed.
type connections struct {
	credentials credentials.TransportCredentials // nil: in the clear

	mu     sync.Mutex
	open   map[string]*grpc.ClientConn
	closed bool
}

var errClosed = errors.New("aggregate: closed")

func (c *connections) client(p Partition) (tritonpb.GRPCInferenceServiceClient, error) {
	endpoint := p.GRPC
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if p.Conn != nil {
		return tritonpb.NewGRPCInferenceServiceClient(p.Conn), nil
	}
	if conn, ok := c.open[endpoint]; ok {
		return tritonpb.NewGRPCInferenceServiceClient(conn), nil
	}
	transport := c.credentials
	if transport == nil {
		transport = insecure.NewCredentials()
	}
	target := endpoint
	if !strings.HasPrefix(endpoint, "unix:") {
		target = "passthrough:///" + endpoint
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, fmt.Errorf("partition at %s: %w", endpoint, err)
	}
	if c.open == nil {
		c.open = make(map[string]*grpc.ClientConn)
	}
	c.open[endpoint] = conn
	return tritonpb.NewGRPCInferenceServiceClient(conn), nil
}

// keep drops the connections to endpoints that are not listed.
func (c *connections) keep(partitions []Partition) {
	listed := make(map[string]bool, len(partitions))
	for _, p := range partitions {
		listed[p.GRPC] = listed[p.GRPC] || p.Conn == nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for endpoint, conn := range c.open {
		if !listed[endpoint] {
			_ = conn.Close() // it is not used any more
			delete(c.open, endpoint)
		}
	}
}

func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.open {
		_ = conn.Close() // nothing is left to lose
	}
	c.open = nil
}

// method is a method of the generated client.
type method[Q, A any] func(tritonpb.GRPCInferenceServiceClient, context.Context, Q, ...grpc.CallOption) (A, error)

// ask calls one partition, within the timeout.
func ask[Q, A any](ctx context.Context, a *Aggregate, p Partition, m method[Q, A], request Q) (A, error) {
	client, err := a.conns.client(p)
	if err != nil {
		var none A
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.o.Timeout)
	defer cancel()
	return m(client, ctx, request)
}

// askAll calls partitions at once; the answers are in their order.
func askAll[Q, A any](ctx context.Context, a *Aggregate, partitions []Partition, m method[Q, A], request Q) ([]A, []error) {
	a.conns.keep(a.o.Partitions.Partitions())
	answers, failures := make([]A, len(partitions)), make([]error, len(partitions))
	var wg sync.WaitGroup
	for i, p := range partitions {
		wg.Go(func() { answers[i], failures[i] = ask(ctx, a, p, m, request) })
	}
	wg.Wait()
	return answers, failures
}
