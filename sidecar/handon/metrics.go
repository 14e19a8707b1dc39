// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package handon

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Outcome is what became of a request that was to be handed on: a stable word for metrics.
type Outcome string

// Outcomes.
const (
	// Answered by the owner, whatever the answer.
	Answered Outcome = "answered"
	// SecondHop: another replica had handed it on, and this one owns nothing.
	SecondHop Outcome = "second_hop"
	// Unavailable: no owner took it in time.
	Unavailable Outcome = "unavailable"
	// Lost: an owner ended while it may have executed it, and it could not be sent again.
	Lost Outcome = "lost"
	// Cancelled by its client.
	Cancelled Outcome = "cancelled"
	// Refused before it was sent: there was no room, or it was too large.
	Refused Outcome = "refused"
)

type counters struct {
	requests *prometheus.CounterVec
	again    prometheus.Counter
	underWay atomic.Int64
	gauge    prometheus.GaugeFunc
}

func newCounters() *counters {
	c := &counters{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "conch_handed_on_requests_total", Help: "Requests and streams that this replica was to hand on to the one that owns their models, by what became of them.",
		}, []string{"protocol", "outcome"}),
		again: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "conch_handed_on_again_total", Help: "How often a request was sent once more: its owner was changing, or ended.",
		}),
	}
	c.gauge = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "conch_handing_on_requests", Help: "Requests and streams that are handed on, or wait for an owner.",
	}, func() float64 { return float64(c.underWay.Load()) })
	return c
}

// Describe implements prometheus.Collector, of a zero Front, too.
func (*Front) Describe(out chan<- *prometheus.Desc) {
	c := newCounters()
	c.requests.Describe(out)
	c.again.Describe(out)
	c.gauge.Describe(out)
}

// Collect implements prometheus.Collector.
func (f *Front) Collect(out chan<- prometheus.Metric) {
	f.counts.requests.Collect(out)
	f.counts.again.Collect(out)
	f.counts.gauge.Collect(out)
}
