// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Probing intervals of a partition that was lost.
const (
	firstProbe = 20 * time.Millisecond
	lastProbe  = time.Second
	// leastPatience is the least time that a probe gives the server for an answer.
	leastPatience = 100 * time.Millisecond
)

// probe asks a lost partition for its readiness, until all its models are ready, its
// driver has set it down, the table in force no longer has it, or the router is
// closed.
func (r *Router) probe(p *Partition) {
	for wait := firstProbe; ; wait = min(2*wait, lastProbe) {
		rung := make(chan struct{})
		timer := r.o.Clock.After(wait, func() { close(rung) })
		select {
		case <-rung:
		case <-r.background.Done():
			timer.Stop()
		}
		names, lost := r.probed(p)
		if !lost || r.ready(p, names, wait) && r.found(p) {
			return
		}
	}
}

// probed returns what a partition should serve, and whether it is still lost.
func (r *Router) probed(p *Partition) (models []string, isLost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || p.state != lost {
		p.probing = false
		return nil, false
	}
	for name, l := range p.places {
		if l.current && l.member == nil { // for a member of a merge group, the server has the group
			models = append(models, name)
		}
	}
	return models, true
}

// ready reports whether a partition is live and has all the models ready. Patience
// limits each answer and not their sum: a busy server with many models takes longer
// for all of them.
func (r *Router) ready(p *Partition, models []string, patience time.Duration) bool {
	p.conn.Reconnect()
	client := tritonpb.NewGRPCInferenceServiceClient(p.conn)
	answers := func(ask func(ctx context.Context) (bool, error)) bool {
		ctx, cancel := context.WithTimeout(r.background, max(patience, leastPatience))
		defer cancel()
		yes, err := ask(ctx)
		return err == nil && yes
	}
	if !answers(func(ctx context.Context) (bool, error) {
		live, err := client.ServerLive(ctx, &tritonpb.ServerLiveRequest{}, grpc.WaitForReady(true))
		return live.GetLive(), err
	}) {
		return false
	}
	for _, name := range models {
		if !answers(func(ctx context.Context) (bool, error) {
			ready, err := client.ModelReady(ctx, &tritonpb.ModelReadyRequest{Name: name})
			return ready.GetReady(), err
		}) {
			return false
		}
	}
	return true
}

// found sets a lost partition that answers again up. It reports whether the probe is
// over.
func (r *Router) found(p *Partition) bool {
	var n notices
	r.mu.Lock()
	defer r.unlock(&n)
	p.probing = false
	if r.closed || p.state != lost {
		return true
	}
	p.conn.Reconnect()
	p.found = r.o.Clock.Now()
	r.set(p, up, "", &n)
	n.log(func() { r.o.Logger.Info("a lost partition answers again", "partition", p.ID()) })
	return true
}

// registrar is a server's side of the shared memory extension, over gRPC.
type registrar struct {
	client tritonpb.GRPCInferenceServiceClient
}

// Register implements shm.Registrar.
func (r registrar) Register(ctx context.Context, region, key string, size int64) error {
	_, err := r.client.SystemSharedMemoryRegister(ctx, &tritonpb.SystemSharedMemoryRegisterRequest{Name: region, Key: key, ByteSize: uint64(size)})
	return err
}

// Unregister implements shm.Registrar.
func (r registrar) Unregister(ctx context.Context, region string) error {
	_, err := r.client.SystemSharedMemoryUnregister(ctx, &tritonpb.SystemSharedMemoryUnregisterRequest{Name: region})
	return err
}
