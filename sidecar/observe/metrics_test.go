// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/observe"
)

// gathered is the registry's text, sample lines only.
func gathered(t *testing.T, registry *prometheus.Registry) []string {
	families, err := registry.Gather()
	require.NoError(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	var text strings.Builder
	for _, f := range families {
		_, err := expfmt.MetricFamilyToText(&text, f)
		require.NoError(t, err)
	}
	var lines []string
	for line := range strings.Lines(text.String()) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	r, err := observe.New(registry)
	require.NoError(t, err)
	r.SetModel("m", "r1", 2, &observe.Line{Alpha: time.Millisecond})
	r.DeclareOn("m", "T4")
	r.Arrived("m", 3, start)
	r.Finished(observe.Outcome{Model: "m", Result: observe.OK, Latency: time.Millisecond, At: start, Retried: true})
	r.Finished(observe.Outcome{Model: "m", Result: observe.Dropped, Reason: "window", At: start})
	execute(r, "m", 2, 2*time.Second)
	r.Executed(observe.Execution{Model: "m", Partition: "p", Rows: 1, Start: start, End: start.Add(time.Second), Lent: 60, Between: observe.Between{Kept: 40, Copied: 20}})
	r.Busy("p", start, start.Add(2*time.Second))
	require.Subset(t, gathered(t, registry), []string{
		`conch_dropped_requests_total{model="m",reason="window"} 1`,
		`conch_intermediate_bytes_total{partition="p",way="copied"} 20`,
		`conch_intermediate_bytes_total{partition="p",way="kept"} 40`,
		`conch_partition_busy_seconds_total{partition="p"} 2`,
		`conch_profile_usable{gpu_type="T4",model="m",source="declared"} 1`,
		`conch_request_rows_total{model="m"} 3`,
		`conch_requests_total{model="m",result="cancelled"} 0`,
		`conch_requests_total{model="m",result="dropped"} 1`,
		`conch_requests_total{model="m",result="failed"} 0`,
		`conch_requests_total{model="m",result="late"} 0`,
		`conch_requests_total{model="m",result="ok"} 1`,
		`conch_requests_total{model="m",result="refused"} 0`,
		`conch_retried_requests_total{model="m"} 1`,
		`conch_shared_memory_bytes_total{partition="p"} 60`,
	})

	r.Forget(nil, nil)
	require.Empty(t, gathered(t, registry))
}

// TestRequestsThatCameToNoModel are counted, under the name of what was asked for, and are no models.
func TestRequestsThatCameToNoModel(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	r, err := observe.New(registry)
	require.NoError(t, err)
	r.Finished(observe.Outcome{Early: true, Name: "app", Result: observe.Refused, Reason: "no_variant", At: start})
	r.Finished(observe.Outcome{Early: true, Name: "app", Result: observe.Cancelled, Reason: "cancel", At: start})
	r.Finished(observe.Outcome{Early: true, Model: "m", Result: observe.Refused, Reason: "invalid", At: start})
	r.Finished(observe.Outcome{Early: true, Result: observe.Refused, Reason: "unknown_model", At: start})
	require.ElementsMatch(t, gathered(t, registry), []string{
		`conch_cancelled_requests_total{model="app",reason="cancel"} 1`,
		`conch_dropped_requests_total{model="",reason="unknown_model"} 1`,
		`conch_dropped_requests_total{model="app",reason="no_variant"} 1`,
		`conch_dropped_requests_total{model="m",reason="invalid"} 1`,
		`conch_named_requests_total{model="",name="app",result="cancelled"} 1`,
		`conch_named_requests_total{model="",name="app",result="refused"} 1`,
		`conch_requests_total{model="",result="refused"} 1`,
		`conch_requests_total{model="app",result="cancelled"} 1`,
		`conch_requests_total{model="app",result="refused"} 1`,
		`conch_requests_total{model="m",result="refused"} 1`,
	})
}

func TestPlanMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	m, err := observe.NewPlanMetrics(registry)
	require.NoError(t, err)
	m.Planned("static", "applied", time.Millisecond)
	m.Step("load", time.Second, errors.New("no"))
	m.Breaker("static", "open", "closed", "open")
	m.Serving(3, start)
	m.Partitions(map[string]bool{"a": true, "b": false})
	m.Advice(&policy.Advice{ReleaseGpus: 2, IdleShare: .3}, map[string]int{"T4": 3})
	require.Subset(t, gathered(t, registry), []string{
		`conch_plans_total{policy="static",result="applied"} 1`,
		`conch_apply_step_failures_total{step="load"} 1`,
		`conch_policy_breaker_state{policy="static",state="closed"} 0`,
		`conch_policy_breaker_state{policy="static",state="open"} 1`,
		`conch_partition_up{partition="a"} 1`,
		`conch_partition_up{partition="b"} 0`,
		`conch_advice_gpus{action="allocate"} 0`,
		`conch_advice_gpus{action="release"} 2`,
		`conch_gpus_wanted{gpu_type="T4"} 3`,
		`conch_gpu_idle_share 0.3`,
	})
	m.Advice(nil, nil)
	for _, line := range gathered(t, registry) {
		require.NotContains(t, line, "conch_advice")
		require.NotContains(t, line, "idle_share")
	}
	_, err = observe.NewPlanMetrics(registry)
	require.Error(t, err, "the same registry twice")
}
