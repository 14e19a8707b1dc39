// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package calibration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
)

const (
	// repeats of a batch size.
	repeats = 8
	// look is how often an order looks whether its model is used.
	look = time.Second
)

// ErrInUse is the failure of an order whose model had requests until its limit.
var ErrInUse = errors.New("the model is in use")

// ErrTimeIsUp is the failure of an order that reached its limit.
var ErrTimeIsUp = errors.New("time is up")

// Share is what was measured of a model at a thread percentage.
type Share struct {
	Percentage int
	Batches    []warmup.Timed
}

// Model measures batches of 1, 2, 4, ... rows of a model of the repository at each share, while no client uses it: an order waits for that, and stops in
// between where a client comes. What was measured becomes the model's calibrated profile.
func (c *Calibration) Model(ctx context.Context, model string, o Order, progress func(Progress)) (shares []Share, err error) {
	at, err := c.check(&o)
	if err != nil {
		return nil, err
	}
	release, err := c.take()
	if err != nil {
		return nil, err
	}
	defer release()
	if o.Limit > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, o.Limit, ErrTimeIsUp)
		defer cancel()
		ctx = limited
	}
	for i, share := range o.Shares {
		progress(Progress{share, i, len(o.Shares), model})
		batches, err := c.model(ctx, model, at, share, o, progress)
		if cause := context.Cause(ctx); errors.Is(cause, ErrTimeIsUp) {
			err = fmt.Errorf("%w after %v; what was measured is kept", cause, o.Limit)
		}
		if err != nil {
			return shares, err
		}
		shares = append(shares, Share{share, batches})
		c.o.Calibrated(model, at.kind, uint32(share), batches)
	}
	return shares, nil
}

func (c *Calibration) model(ctx context.Context, model string, at place, share int, o Order, progress func(Progress)) (batches []warmup.Timed, err error) {
	if err := c.quiet(ctx, model, share, progress); err != nil {
		return nil, err
	}
	s, dir, stop, err := c.scratch(ctx, at, share)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	config, err := c.o.Stage(ctx, model, dir)
	if err != nil {
		return nil, err
	}
	if err := s.Load(ctx, model); err != nil {
		return nil, err
	}
	client, err := triton.Dial(s.Endpoint().GRPC)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	var waited error
	timed, skipped, err := warmup.Paced(ctx, client.Stub, config, warmup.Pace{
		Share: o.Disturbance, Repeats: repeats, Now: c.o.Clock.Now,
		Sleep: func(ctx context.Context, d time.Duration) {
			// A cancelled sleep, and a model that stays in use, end the measurement with ctx.
			_ = c.o.Clock.Sleep(ctx, d)
			waited = errors.Join(waited, c.quiet(ctx, model, share, progress))
		},
	})
	switch {
	case err != nil:
		return nil, errors.Join(err, waited)
	case skipped != "":
		return nil, refused("%s: %s", model, skipped)
	}
	return timed, nil
}

// quiet waits until no client uses the model.
func (c *Calibration) quiet(ctx context.Context, model string, share int, progress func(Progress)) error {
	reported := false
	for c.o.Used(model) {
		if !reported {
			progress(Progress{Share: share, What: "waiting until nobody uses it"})
			reported = true
		}
		if err := c.o.Clock.Sleep(ctx, look); err != nil {
			return fmt.Errorf("%w: %w", ErrInUse, context.Cause(ctx))
		}
	}
	return ctx.Err()
}
