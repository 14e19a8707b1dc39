// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// calls are what is asked and ordered of a Triton over gRPC: over HTTP it loads
// on the thread that serves inference.
type calls struct{ client *triton.Client }

// dial prepares the calls of an address; nil credentials are in the clear.
func dial(address string, how credentials.TransportCredentials) (calls, error) {
	options := []grpc.DialOption{
		grpc.WithNoProxy(),
		// A server is ready within a tenth of a second; gRPC would wait a whole one
		// before its second try.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.3, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
	}
	if how != nil {
		options = append(options, grpc.WithTransportCredentials(how))
	}
	client, err := triton.Dial(address, options...)
	return calls{client}, err
}

// Live implements Server. A connection that is being made again is waited for: a
// server that refuses connections ends by itself, or hangs.
func (c calls) Live(ctx context.Context) error {
	return answers(ctx, c.client.Stub, grpc.WaitForReady(true))
}

// answers is nil where a server says anything at all: even an error is a sign of
// life.
func answers(ctx context.Context, client tritonpb.GRPCInferenceServiceClient, options ...grpc.CallOption) error {
	_, err := client.ServerLive(ctx, &tritonpb.ServerLiveRequest{}, options...)
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Unavailable, codes.Canceled:
		return err
	}
	return nil
}

// Models implements Server.
func (c calls) Models(ctx context.Context) ([]string, error) {
	index, err := c.client.Index(ctx, true)
	if err != nil {
		return nil, err
	}
	var names []string
	seen := map[string]bool{}
	for _, m := range index {
		if m.GetState() == triton.StateReady && !seen[m.GetName()] {
			seen[m.GetName()] = true
			names = append(names, m.GetName())
		}
	}
	return names, nil
}

// Parameter implements Server.
func (c calls) Parameter(ctx context.Context, model, name string) (string, error) {
	config, err := c.client.ModelConfig(ctx, model, "")
	if err != nil {
		return "", err
	}
	return config.GetParameters()[name].GetStringValue(), nil
}

// load loads a model and asks for it afterwards.
func (c calls) load(ctx context.Context, model string) error {
	if err := c.client.Load(ctx, model); err != nil {
		return err
	}
	ok, err := c.client.ModelReady(ctx, model, "")
	if err == nil && !ok {
		err = errors.New("the server reports it loaded and not ready")
	}
	return err
}

// unload waits for the end of the unload: the call itself returns while requests
// are still running.
func (c calls) unload(ctx context.Context, model string) error {
	if err := c.client.Unload(ctx, model); err != nil {
		return err
	}
	for {
		index, err := c.client.Index(ctx, false)
		if err != nil {
			return err
		}
		gone := true
		for _, m := range index {
			if m.GetName() == model && m.GetState() != "" && m.GetState() != triton.StateUnavailable {
				gone = false
			}
		}
		if gone {
			return nil
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// loadIn loads a model in a server that may die of it; the error is a *LoadError.
func loadIn(ctx context.Context, s Mortal, model string, load func(context.Context) error) error {
	within, release := whileAlive(ctx, s)
	err := load(within)
	release()
	if err == nil {
		return nil
	}
	failed := &LoadError{Model: model, Err: err}
	// gRPC may notice the deadline before the context does.
	if errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		failed.Hung = true
		return failed
	}
	if ctx.Err() != nil {
		return fmt.Errorf("load %q: %w", model, context.Cause(ctx))
	}
	if over(s, err) {
		failed.Died, failed.Err = true, errors.New(s.Death())
	}
	return failed
}

// over reports whether a call failed because the server died. A connection ends a
// moment before its server is known to be dead, on a busy machine seconds.
func over(s Mortal, err error) bool {
	wait := time.Duration(0)
	if status.Code(err) == codes.Unavailable {
		wait = 5 * time.Second
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-s.Done():
		return true
	default:
	}
	select {
	case <-s.Done():
		return true
	case <-timer.C:
		return false
	}
}

// whileAlive is ctx until the server dies.
func whileAlive(ctx context.Context, s Mortal) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	gone := make(chan struct{})
	go func() {
		select {
		case <-s.Done():
			cancel(fmt.Errorf("%w: %s", ErrDown, s.Death()))
		case <-gone:
		}
	}()
	return ctx, sync.OnceFunc(func() { close(gone); cancel(nil) })
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
