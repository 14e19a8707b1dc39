// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/config"
)

// ExportBounds registers what an alert compares with, and what does not change
// while conch runs: the limits of conch.yaml (of connections what the process may
// have, where that is less), and whether MPS holds partitions to
// their shares of a GPU. Emulated GPUs and those of attached servers have no
// shares that conch could enforce, and no series.
func ExportBounds(registry prometheus.Registerer, c *config.Config, connections int, node *policy.Node) error {
	limit := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "conch_limit", Help: "A bound of conch.yaml's limits, by its key: requests, bytes or connections.",
	}, []string{"limit"})
	limit.WithLabelValues("queueRequests").Set(float64(c.Limits.QueueRequests))
	limit.WithLabelValues("queueBytes").Set(float64(c.Limits.QueueBytes))
	limit.WithLabelValues("connections").Set(float64(connections))

	enforced := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "conch_gpu_shares_enforced", Help: "1 where NVIDIA MPS holds the partitions of a GPU to their thread percentages, 0 where these are recorded only.",
	}, []string{"gpu"})
	for _, g := range node.GetGpus() {
		if c.Driver.Kind == config.DriverAttach || g.GetEmulated() {
			continue
		}
		value := 0.
		if g.GetSharesEnforced() {
			value = 1
		}
		enforced.WithLabelValues(g.GetId()).Set(value)
	}
	return errors.Join(registry.Register(limit), registry.Register(enforced))
}
