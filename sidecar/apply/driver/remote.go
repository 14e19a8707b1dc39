// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Mortal is a server of which is known when it is dead: Done is closed then, and Death says why.
type Mortal interface {
	Done() <-chan struct{}
	Death() string
}

// Remote is the part of a Server that is calls to a Triton over the network, for drivers of other packages: Live, Models, Parameter, Load and Unload
// are those of Server. Calls end when the server dies.
type Remote struct {
	calls
	life Mortal
	at   Endpoint
}

// NewRemote prepares the calls and makes none; nil credentials are in the clear.
func NewRemote(at Endpoint, how credentials.TransportCredentials, life Mortal) (*Remote, error) {
	c, err := dial(at.GRPC, how)
	if err != nil {
		return nil, err
	}
	return &Remote{calls: c, life: life, at: at}, nil
}

// Ready waits until the server says that it is ready and its HTTP door is open.
func (r *Remote) Ready(ctx context.Context) error {
	within, release := whileAlive(ctx, r.life)
	defer release()
	for {
		err := r.answersReady(within)
		if err == nil {
			return nil
		}
		if !sleep(within, 50*time.Millisecond) {
			return fmt.Errorf("the server at %s did not get ready: %w; at the last look: %w", r.at.GRPC, context.Cause(within), err)
		}
	}
}

func (r *Remote) answersReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	answer, err := r.client.Stub.ServerReady(ctx, &tritonpb.ServerReadyRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	if !answer.GetReady() {
		return errors.New("it says that it is not ready")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.at.HTTP)
	if err != nil {
		return err
	}
	return conn.Close() // nothing was sent
}

// Load implements Server.
func (r *Remote) Load(ctx context.Context, model string) error {
	return loadIn(ctx, r.life, model, func(ctx context.Context) error { return r.load(ctx, model) })
}

// Unload implements Server.
func (r *Remote) Unload(ctx context.Context, model string) error {
	within, release := whileAlive(ctx, r.life)
	defer release()
	if err := r.unload(within, model); err != nil {
		return fmt.Errorf("unload %q: %w", model, err)
	}
	return nil
}

// Release unloads every model, so that accepted requests are answered.
func (r *Remote) Release(ctx context.Context) error {
	within, release := whileAlive(ctx, r.life)
	defer release()
	models, err := r.Models(within)
	if err != nil {
		return err
	}
	group, unloading := errgroup.WithContext(within)
	for _, model := range models {
		group.Go(func() error { return r.unload(unloading, model) })
	}
	return group.Wait()
}

// Close ends the connection.
func (r *Remote) Close() error { return r.client.Close() }
