// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Counts is what servers executed of one model since they started.
type Counts struct {
	Executions, Rows uint64
	// Requests were answered well, after Queued microseconds in the queue and Within microseconds in all, summed up.
	Requests, Queued, Within uint64
}

// Usage is Counts by model, summed over all servers.
type Usage map[string]Counts

// Since is what was executed after an earlier reading.
func (u Usage) Since(before Usage) Usage {
	d := Usage{}
	for name, c := range u {
		b := before[name]
		d[name] = Counts{
			Executions: c.Executions - b.Executions, Rows: c.Rows - b.Rows,
			Requests: c.Requests - b.Requests, Queued: c.Queued - b.Queued, Within: c.Within - b.Within,
		}
	}
	return d
}

// MeanBatch is rows per execution over all models; 0 if nothing was executed.
func (u Usage) MeanBatch() float64 {
	var sum Counts
	for _, c := range u {
		sum.Executions, sum.Rows = sum.Executions+c.Executions, sum.Rows+c.Rows
	}
	if sum.Executions == 0 {
		return 0
	}
	return float64(sum.Rows) / float64(sum.Executions)
}

// readUsage adds up Triton's own counters as they stand in the metrics at these addresses (host:port).
func readUsage(ctx context.Context, addresses ...string) (Usage, error) {
	u := Usage{}
	for _, address := range addresses {
		if err := u.add(ctx, address); err != nil {
			return nil, fmt.Errorf("rig: metrics of %s: %w", address, err)
		}
	}
	return u, nil
}

func (u Usage) add(ctx context.Context, address string) error {
	families, err := metrics(ctx, address)
	if err != nil {
		return err
	}
	for family, field := range map[string]func(*Counts) *uint64{
		"nv_inference_exec_count":          func(c *Counts) *uint64 { return &c.Executions },
		"nv_inference_count":               func(c *Counts) *uint64 { return &c.Rows },
		"nv_inference_request_success":     func(c *Counts) *uint64 { return &c.Requests },
		"nv_inference_queue_duration_us":   func(c *Counts) *uint64 { return &c.Queued },
		"nv_inference_request_duration_us": func(c *Counts) *uint64 { return &c.Within },
	} {
		each(families[family], func(name string, n uint64) {
			c := u[name]
			*field(&c) += n
			u[name] = c
		})
	}
	return nil
}

func each(family *dto.MetricFamily, f func(model string, n uint64)) {
	for _, m := range family.GetMetric() {
		value := m.GetCounter().GetValue() + m.GetUntyped().GetValue()
		for _, l := range m.GetLabel() {
			if l.GetName() == "model" {
				f(l.GetValue(), uint64(value))
			}
		}
	}
}

// metrics reads what is exported at an address (host:port).
func metrics(ctx context.Context, address string) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %s", response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(response.Body)
}

// gauge is the value of a metric without labels.
func gauge(ctx context.Context, address, name string) (float64, error) {
	families, err := metrics(ctx, address)
	if err != nil {
		return 0, fmt.Errorf("metrics of %s: %w", address, err)
	}
	if len(families[name].GetMetric()) != 1 {
		return 0, fmt.Errorf("metrics of %s: %s has %d values, want one", address, name, len(families[name].GetMetric()))
	}
	return families[name].GetMetric()[0].GetGauge().GetValue(), nil
}
