// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package traces sends the spans of requests where conch.yaml says.
package traces

import (
	"context"
	"log/slog"

	"github.com/conch-serving/conch/sidecar/component/credentials"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/tracing"
)

// New connects to the collector of conch.yaml. On is false where there is none.
func New(ctx context.Context, t config.Tracing, version string, log *slog.Logger) (p tracing.Provider, on bool, err error) {
	if !t.Enabled() {
		return p, false, nil
	}
	over, err := credentials.Client("tracing.tls", t.TLS, log)
	if err != nil {
		return p, false, err
	}
	p, err = tracing.New(ctx, tracing.Options{
		Endpoint: t.Endpoint, Credentials: over, Sample: *t.Sample, IgnoreClients: t.Clients == config.TracingClientsIgnore,
		Version: version, Logger: log,
	})
	return p, err == nil, err
}
