// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Health says how a server is asked whether it still lives (ServerLive, over a
// connection of its own): every Period, with Deadline for the answer. Triton
// answers it beside running batches and loads, so that a server that is merely
// busy passes. Zero fields take a second and five seconds.
type Health struct{ Period, Deadline time.Duration }

func (h Health) withDefaults() Health {
	if h.Period <= 0 {
		h.Period = time.Second
	}
	if h.Deadline <= 0 {
		h.Deadline = 5 * time.Second
	}
	return h
}

// prober is a server that can hang without dying.
type prober interface {
	// live returns an error where the server does not answer before ctx ends.
	live(ctx context.Context) error
}

// watch asks the server until ctx ends, and says on the channel that it hangs.
// One missed deadline is not enough: conch itself may have been stopped, so it
// asks once more.
func (h Health) watch(ctx context.Context, p prober) <-chan string {
	hung := make(chan string, 1)
	go func() {
		for sleep(ctx, h.Period) {
			err := h.ask(ctx, p, h.Deadline)
			if err != nil && ctx.Err() == nil {
				err = h.ask(ctx, p, h.again())
			}
			if err != nil && ctx.Err() == nil {
				hung <- fmt.Sprintf("the server hangs: it did not answer a health probe within %s: %v", h.Deadline, err)
				return
			}
		}
	}()
	return hung
}

// again is the deadline of the second question.
func (h Health) again() time.Duration { return min(h.Deadline, max(h.Period, time.Second)) }

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

func (h Health) ask(ctx context.Context, p prober, deadline time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	return p.live(ctx)
}
