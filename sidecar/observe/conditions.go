// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Condition is one thing that holds, or does not, of a partition, a model, a merge group or a cluster.
type Condition struct {
	// Kind is partition, model, group or cluster.
	Kind, Name, Type string
	Holds            bool
}

// Conditions tells all conditions there are, and whether what is observed differs
// from what is desired.
func (m *PlanMetrics) Conditions(all []Condition, differs bool) {
	m.apart.mu.Lock()
	defer m.apart.mu.Unlock()
	m.apart.all, m.apart.differs = all, differs
}

// conditionCollector exports the conditions of one look together: a scrape must
// not see half of them.
type conditionCollector struct {
	mu      sync.Mutex
	all     []Condition
	differs bool
}

func conditionDescriptions() (condition, differs *prometheus.Desc) {
	return prometheus.NewDesc("conch_condition", "1 while a condition (ready, progressing, degraded) holds of a partition, a model, a merge group or the cluster that has the servers.", []string{"kind", "name", "type"}, nil),
		prometheus.NewDesc("conch_observed_differs", "1 while what is observed of servers and models is not what the plan in force asks for.", nil, nil)
}

// Describe implements prometheus.Collector.
func (c *conditionCollector) Describe(out chan<- *prometheus.Desc) {
	condition, differs := conditionDescriptions()
	out <- condition
	out <- differs
}

// Collect implements prometheus.Collector.
func (c *conditionCollector) Collect(out chan<- prometheus.Metric) {
	description, differs := conditionDescriptions()
	c.mu.Lock()
	defer c.mu.Unlock()
	out <- prometheus.MustNewConstMetric(differs, prometheus.GaugeValue, truth(c.differs))
	for _, condition := range c.all {
		out <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, truth(condition.Holds), condition.Kind, condition.Name, condition.Type)
	}
}
