// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/conch-serving/conch/sidecar/component"
	"github.com/conch-serving/conch/sidecar/component/reload"
)

func (c *conch) newPlanning(context.Context) (component.Component, error) {
	return component.Func(func(ctx context.Context) error {
		if ctx.Err() != nil {
			return nil
		}
		if c.cluster != nil {
			if err := c.cluster.Lead(ctx, func() error { return c.takeOver(ctx) }); err != nil {
				if ctx.Err() != nil {
					return nil // it was stopped while it followed
				}
				return err
			}
		}
		return c.control.Run(ctx)
	}), nil
}

// takeOver makes what this replica has followed its own.
func (c *conch) takeOver(ctx context.Context) error {
	return errors.Join(c.servers.Pods.CatchUp(ctx), c.state.Repository.Sweep(), c.control.TakeOver())
}

func (c *conch) newReload(context.Context) (component.Component, error) {
	c.reload = reload.New(c.Load, c.control.Reload, c.control.ReloadRefused)
	return component.After(c.cluster.Leading(), c.reload), nil
}

// newHandedOn ends what was handed on before the clients' doors close: the rest of it is this conch's own by now.
func (c *conch) newHandedOn(context.Context) (component.Component, error) {
	if !c.cluster.Doors() {
		return nil, nil
	}
	return component.Closing(c.cluster.HandedOn), nil
}
