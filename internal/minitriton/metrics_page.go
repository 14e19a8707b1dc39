// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"bytes"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/procfs"
)

// pinnedPool is the size of the pinned memory pool that Triton makes by default (--pinned-memory-pool-byte-size). minitriton
// takes nothing from it.
const pinnedPool = 256 << 20

// hostCollector reports the families about the machine: the pool of pinned memory, the processors, the memory. What the system does not say
// is left out.
type hostCollector struct {
	pinnedTotal, pinnedUsed, busy, memoryTotal, memoryUsed *prometheus.Desc

	mu          sync.Mutex
	total, idle float64 // seconds of all processors until the page before
}

func newHostCollector() *hostCollector {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return &hostCollector{
		pinnedTotal: desc("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes"),
		pinnedUsed:  desc("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes"),
		busy:        desc("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]"),
		memoryTotal: desc("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes"),
		memoryUsed:  desc("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes"),
	}
}

func (c *hostCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.pinnedTotal, c.pinnedUsed, c.busy, c.memoryTotal, c.memoryUsed} {
		ch <- d
	}
}

func (c *hostCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value)
	}
	gauge(c.pinnedTotal, pinnedPool)
	gauge(c.pinnedUsed, 0)
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return // a system without /proc
	}
	if stat, err := fs.Stat(); err == nil {
		gauge(c.busy, c.utilisation(stat.CPUTotal))
	}
	if memory, err := fs.Meminfo(); err == nil && memory.MemTotalBytes != nil && memory.MemAvailableBytes != nil {
		gauge(c.memoryTotal, float64(*memory.MemTotalBytes))
		gauge(c.memoryUsed, float64(*memory.MemTotalBytes-*memory.MemAvailableBytes))
	}
}

// utilisation is how busy the processors have been since it was asked before, or since the machine started.
func (c *hostCollector) utilisation(t procfs.CPUStat) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := t.User + t.Nice + t.System + t.Idle + t.Iowait + t.IRQ + t.SoftIRQ + t.Steal
	idle := t.Idle + t.Iowait
	over, rest := total-c.total, idle-c.idle
	c.total, c.idle = total, idle
	if over <= 0 {
		return 0
	}
	return min(1, max(0, 1-rest/over))
}

// pageOrder is Triton's order of the families, which is not that of their names.
var pageOrder = [...]string{
	"nv_inference_request_success", "nv_inference_request_failure", "nv_inference_count", "nv_inference_exec_count",
	"nv_inference_request_duration_us", "nv_inference_queue_duration_us", "nv_inference_compute_input_duration_us",
	"nv_inference_compute_infer_duration_us", "nv_inference_compute_output_duration_us",
	"nv_cache_num_hits_per_model", "nv_cache_hit_duration_per_model", "nv_cache_num_misses_per_model", "nv_cache_miss_duration_per_model",
	"nv_inference_pending_request_count",
	"nv_pinned_memory_pool_total_bytes", "nv_pinned_memory_pool_used_bytes",
	"nv_cpu_utilization", "nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes",
}

func placeOnPage(f *dto.MetricFamily) int { return slices.Index(pageOrder[:], f.GetName()) }

// metricsHandler serves the metrics as Triton does: every path but /metrics is an empty page.
func metricsHandler(r *repository, log *slog.Logger) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCollector(r), newHostCollector())
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header()["Date"] = nil // Triton sends none
		if !plainMethod(w, q, http.MethodGet) {
			return
		}
		var page bytes.Buffer
		if q.URL.Path == "/metrics" {
			families, err := registry.Gather()
			if err != nil {
				log.Error("metrics", "error", err)
			}
			slices.SortStableFunc(families, func(a, b *dto.MetricFamily) int { return placeOnPage(a) - placeOnPage(b) })
			for _, family := range families {
				if _, err := expfmt.MetricFamilyToText(&page, family); err != nil {
					log.Error("metrics", "family", family.GetName(), "error", err)
				}
			}
		}
		write(w, http.StatusOK, "text/plain; charset=utf-8", page.Bytes())
	})
}
