// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/admin/api"
)

// get asks and reads the whole answer.
func get(t *testing.T, url string) (status int, body string, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return response.StatusCode, string(data), err
}

// metrics are conch's, by family.
type metrics map[string]*dto.MetricFamily

func scrape(t *testing.T, c *rig.Conch) metrics {
	t.Helper()
	status, body, err := get(t, "http://"+c.Metrics+"/metrics")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, body)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	require.NoError(t, err)
	return families
}

// labelled lists the series of a family whose labels include these, written as name=value.
func (m metrics) labelled(family string, labels ...string) []*dto.Metric {
	var found []*dto.Metric
	for _, series := range m[family].GetMetric() {
		have := map[string]bool{}
		for _, l := range series.GetLabel() {
			have[l.GetName()+"="+l.GetValue()] = true
		}
		all := true
		for _, l := range labels {
			all = all && have[l]
		}
		if all {
			found = append(found, series)
		}
	}
	return found
}

// sum adds up those series: counters and gauges by value, histograms by the number of observations.
func (m metrics) sum(family string, labels ...string) float64 {
	total := 0.0
	for _, s := range m.labelled(family, labels...) {
		total += s.GetCounter().GetValue() + s.GetGauge().GetValue() + s.GetUntyped().GetValue() + float64(s.GetHistogram().GetSampleCount())
	}
	return total
}

// What conch did is seen in its metrics, both ways, and in those of its servers.
func TestMetrics(t *testing.T) {
	t.Parallel()
	c := start(t, 2, nil, "emulated")
	triton := triton(t, c)
	const requests = 12
	for i := range requests {
		_, err := triton.ModelInfer(t.Context(), tensor("emulated", float32(i)))
		require.NoError(t, err)
	}
	bad := tensor("emulated", 1)
	bad.Inputs[0].Name = "NOBODY"
	_, err := triton.ModelInfer(t.Context(), bad)
	require.Error(t, err)

	m := scrape(t, c)
	of := "model=emulated"
	require.EqualValues(t, requests, m.sum("conch_requests_total", of, "result=ok")+m.sum("conch_requests_total", of, "result=late"))
	require.EqualValues(t, 1, m.sum("conch_requests_total", of, "result=failed")+m.sum("conch_requests_total", of, "result=refused"), "%v", m["conch_requests_total"])
	require.EqualValues(t, requests+1, m.sum("conch_request_rows_total", of))
	require.EqualValues(t, requests, m.sum("conch_request_duration_seconds", of))
	require.EqualValues(t, requests, m.sum("conch_queue_duration_seconds", of))
	require.GreaterOrEqual(t, m.sum("conch_execution_duration_seconds", of), float64(requests))
	require.Len(t, m.labelled("conch_batch_rows", of), 1)
	require.Positive(t, m.sum("conch_partition_busy_seconds_total"))
	require.Zero(t, m.sum("conch_queue_requests", of))
	require.EqualValues(t, 1, m.sum("conch_profile_usable", of, "gpu_type="+zoo.A100))
	require.NotEmpty(t, m.labelled("conch_profile_latency_seconds", of, "batch=16"))

	require.EqualValues(t, 1, m.sum("conch_plans_total", "policy=static", "result=applied"))
	require.NotEmpty(t, m.labelled("conch_plan_duration_seconds", "policy=static"))
	for _, step := range []string{"start", "load", "warm", "swap"} {
		found := 0.0
		for _, s := range m["conch_apply_step_duration_seconds"].GetMetric() {
			if strings.Contains(s.GetLabel()[0].GetValue(), step) {
				found += float64(s.GetHistogram().GetSampleCount())
			}
		}
		require.Positive(t, found, "steps of kind %s among %v", step, m["conch_apply_step_duration_seconds"].GetMetric())
	}
	require.Zero(t, m.sum("conch_apply_step_failures_total"))
	require.EqualValues(t, 1, m.sum("conch_policy_breaker_state", "policy=static"), "of all states in one")
	require.EqualValues(t, 1, m.sum("conch_plan_revision"))
	require.InDelta(t, float64(time.Now().Unix()), m.sum("conch_plan_applied_timestamp_seconds"), 60)

	for _, p := range []string{"partition=gpu0", "partition=gpu1"} {
		require.EqualValues(t, 1, m.sum("conch_partition_up", p))
		for family := range m {
			if strings.HasPrefix(family, "nv_") {
				require.NotEmpty(t, m.labelled(family, p), "%s of %s", family, p)
			}
		}
		require.Len(t, m.labelled("nv_inference_count", p, of), 1)
	}
	require.GreaterOrEqual(t, m.sum("nv_inference_count", of), float64(requests), "Triton counts warm-up too")
	require.Len(t, m.labelled("nv_inference_request_failure", of), 2*len(m.labelled("nv_inference_request_failure", of, "partition=gpu0")))
}

// Readiness says what is missing while conch starts; liveness does not wait for that.
func TestReadinessHasReasons(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := listener.Addr().(*net.TCPAddr).Port
	require.NoError(t, listener.Close())
	address := "http://127.0.0.1:" + strconv.Itoa(port)

	type look struct {
		live, ready int
		body        string
	}
	var looks []look
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			var l look
			l.ready, l.body, err = get(t, address+"/readyz")
			if err == nil {
				l.live, _, err = get(t, address+"/livez")
			}
			if err == nil {
				looks = append(looks, l)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	serve(t, rig.ConchOptions{Repository: repository(t, "emulated"), GPUs: 1, Ports: [3]int{2: port}})
	stop()
	<-done
	require.NotEmpty(t, looks)
	require.Equal(t, http.StatusServiceUnavailable, looks[0].ready, looks[0].body)
	var reasons []string
	for i, l := range looks {
		require.Equal(t, http.StatusOK, l.live, "look %d", i)
		require.True(t, i == 0 || looks[i-1].ready != http.StatusOK || l.ready == http.StatusOK, "ready once, ready on: %s", l.body)
		var health api.Health
		require.NoError(t, json.Unmarshal([]byte(l.body), &health), l.body)
		require.Equal(t, l.ready == http.StatusOK, health.OK, l.body)
		for _, check := range health.Checks {
			require.Equal(t, check.OK, check.Reason == "", "a reason exactly for what is not: %s", l.body)
			reasons = append(reasons, check.Reason)
		}
	}
	require.Contains(t, strings.Join(reasons, "\n"), "the first plan is being applied")
	status, body, err := get(t, address+"/readyz")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, body)
}
