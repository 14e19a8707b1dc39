// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"maps"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// family is one of Triton's metric families that a model version has one value of.
type family struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	value  func(c *counters, pending int) float64
	cached bool // of models with a response cache alone
}

func newFamily(name, help string, value func(c *counters, pending int) float64) family {
	return family{desc: prometheus.NewDesc(name, help, []string{"model", "version"}, nil), kind: prometheus.CounterValue, value: value}
}

// collector reports the families of Triton's CPU build that come from models. There is no response cache here, as in a server without
// --cache-config, and so nothing is found in one.
type collector struct {
	repo     *repository
	families []family
	failures *prometheus.Desc
}

func newCollector(r *repository) *collector {
	us := func(ns uint64) float64 { return float64(ns / 1000) }
	pending := newFamily("nv_inference_pending_request_count", "Instantaneous number of pending requests awaiting execution per-model.",
		func(_ *counters, pending int) float64 { return float64(pending) })
	pending.kind = prometheus.GaugeValue
	return &collector{
		repo: r,
		failures: prometheus.NewDesc("nv_inference_request_failure", "Number of failed inference requests, all batch sizes",
			[]string{"model", "version", "reason"}, nil),
		families: []family{
			newFamily("nv_inference_request_success", "Number of successful inference requests, all batch sizes",
				func(c *counters, _ int) float64 { return float64(c.success.count) }),
			newFamily("nv_inference_count", "Number of inferences performed (does not include cached requests)",
				func(c *counters, _ int) float64 { return float64(c.inferences) }),
			newFamily("nv_inference_exec_count", "Number of model executions performed (does not include cached requests)",
				func(c *counters, _ int) float64 { return float64(c.executions) }),
			newFamily("nv_inference_request_duration_us", "Cumulative inference request duration in microseconds (includes cached requests)",
				func(c *counters, _ int) float64 { return us(c.success.ns) }),
			newFamily("nv_inference_queue_duration_us", "Cumulative inference queuing duration in microseconds (includes cached requests)",
				func(c *counters, _ int) float64 { return us(c.queue.ns) }),
			newFamily("nv_inference_compute_input_duration_us", "Cumulative compute input duration in microseconds (does not include cached requests)",
				func(c *counters, _ int) float64 { return us(c.compute.input.ns) }),
			newFamily("nv_inference_compute_infer_duration_us", "Cumulative compute inference duration in microseconds (does not include cached requests)",
				func(c *counters, _ int) float64 { return us(c.compute.infer.ns) }),
			newFamily("nv_inference_compute_output_duration_us", "Cumulative inference compute output duration in microseconds (does not include cached requests)",
				func(c *counters, _ int) float64 { return us(c.compute.output.ns) }),
			pending,
			newCacheFamily("nv_cache_num_hits_per_model", "Number of cache hits per model"),
			newCacheFamily("nv_cache_hit_duration_per_model", "Total cache hit duration per model, in microseconds"),
			newCacheFamily("nv_cache_num_misses_per_model", "Number of cache misses per model"),
			newCacheFamily("nv_cache_miss_duration_per_model", "Total cache miss (insert+lookup) duration per model, in microseconds"),
		},
	}
}

func newCacheFamily(name, help string) family {
	f := newFamily(name, help, func(*counters, int) float64 { return 0 })
	f.cached = true
	return f
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.failures
	for _, f := range c.families {
		ch <- f.desc
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.repo.totals(func(model, version string, cached bool, total *counters, pending int) {
		for _, f := range c.families {
			if f.cached && !cached {
				continue
			}
			ch <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(total, pending), model, version)
		}
		for i, n := range total.failed {
			ch <- prometheus.MustNewConstMetric(c.failures, prometheus.CounterValue, float64(n), model, version, failReasonNames[i])
		}
	})
}

// totals calls f with the counters of every version that has a loaded copy, over all its copies.
func (r *repository) totals(f func(model, version string, cached bool, total *counters, pending int)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, name := range slices.Sorted(maps.Keys(r.entries)) {
		for v, base := range r.entries[name].metrics {
			total, pending, cached := &counters{}, 0, false
			total.merge(&base.past)
			for _, m := range base.live {
				pending += m.pending()
				cached = m.config.GetResponseCache().GetEnable()
				if !slices.ContainsFunc(base.live, func(x *model) bool { return x.carried == m }) {
					total.merge(m.stats.copy())
				}
			}
			f(name, strconv.FormatInt(v, 10), cached, total, pending)
		}
	}
}
