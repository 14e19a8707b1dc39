// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"context"
	"time"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/observe"
)

// servedEvery is how often servers that batch themselves are asked what they did:
// one small call for each.
const (
	servedEvery    = 2 * time.Second
	servedPatience = time.Second
)

// Served learns l(b) from the statistics of servers that others run, for as long as
// these batch: a client that sends single rows shows conch nothing of batches.
type Served struct {
	recorder *observe.Recorder
	// each calls every server that is up.
	each func(ctx context.Context, call func(context.Context, driver.EndpointState, tritonpb.GRPCInferenceServiceClient) error) error
	// passing reports whether the servers batch.
	passing func() bool
	nodes   func() []*policy.Node
	seen    map[string]*observe.ServerStatistics
	was     bool
}

// NewServed makes what learns from others' servers, whose GPUs are those of nodes, while passing
// says that they batch.
func NewServed(r *observe.Recorder, s *Others, passing func() bool, nodes func() []*policy.Node) *Served {
	return &Served{recorder: r, each: s.Driver.Each, passing: passing, nodes: nodes, seen: map[string]*observe.ServerStatistics{}}
}

// Run implements component.Component: it asks until ctx ends.
func (s *Served) Run(ctx context.Context) error {
	for tick := time.NewTicker(servedEvery); ; {
		s.look(ctx)
		select {
		case <-ctx.Done():
			tick.Stop()
			return nil
		case <-tick.C:
		}
	}
}

// look asks once. A server that does not answer is asked again the next time: what
// it did meanwhile is in its counters then.
func (s *Served) look(ctx context.Context) {
	if !s.passing() {
		if s.was {
			s.recorder.Unserved()
			clear(s.seen)
		}
		s.was = false
		return
	}
	s.was = true
	types := map[string]string{} // of GPUs, by id
	for _, n := range s.nodes() {
		for _, g := range n.GetGpus() {
			types[g.GetId()] = g.GetType()
		}
	}
	for gpu := range s.seen {
		if types[gpu] == "" { // its server is gone
			delete(s.seen, gpu)
		}
	}
	_ = s.each(ctx, func(ctx context.Context, e driver.EndpointState, client tritonpb.GRPCInferenceServiceClient) error {
		ctx, cancel := context.WithTimeout(ctx, servedPatience)
		defer cancel()
		r, err := client.ModelStatistics(ctx, &tritonpb.ModelStatisticsRequest{})
		if err != nil {
			return nil // the other servers are asked all the same; health is the driver's business
		}
		if s.seen[e.GPU] == nil {
			s.seen[e.GPU] = &observe.ServerStatistics{}
		}
		for model, all := range s.seen[e.GPU].Since(r.GetModelStats()) {
			s.recorder.Served(model, types[e.GPU], 100, all)
		}
		return nil
	})
}
