// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/config"
)

// exported are the samples of a gauge with one label, by the label's value.
func exported(t *testing.T, registry prometheus.Gatherer, name string) map[string]float64 {
	families, err := registry.Gather()
	require.NoError(t, err)
	samples := map[string]float64{}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				samples[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	return samples
}

func TestSharesAreExportedWhereTheyCanBeEnforced(t *testing.T) {
	node := &policy.Node{Gpus: []*policy.GPU{{Id: "gpu0", SharesEnforced: true}, {Id: "gpu1"}, {Id: "gpu2", Emulated: true}}}
	for driver, want := range map[string]map[string]float64{
		config.DriverProcess: {"gpu0": 1, "gpu1": 0},
		config.DriverAttach:  {},
	} {
		registry := prometheus.NewPedanticRegistry()
		require.NoError(t, ExportBounds(registry, &config.Config{Driver: config.Driver{Kind: driver}}, 1, node))
		require.Equal(t, want, exported(t, registry, "conch_gpu_shares_enforced"), driver)
	}
}

func TestLimitsAreExported(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, ExportBounds(registry, &config.Config{Limits: config.Limits{QueueRequests: 7, QueueBytes: 8, Connections: 9}}, 6, nil))
	require.Equal(t, map[string]float64{"queueRequests": 7, "queueBytes": 8, "connections": 6}, exported(t, registry, "conch_limit"))
}
