// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"

	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
	"github.com/conch-serving/conch/sidecar/handon"
)

// Look says by the lease whether another conch executes by now. Whoever was paused for longer than the lease lasts asks first: then unsure is closed once it may be known. Without a
// cluster this conch executes.
func (c *Cluster) Look() (unsure <-chan struct{}, anothers bool) {
	if c == nil {
		return nil, false
	}
	lease := c.lease.Load()
	if lease == nil {
		return nil, false
	}
	switch is, known := lease.Executes(); is {
	case kubernetes.Executes:
		return nil, false
	case kubernetes.Anothers:
		return nil, true
	default:
		return known, false
	}
}

// HandOn has the replica that leads by now answer an encoded request. It takes over a reference to the request; the answer is to be freed.
func (c *Cluster) HandOn(ctx context.Context, request mem.BufferSlice) (mem.BufferSlice, error) {
	return c.onward.Load().Infer(ctx, request)
}

// goesOn opens the way to a replica that leads by now. That of a replica that follows ends before its doors do, behind which requests were accepted.
func (c *Cluster) goesOn(to kubernetes.Replica) {
	if c.front == nil || to.Name == "" || c.onward.Load() != nil {
		return
	}
	way, err := handon.New(handon.Options{Name: c.name, Logger: c.log.With("part", "handon")})
	if err != nil {
		c.log.Warn("what was accepted before another conch led cannot be handed on to it", "error", err)
		return
	}
	way.Follow(handon.Owner{Name: to.Name, GRPC: to.GRPC, HTTP: to.HTTP})
	c.onward.Store(way)
}

// Ended closes what HandOn uses.
func (c *Cluster) Ended() error {
	if c == nil || c.onward.Load() == nil {
		return nil
	}
	return c.onward.Load().Close(c.drain)
}
