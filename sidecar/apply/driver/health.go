// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Health says how a server is asked whether it still lives (ServerLive, over a
// connection of its own): every Period, with Deadline for the answer. Triton
// answers it beside running batches and loads, so that a server that is merely
// busy passes. Zero fields take a second and five seconds.
type Health struct{ Period, Deadline time.Duration }

// WithDefaults fills in what is zero.
func (h Health) WithDefaults() Health {
	if h.Period <= 0 {
		h.Period = time.Second
	}
	if h.Deadline <= 0 {
		h.Deadline = 5 * time.Second
	}
	return h
}

// again is the deadline of the second question.
func (h Health) again() time.Duration { return min(h.Deadline, max(h.Period, time.Second)) }

// Ask returns an error where a server hangs, or refuses to say that it is live. One missed deadline is not enough:
// conch itself may have been stopped, so it asks once more.
func (h Health) Ask(ctx context.Context, s interface{ Live(context.Context) error }) error {
	err := h.once(ctx, s, h.Deadline)
	if err == nil || ctx.Err() != nil {
		return nil //nolint:nilerr // the caller has given up: that says nothing about the server
	}
	if err = h.once(ctx, s, h.again()); err == nil || ctx.Err() != nil {
		return nil //nolint:nilerr // as above
	}
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		return fmt.Errorf("the server hangs: it did not answer a health probe within %s: %w", h.Deadline, err)
	}
	// It answers, or its connection is closed: it may have been asked to end.
	return fmt.Errorf("the server refuses a health probe: %w", err)
}

func (h Health) once(ctx context.Context, s interface{ Live(context.Context) error }, deadline time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	return s.Live(ctx)
}
