// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// page is the metrics page as text.
func (e *Env) page() string {
	e.Helper()
	if e.Target.Metrics == "" {
		e.Skip("the target has no metrics address")
	}
	r := e.fetch(http.MethodGet, e.Target.Metrics, "/metrics", "")
	require.Equal(e, http.StatusOK, r.status)
	require.Equal(e, "text/plain; charset=utf-8", r.header.Get("Content-Type"))
	return r.body
}

func (e *Env) families() map[string]*dto.MetricFamily {
	e.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(e.page()))
	require.NoError(e, err)
	return families
}

// labelsOf are the names of a metric's labels, sorted.
func labelsOf(m *dto.Metric) []string {
	var names []string
	for _, l := range m.Label {
		names = append(names, l.GetName())
	}
	slices.Sort(names)
	return names
}

const cacheFamilies = `# HELP nv_cache_num_hits_per_model Number of cache hits per model
# TYPE nv_cache_num_hits_per_model counter
# HELP nv_cache_hit_duration_per_model Total cache hit duration per model, in microseconds
# TYPE nv_cache_hit_duration_per_model counter
# HELP nv_cache_num_misses_per_model Number of cache misses per model
# TYPE nv_cache_num_misses_per_model counter
# HELP nv_cache_miss_duration_per_model Total cache miss (insert+lookup) duration per model, in microseconds
# TYPE nv_cache_miss_duration_per_model counter
`

const familiesBeforeCache = `# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
# HELP nv_inference_request_failure Number of failed inference requests, all batch sizes
# TYPE nv_inference_request_failure counter
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
# HELP nv_inference_exec_count Number of model executions performed (does not include cached requests)
# TYPE nv_inference_exec_count counter
# HELP nv_inference_request_duration_us Cumulative inference request duration in microseconds (includes cached requests)
# TYPE nv_inference_request_duration_us counter
# HELP nv_inference_queue_duration_us Cumulative inference queuing duration in microseconds (includes cached requests)
# TYPE nv_inference_queue_duration_us counter
# HELP nv_inference_compute_input_duration_us Cumulative compute input duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_input_duration_us counter
# HELP nv_inference_compute_infer_duration_us Cumulative compute inference duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_infer_duration_us counter
# HELP nv_inference_compute_output_duration_us Cumulative inference compute output duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_output_duration_us counter
`

const familiesAfterCache = `# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.
# TYPE nv_inference_pending_request_count gauge
# HELP nv_pinned_memory_pool_total_bytes Pinned memory pool total memory size, in bytes
# TYPE nv_pinned_memory_pool_total_bytes gauge
# HELP nv_pinned_memory_pool_used_bytes Pinned memory pool used memory size, in bytes
# TYPE nv_pinned_memory_pool_used_bytes gauge
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
# HELP nv_cpu_memory_total_bytes CPU total memory (RAM), in bytes
# TYPE nv_cpu_memory_total_bytes gauge
# HELP nv_cpu_memory_used_bytes CPU used memory (RAM), in bytes
# TYPE nv_cpu_memory_used_bytes gauge
`

// metricsCases are the page of metrics of a server on its own; Conch has a page of its own, which is tested where it is made.
func metricsCases() []Case {
	comments := func(page string) string {
		var b strings.Builder
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, "#") {
				b.WriteString(line)
			}
		}
		return b.String()
	}
	return []Case{
		{"metrics/families, what they are and their order", func(e *Env) {
			require.Equal(e, familiesBeforeCache+familiesAfterCache, strings.Replace(comments(e.page()), cacheFamilies, "", 1))
		}},
		{"metrics/labels", func(e *Env) {
			names, err := ModelNames()
			require.NoError(e, err)
			for name, family := range e.families() {
				if !strings.HasPrefix(name, "nv_inference_") {
					continue
				}
				seen := map[string]bool{}
				for _, m := range family.Metric {
					want := []string{"model", "version"}
					if name == "nv_inference_request_failure" {
						want = []string{"model", "reason", "version"}
					}
					require.Equal(e, want, labelsOf(m), name)
					for _, l := range m.Label {
						if l.GetName() == "model" {
							seen[l.GetValue()] = true
						}
					}
				}
				require.Subset(e, slices.Collect(maps.Keys(seen)), names, name)
			}
		}},
		{"metrics/the machine", func(e *Env) {
			families := e.families()
			value := func(name string) float64 {
				require.Len(e, families[name].GetMetric(), 1, name)
				require.Empty(e, families[name].Metric[0].Label, name)
				return families[name].Metric[0].GetGauge().GetValue()
			}
			require.EqualValues(e, 256<<20, value("nv_pinned_memory_pool_total_bytes"))
			require.LessOrEqual(e, value("nv_pinned_memory_pool_used_bytes"), float64(256<<20))
			require.GreaterOrEqual(e, value("nv_cpu_utilization"), 0.0)
			require.LessOrEqual(e, value("nv_cpu_utilization"), 1.0)
			require.Positive(e, value("nv_cpu_memory_used_bytes"))
			require.Less(e, value("nv_cpu_memory_used_bytes"), value("nv_cpu_memory_total_bytes"))
		}},
		{"metrics/of a model with a response cache that the server has not", func(e *Env) {
			e.page() // or skip
			code, err := python("identity")
			require.NoError(e, err)
			require.NoError(e, e.load("cached", "config", overrideOf(`,"response_cache":{"enable":true}`), "file:1/model.py", code))
			defer func() { require.NoError(e, e.Client.Unload(e.ctx(), "cached")) }()
			e.infer(request("cached", input("INPUT0", "FP16", shape(1, 2), make([]byte, 4))))
			require.Contains(e, comments(e.page()), cacheFamilies)
			for name, family := range e.families() {
				if strings.HasPrefix(name, "nv_cache_") {
					require.Len(e, family.Metric, 1, name)
					require.Equal(e, []string{"model", "version"}, labelsOf(family.Metric[0]), name)
					require.Zero(e, family.Metric[0].GetCounter().GetValue(), name)
				}
			}
		}},
		{"metrics/refused by a queue policy", func(e *Env) {
			e.page() // or skip
			rejected := func() float64 {
				for _, m := range e.families()["nv_inference_request_failure"].Metric {
					labels := map[string]string{}
					for _, l := range m.Label {
						labels[l.GetName()] = l.GetValue()
					}
					if labels["model"] == "queued" && labels["reason"] == "REJECTED" {
						return m.GetCounter().GetValue()
					}
				}
				return 0
			}
			e.quiet("queued")
			before := rejected()
			q := e.busy()
			late := several(2, "late", 0, parameter("timeout", 1000))
			q.send(late...)
			q.outlasted(0)
			q.end()
			q.expired(late)
			e.quiet("queued")
			require.InDelta(e, before+2, rejected(), 0)
		}},
		{"metrics/other paths and methods", func(e *Env) {
			e.page() // or skip
			r := e.fetch(http.MethodGet, e.Target.Metrics, "/", "")
			e.wantHTTP(r, 200, "text/plain; charset=utf-8", "")
			e.wantHTTP(e.fetch(http.MethodPost, e.Target.Metrics, "/metrics", ""), 405, textPlain, `{"error":"Method Not Allowed"}`)
			r = e.fetch(http.MethodGet, e.Target.Metrics, "/metrics", "")
			r.header.Del("Connection")
			require.Equal(e, []string{"Content-Length", "Content-Type"}, headerNames(r))
		}},
	}
}
