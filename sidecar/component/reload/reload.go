// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package reload reads conch.yaml again when SIGHUP asks for it.
package reload

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/conch-serving/conch/sidecar/config"
)

// Reload is the component that reads the configuration again.
type Reload struct {
	load    func() (*config.Config, error)
	apply   func(context.Context, *config.Config) error
	refused func(error)
	hangup  chan os.Signal
}

// New makes what reads the configuration by load, and brings it into force by apply. What either refuses is handed to refused. SIGHUP is caught from now on.
func New(load func() (*config.Config, error), apply func(context.Context, *config.Config) error, refused func(error)) *Reload {
	r := &Reload{load, apply, refused, make(chan os.Signal, 1)}
	signal.Notify(r.hangup, syscall.SIGHUP)
	return r
}

// Now reads the configuration again: all of it comes into force, or nothing.
func (r *Reload) Now(ctx context.Context) {
	next, err := r.load()
	if err == nil {
		err = r.apply(ctx, next)
	}
	if err != nil {
		r.refused(err)
	}
}

// Run implements component.Component. SIGHUP stays caught when it returns: it would end conch before accepted requests are answered.
func (r *Reload) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.hangup:
			r.Now(ctx)
		}
	}
}
