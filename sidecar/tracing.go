// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
	"github.com/conch-serving/conch/sidecar/tracing"
)

// newTracer makes what traces requests, nil where conch.yaml names no collector.
func (s *server) newTracer(ctx context.Context, version string) (*spans.Tracer, error) {
	t, log := s.config.Tracing, s.log.With("part", "tracing")
	if !t.Enabled() {
		return nil, nil //nolint:nilnil // nil traces nothing
	}
	credentials, err := clientTLS("tracing.tls", t.TLS, log)
	if err != nil {
		return nil, err
	}
	provider, err := tracing.New(ctx, tracing.Options{
		Endpoint: t.Endpoint, Credentials: credentials, Sample: *t.Sample, IgnoreClients: t.Clients == config.TracingClientsIgnore,
		Version: version, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	s.later(provider.Close)
	return spans.New(provider), nil
}
