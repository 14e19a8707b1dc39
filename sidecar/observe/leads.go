// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Lead is how long before the predicted end of an execution the next one is sent to partitions of a GPU type and share, and how much of that runs beside it.
type Lead struct {
	GPUType          string
	ThreadPercentage uint32
	Length, Overlap  time.Duration
}

// CollectLeads registers the metrics of leads (driver.lead) with a registry. List is called for each scrape.
func CollectLeads(registry prometheus.Registerer, list func() []Lead) error {
	describe := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"gpu_type", "thread_percentage"}, nil)
	}
	c := leadCollector{
		list:    list,
		length:  describe("conch_lead_seconds", "How long before the predicted end of an execution the next one is sent to the same server."),
		overlap: describe("conch_lead_overlap_seconds", "How much of that time the next execution runs beside the one before it."),
	}
	if err := registry.Register(c); err != nil {
		return fmt.Errorf("metrics of leads: %w", err)
	}
	return nil
}

type leadCollector struct {
	list            func() []Lead
	length, overlap *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c leadCollector) Describe(to chan<- *prometheus.Desc) { to <- c.length; to <- c.overlap }

// Collect implements prometheus.Collector.
func (c leadCollector) Collect(to chan<- prometheus.Metric) {
	for _, l := range c.list() {
		share := strconv.FormatUint(uint64(l.ThreadPercentage), 10)
		to <- prometheus.MustNewConstMetric(c.length, prometheus.GaugeValue, l.Length.Seconds(), l.GPUType, share)
		to <- prometheus.MustNewConstMetric(c.overlap, prometheus.GaugeValue, l.Overlap.Seconds(), l.GPUType, share)
	}
}
