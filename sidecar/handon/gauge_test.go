// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package handon_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/handon"
)

// underWay is how many requests are handed on, or wait for an owner.
func underWay(t *testing.T, f *handon.Front) int {
	t.Helper()
	return int(metric(t, f, "conch_handing_on_requests").GetGauge().GetValue())
}

// sentAgain is how often a request was sent once more.
func sentAgain(t *testing.T, f *handon.Front) int {
	t.Helper()
	return int(metric(t, f, "conch_handed_on_again_total").GetCounter().GetValue())
}

// metric is one of a front's that has no labels.
func metric(t *testing.T, f *handon.Front, name string) *dto.Metric {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(f))
	all, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range all {
		if family.GetName() == name {
			return family.GetMetric()[0]
		}
	}
	require.Fail(t, "no metric "+name)
	return nil
}
