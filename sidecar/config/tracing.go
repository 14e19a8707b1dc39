// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config

// defaultSample is the part of requests that are traced.
const defaultSample = 0.01

func (c *Config) provisionTracing() {
	t := &c.Tracing
	if !t.Enabled() {
		return
	}
	if t.Sample == nil {
		t.Sample = new(defaultSample)
	}
	fill(&t.Clients, TracingClientsFollow)
	if t.TLS.Enabled() {
		fill(&t.TLS.MinVersion, "1.2")
	}
}

func (v *validator) tracing(t Tracing) {
	if !t.Enabled() {
		if t != (Tracing{}) {
			v.problem("tracing.endpoint", "is missing; host:port of a collector (OTLP over gRPC) turns tracing on")
		}
		return
	}
	v.server("tracing.endpoint", t.Endpoint)
	v.fraction("tracing.sample", *t.Sample, 1)
	v.oneOf("tracing.clients", t.Clients, TracingClientsFollow, TracingClientsIgnore)
	v.clientTLS("tracing.tls", t.TLS)
}
