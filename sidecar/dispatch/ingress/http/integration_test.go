// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	nethttp "net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/metrics"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// dispatcher is a dispatcher with the fronts' interfaces; the daemon does the same.
type dispatcher struct{ *dispatch.Dispatcher }

func (d dispatcher) Partitions() []aggregate.Partition {
	var list []aggregate.Partition
	routes := d.Routes()
	for _, s := range d.Dispatcher.Partitions() {
		p := aggregate.Partition{ID: s.Partition.ID, HTTP: s.Partition.Endpoint.HTTP, Up: s.Up && !s.Draining, Conn: s.Conn}
		for name, m := range routes.Models {
			if slices.ContainsFunc(m.Places, func(pl router.Place) bool { return pl.Partition == p.ID }) {
				p.Models = append(p.Models, name)
			}
		}
		list = append(list, p)
	}
	return list
}

func (d dispatcher) MetricsPartitions() []metrics.Partition {
	var list []metrics.Partition
	for _, s := range d.Dispatcher.Partitions() {
		if s.Up {
			list = append(list, metrics.Partition{ID: s.Partition.ID, Endpoint: s.Partition.Endpoint.Metrics})
		}
	}
	return list
}

func (d dispatcher) Lookup(name string) (aggregate.Model, bool) {
	m, ok := d.Routes().Models[name]
	if !ok {
		return aggregate.Model{}, false
	}
	return aggregate.Model{Config: m.Config, Versions: m.Versions}, true
}

func (d dispatcher) Ready() error { return d.Dispatcher.Ready() }

func (d dispatcher) Repository() []aggregate.Entry {
	var all []aggregate.Entry
	for name := range d.Routes().Models {
		all = append(all, aggregate.Entry{Name: name})
	}
	return all
}

func (d dispatcher) Count(name, version string) (aggregate.Count, bool) {
	for _, c := range d.VersionCounts(name) {
		if c.Version == version {
			return aggregate.Count{Success: c.Success, Fail: c.Failed, SuccessTime: c.SuccessTime, FailTime: c.FailTime, QueueTime: c.QueueTime, Ran: c.Ran}, true
		}
	}
	return aggregate.Count{}, false
}

func (d dispatcher) Pick(ctx context.Context, model string) (front.Server, func(error), error) {
	on, done, err := d.Dispatcher.Pick(ctx, model)
	return front.Server{Partition: on.ID, Endpoint: on.Endpoint.HTTP}, done, err
}

// startPartitions is a front before a dispatcher before two partitions that both serve an identity model.
func startPartitions(t *testing.T) (address string, d dispatcher, m *metrics.Handler) {
	t.Helper()
	repository := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(repository, "echo", "1"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(repository, "echo", "config.pbtxt"), []byte(`
name: "echo" backend: "python" max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
parameters { key: "conch_builtin" value { string_value: "identity" } }
`), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(repository, "echo", "1", "model.py"), nil, 0o644))
	table := &router.Table{Revision: 1}
	echoModel := &router.Model{Name: "echo", Versions: []string{"1"}, Batchable: true, MaxBatch: 8, SLO: time.Second}
	for _, id := range []string{"p0", "p1"} {
		s, err := minitriton.New(minitriton.Options{Repository: repository, Control: minitriton.ControlExplicit, Load: []string{"echo"}, Partition: minitriton.Partition{ID: id}})
		require.NoError(t, err)
		l, err := minitriton.Loopback()
		require.NoError(t, err)
		require.NoError(t, s.Start(t.Context(), l))
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		e := s.Endpoint()
		table.Partitions = append(table.Partitions, &router.PartitionSpec{ID: id, ThreadPercentage: 100,
			Endpoint: router.Endpoint{GRPC: e.GRPC, HTTP: e.HTTP, Metrics: e.Metrics}})
		echoModel.Places = append(echoModel.Places, router.Place{Partition: id})
	}
	echoModel.Config = &tritonpb.ModelConfig{Name: "echo", Backend: "python", MaxBatchSize: 8,
		Input:  []*tritonpb.ModelInput{{Name: "INPUT0", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{-1}}},
		Output: []*tritonpb.ModelOutput{{Name: "OUTPUT0", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{-1}}}}
	table.Models = map[string]*router.Model{"echo": echoModel}
	d = dispatcher{dispatch.New(dispatch.Options{})}
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	require.NoError(t, d.Swap(t.Context(), table))
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(d.Partitions(), func(p aggregate.Partition) bool { return !p.Up })
	}, 30*time.Second, time.Millisecond)

	a := aggregate.New(aggregate.Options{Partitions: d, Models: d, Counts: d})
	h := front.New(front.Options{Inferer: d, Catalog: a, Picker: d, Endpoints: a, Aggregator: a})
	t.Cleanup(h.Close)
	address = listen(t, h, true)
	m, err := metrics.New(metrics.Options{Partitions: d, Conch: prometheus.NewRegistry()})
	require.NoError(t, err)
	return address, d, m
}

var _ front.Inferer = dispatcher{}

// TestThroughDispatcher: forty callers over HTTP share batches in two partitions, each gets its own numbers, and the
// statistics count forty requests.
func TestThroughDispatcher(t *testing.T) {
	address, _, m := startPartitions(t)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			body := fmt.Sprintf(`{"id":"r%d","inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"FP32","data":[%d,0.5]}]}`, i, i)
			a := send(t, address, request{Method: "POST", Path: "/v2/models/echo/infer", Body: body})
			want := fmt.Sprintf(`{"id":"r%d","model_name":"echo","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[1,2],"data":[%d.0,0.5]}]}`, i, i)
			if a.Code != 200 || a.text() != want {
				t.Errorf("%d %s, not %s", a.Code, a.text(), want)
			}
		})
	}
	wg.Wait()
	bad := send(t, address, request{Method: "POST", Path: "/v2/models/echo/infer", Body: `{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":[1]}]}`})
	require.Equal(t, 400, bad.Code)

	var stats struct {
		ModelStats []struct {
			Name           string
			InferenceCount int                                   `json:"inference_count"`
			InferenceStats struct{ Success struct{ Count int } } `json:"inference_stats"`
		} `json:"model_stats"`
	}
	a := send(t, address, request{Method: "GET", Path: "/v2/models/echo/stats"})
	require.NoError(t, json.Unmarshal([]byte(a.text()), &stats), a.text())
	require.Len(t, stats.ModelStats, 1)
	require.Equal(t, 40, stats.ModelStats[0].InferenceCount)
	require.Equal(t, 40, stats.ModelStats[0].InferenceStats.Success.Count)

	require.Equal(t, answer{Code: 200, ContentType: "text/plain"}, send(t, address, request{Method: "GET", Path: "/v2/models/echo/ready"}))
	require.Equal(t, `[{"name":"echo","version":"1","state":"READY"}]`, send(t, address, request{Method: "POST", Path: "/v2/repository/index"}).Body)
	require.Equal(t, `{"name":"echo","versions":["1"],"platform":"python","inputs":[{"name":"INPUT0","datatype":"FP32","shape":[-1,-1]}],"outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[-1,-1]}]}`,
		send(t, address, request{Method: "GET", Path: "/v2/models/echo"}).Body)

	server := httptest.NewServer(m)
	defer server.Close()
	response, err := nethttp.Get(server.URL + "/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	for _, id := range []string{"p0", "p1"} {
		sample := `nv_inference_request_success{model="echo",partition="` + id + `",version="1"}`
		require.True(t, strings.Contains(string(text), sample), "the metrics have no sample %s", sample)
	}
	nethttp.DefaultClient.CloseIdleConnections()
}
