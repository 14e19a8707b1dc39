// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/sidecar/dispatch/ingress/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type list []metrics.Partition

func (l list) MetricsPartitions() []metrics.Partition { return l }

func partition(t *testing.T, id, text string) metrics.Partition {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" || text == "" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(server.Close)
	return metrics.Partition{ID: id, Endpoint: strings.TrimPrefix(server.URL, "http://")}
}

func get(t *testing.T, h http.Handler) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, 200, w.Code)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	_, err := parser.TextToMetricFamilies(strings.NewReader(w.Body.String()))
	require.NoError(t, err, "the exposition must be valid:\n%s", w.Body)
	return w.Body.String()
}

const tritonText = `# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
nv_inference_count{model="m",version="1"} %d
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.5
# HELP nv_inference_first_response_histogram_ms Duration from request to first response in milliseconds
# TYPE nv_inference_first_response_histogram_ms histogram
nv_inference_first_response_histogram_ms_bucket{model="m",le="100"} 1
nv_inference_first_response_histogram_ms_bucket{model="m",le="+Inf"} 2
nv_inference_first_response_histogram_ms_sum{model="m"} 150
nv_inference_first_response_histogram_ms_count{model="m"} 2
`

func TestMergesPartitionsAndOwn(t *testing.T) {
	own := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "conch_requests_total", Help: "Requests."})
	counter.Add(3)
	own.MustRegister(counter)
	h, err := metrics.New(metrics.Options{Conch: own, Registerer: own, Timeout: 30 * time.Second, Partitions: list{
		partition(t, "p0", fmt.Sprintf(tritonText, 7)), partition(t, "p1", fmt.Sprintf(tritonText, 8)), {ID: "silent"}}})
	require.NoError(t, err)
	require.Equal(t, `# HELP conch_requests_total Requests.
# TYPE conch_requests_total counter
conch_requests_total 3
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization{partition="p0"} 0.5
nv_cpu_utilization{partition="p1"} 0.5
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
nv_inference_count{model="m",partition="p0",version="1"} 7
nv_inference_count{model="m",partition="p1",version="1"} 8
# HELP nv_inference_first_response_histogram_ms Duration from request to first response in milliseconds
# TYPE nv_inference_first_response_histogram_ms histogram
nv_inference_first_response_histogram_ms_bucket{model="m",partition="p0",le="100"} 1
nv_inference_first_response_histogram_ms_bucket{model="m",partition="p0",le="+Inf"} 2
nv_inference_first_response_histogram_ms_sum{model="m",partition="p0"} 150
nv_inference_first_response_histogram_ms_count{model="m",partition="p0"} 2
nv_inference_first_response_histogram_ms_bucket{model="m",partition="p1",le="100"} 1
nv_inference_first_response_histogram_ms_bucket{model="m",partition="p1",le="+Inf"} 2
nv_inference_first_response_histogram_ms_sum{model="m",partition="p1"} 150
nv_inference_first_response_histogram_ms_count{model="m",partition="p1"} 2
`, get(t, h))
}

// A partition that is gone, silent, broken or too long is left out and counted, and the others are there in time.
func TestSkipsWhatDoesNotAnswer(t *testing.T) {
	hang := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hang.Close()
	own := prometheus.NewRegistry()
	h, err := metrics.New(metrics.Options{Conch: own, Registerer: own, Timeout: 5 * time.Second, MaxBytes: 2000, Partitions: list{
		partition(t, "good", "# TYPE x gauge\nx 1\n"), partition(t, "status", ""), partition(t, "garbage", "x{ 1 }"),
		partition(t, "long", "# TYPE x gauge\nx 1\n"+strings.Repeat("# comment\n", 1000)),
		{ID: "hangs", Endpoint: strings.TrimPrefix(hang.URL, "http://")}, {ID: "gone", Endpoint: "127.0.0.1:1"}}})
	require.NoError(t, err)
	text := get(t, h) // the one that hangs never answers
	require.Equal(t, `# HELP conch_partition_scrape_failures_total Times that a partition's own metrics could not be read and were left out.
# TYPE conch_partition_scrape_failures_total counter
conch_partition_scrape_failures_total{partition="garbage"} 1
conch_partition_scrape_failures_total{partition="gone"} 1
conch_partition_scrape_failures_total{partition="hangs"} 1
conch_partition_scrape_failures_total{partition="long"} 1
conch_partition_scrape_failures_total{partition="status"} 1
# TYPE x gauge
x{partition="good"} 1
`, text)
}

func TestConflicts(t *testing.T) {
	own := prometheus.NewRegistry()
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "x", Help: "Ours."})
	own.MustRegister(gauge)
	h, err := metrics.New(metrics.Options{Conch: own, Partitions: list{
		partition(t, "p0", "# TYPE x counter\nx 1\n# TYPE y gauge\ny{partition=\"theirs\"} 2\n")}})
	require.NoError(t, err)
	require.Equal(t, `# HELP x Ours.
# TYPE x gauge
x 0
# TYPE y gauge
y{exported_partition="theirs",partition="p0"} 2
`, get(t, h))
	_, err = metrics.New(metrics.Options{Registerer: own})
	require.NoError(t, err)
	_, err = metrics.New(metrics.Options{Registerer: own})
	require.Error(t, err, "the counter is registered once")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/metrics", nil))
	require.Equal(t, http.StatusMethodNotAllowed, w.Code)
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.sock")
	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x 1\n") })}
	go server.Serve(listener) //nolint:errcheck // ends with the test
	defer server.Close()
	h, err := metrics.New(metrics.Options{Partitions: list{{ID: "p", Endpoint: "unix:" + path}}})
	require.NoError(t, err)
	require.Equal(t, "# TYPE x untyped\nx{partition=\"p\"} 1\n", get(t, h))
}
