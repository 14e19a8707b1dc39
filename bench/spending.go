// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/rig"
)

// runtimeCounters are what conch's process has spent since it started.
type runtimeCounters struct {
	allocations, allocatedBytes, cpuSeconds float64
}

// readRuntime reads them from conch's own metrics.
func readRuntime(ctx context.Context, conch *rig.Conch) (c runtimeCounters, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+conch.Metrics+"/metrics", nil)
	if err != nil {
		return c, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return c, fmt.Errorf("conch's metrics: %w", err)
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return c, fmt.Errorf("conch's metrics: %w", err)
	}
	_, _ = io.Copy(io.Discard, response.Body) // so that the connection is used again
	for name, into := range map[string]*float64{
		"go_memstats_mallocs_total": &c.allocations, "go_memstats_alloc_bytes_total": &c.allocatedBytes, "process_cpu_seconds_total": &c.cpuSeconds,
	} {
		f := families[name]
		if f == nil || len(f.GetMetric()) != 1 {
			return c, fmt.Errorf("conch's metrics lack %s", name)
		}
		*into = f.GetMetric()[0].GetCounter().GetValue()
	}
	return c, nil
}

// spending is what a request costs in conch's process, over several trials.
type spending struct{ allocations, allocatedBytes, cpuMicroseconds []float64 }

func (s *spending) add(before, after runtimeCounters, calls int) {
	n := float64(max(1, calls))
	s.allocations = append(s.allocations, (after.allocations-before.allocations)/n)
	s.allocatedBytes = append(s.allocatedBytes, (after.allocatedBytes-before.allocatedBytes)/n)
	s.cpuMicroseconds = append(s.cpuMicroseconds, 1e6*(after.cpuSeconds-before.cpuSeconds)/n)
}

func (s *spending) report(r *figure.Report, name string) {
	r.AddRuns(name+".allocations", s.allocations, "allocs/req", "in conch's process, the runtime's own and the reading of its metrics included")
	r.AddRuns(name+".allocated_bytes", s.allocatedBytes, "B/req", "")
	r.AddRuns(name+".cpu_us", s.cpuMicroseconds, "us/req", "processor time of conch's process, user and system")
}
