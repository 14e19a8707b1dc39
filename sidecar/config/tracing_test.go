// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/config"
)

func TestTracing(t *testing.T) {
	load := func(text string) (*config.Config, error) {
		c, err := config.Parse("conch.yaml", []byte("repository: /m\n"+text))
		require.NoError(t, err)
		c.Provision(nobody)
		return c, c.Validate(nobody)
	}
	off, err := load("")
	require.NoError(t, err)
	require.False(t, off.Tracing.Enabled())
	on, err := load("tracing: {endpoint: otel:4317}")
	require.NoError(t, err)
	require.Equal(t, config.Tracing{Endpoint: "otel:4317", Sample: new(0.01), Clients: "follow"}, on.Tracing)
	none, err := load("tracing: {endpoint: otel:4317, sample: 0, clients: ignore, tls: {ca: /ca}}")
	require.NoError(t, err)
	require.Equal(t, config.Tracing{Endpoint: "otel:4317", Sample: new(0.0), Clients: "ignore", TLS: config.ClientTLS{CA: "/ca", MinVersion: "1.2"}}, none.Tracing)
	require.ErrorContains(t, config.Reloadable(off, on), "tracing cannot change while conch runs")

	for text, want := range map[string]string{
		"tracing: {sample: 0.5}":                                 "tracing.endpoint: is missing",
		"tracing: {endpoint: otel}":                              `tracing.endpoint: "otel" is not host:port`,
		"tracing: {endpoint: \"http://otel:4317/v1\"}":           "is not host:port",
		"tracing: {endpoint: otel:4317, sample: 1.5}":            "tracing.sample: 1.5 is outside 0 to 1",
		"tracing: {endpoint: otel:4317, clients: some}":          `tracing.clients: "some" is not known`,
		"tracing: {endpoint: otel:4317, tls: {key: /k}}":         "tracing.tls.certificate: is missing",
		`tracing: {endpoint: otel:4317, tls: {minVersion: 1.3}}`: "tracing.tls.minVersion: has no meaning alone",
	} {
		_, err := load(text)
		require.ErrorContains(t, err, want, text)
	}
}
