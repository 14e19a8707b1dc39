// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package fronts

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
)

// queues exports what waits and what clients hold, when it is asked.
type queues struct {
	dispatcher *dispatch.Dispatcher
	gate       *gate.Gate

	waiting, margin, slo, accepted, acceptedBytes, edgeBytes, open, connections, refused, failed *prometheus.Desc
}

func newQueues(d *dispatch.Dispatcher, g *gate.Gate) queues {
	describe := prometheus.NewDesc
	return queues{
		dispatcher: d, gate: g,
		waiting:       describe("conch_queue_requests", "Requests that wait for a partition.", []string{"model"}, nil),
		margin:        describe("conch_deadline_margin_seconds", "How much later than predicted answers come, 95th percentile of batches: what is kept back from deadlines that are far enough.", []string{"model"}, nil),
		slo:           describe("conch_model_slo_seconds", "SLO of a model that has one: what an answer must not take longer than.", []string{"model"}, nil),
		accepted:      describe("conch_accepted_requests", "Requests and streams that were accepted and are not answered; limits.queueRequests bounds them.", nil, nil),
		acceptedBytes: describe("conch_queue_bytes", "Bytes of accepted requests, waiting and running; limits.queueBytes bounds them.", nil, nil),
		edgeBytes:     describe("conch_edge_bytes", "Bytes of requests that are still being received and of answers that clients have not taken; limits.queueBytes bounds them together with conch_queue_bytes.", nil, nil),
		open:          describe("conch_edge_requests", "Requests and streams of clients that are open, received or not; limits.queueRequests bounds them.", nil, nil),
		connections:   describe("conch_connections", "Open connections of clients; limits.connections bounds them.", nil, nil),
		refused:       describe("conch_edge_refused_total", "What was refused, evicted or closed before it was a request, by the reason.", []string{"reason"}, nil),
		failed:        describe("conch_queue_failed", "1 once the scheduler has failed: requests are forwarded one by one until Conch is started again.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (q queues) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{q.waiting, q.margin, q.slo, q.accepted, q.acceptedBytes, q.edgeBytes, q.open, q.connections, q.refused, q.failed} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (q queues) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	requests, bytes := q.dispatcher.UnderWay()
	gauge(q.accepted, float64(requests))
	gauge(q.acceptedBytes, float64(bytes))
	failed := 0.
	if q.dispatcher.Fault() != nil {
		failed = 1
	}
	gauge(q.failed, failed)
	edge := q.gate.Stats()
	gauge(q.edgeBytes, float64(edge.Bytes))
	gauge(q.open, float64(edge.Requests))
	gauge(q.connections, float64(edge.Connections))
	for i, n := range edge.Refused {
		out <- prometheus.MustNewConstMetric(q.refused, prometheus.CounterValue, float64(n), gate.Reason(i).String())
	}
	table := q.dispatcher.Routes()
	if table == nil {
		return
	}
	names := make([]string, 0, len(table.Models))
	for name := range table.Models {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		counts, _ := q.dispatcher.Counts(name)
		gauge(q.waiting, float64(counts.Waiting), name)
		gauge(q.margin, counts.Margin.Seconds(), name)
		if slo := table.Models[name].SLO; slo > 0 {
			gauge(q.slo, slo.Seconds(), name)
		}
	}
}
