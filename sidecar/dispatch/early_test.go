// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/grpc"
	httpfront "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
)

// wish is a parameter of a request for the app.
func wish(name string, value any) func(*tritonpb.ModelInferRequest) {
	p := &tritonpb.InferParameter{}
	switch v := value.(type) {
	case float64:
		p.ParameterChoice = &tritonpb.InferParameter_DoubleParam{DoubleParam: v}
	case int:
		p.ParameterChoice = &tritonpb.InferParameter_Int64Param{Int64Param: int64(v)}
	}
	return func(m *tritonpb.ModelInferRequest) {
		if m.Parameters == nil {
			m.Parameters = map[string]*tritonpb.InferParameter{}
		}
		m.Parameters[name] = p
	}
}

func forName(name string) func(*tritonpb.ModelInferRequest) {
	return func(m *tritonpb.ModelInferRequest) { m.ModelName = name }
}

func version(v string) func(*tritonpb.ModelInferRequest) {
	return func(m *tritonpb.ModelInferRequest) { m.ModelVersion = v }
}

// early is the outcome of a request for which no model was found.
type early struct {
	Name, Model string
	Result      dispatch.Result
	Reason      string
}

func (r *recorder) early(t *testing.T) (all []early) {
	t.Helper()
	require.Eventually(t, func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.outcomes) > 0 }, 30*time.Second, time.Millisecond)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.outcomes {
		if o.Early {
			all = append(all, early{o.Name, o.Model, o.Result, o.Reason})
		}
	}
	return all
}

// TestWhatComesToNoModelHasAnOutcome: one, by each way to the dispatcher, with the app's name, and never with a name that a client made up.
func TestWhatComesToNoModelHasAnOutcome(t *testing.T) {
	refusedFor := func(name, reason string) early { return early{name, "", dispatch.Refused, reason} }
	nobody := func(names.InactiveError) error { return status.Error(codes.Unavailable, "nobody starts it") }
	for name, c := range map[string]struct {
		change func(*tritonpb.ModelInferRequest)
		o      dispatch.Options
		want   early
	}{
		"an unknown model":           {change: forName("made up"), want: refusedFor("", "unknown_model")},
		"an unknown version":         {change: both(forName("a"), version("7")), want: refusedFor("a", "unknown_model")},
		"a wish that nothing meets":  {change: both(forName("a"), wish("accuracy", .99)), want: refusedFor("a", "no_variant")},
		"a wish that is none":        {change: both(forName("a"), wish("accuracy", 7.)), want: refusedFor("a", "invalid")},
		"a latency that is none":     {change: both(forName("a"), wish("latency", -1)), want: refusedFor("a", "invalid")},
		"a sequence for an app":      {change: both(forName("a"), wish("sequence_id", 4)), want: refusedFor("a", "invalid")},
		"a variant that nobody runs": {change: both(forName("a"), wish("accuracy", .8)), o: dispatch.Options{Wanted: nobody}, want: refusedFor("a", "no_variant")},
		"a variant that never came":  {change: both(forName("a"), wish("accuracy", .8)), o: dispatch.Options{OutageWait: time.Millisecond}, want: refusedFor("a", "no_variant")},
		"a variant that came too late": {
			change: both(forName("a"), wish("accuracy", .8), wish("timeout", 1000)), o: dispatch.Options{OutageWait: time.Hour},
			want: early{"a", "", dispatch.Dropped, "load_timeout"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTriton(t)
			d, seen := newDispatcher(t, c.o, apps(1, p, "fast"))
			_, err := d.Infer(t.Context(), request(t, "id", 1, 7, c.change))
			require.Error(t, err)
			require.Equal(t, []early{c.want}, seen.early(t))

			_, streamSeen, client := streamed(t, c.o, apps(1, p, "fast"))
			m := message("id", 1, 7)
			c.change(m)
			require.Equal(t, []string{"id||false|" + status.Convert(err).Message()}, lines(t, openStream(t.Context(), t, client, m)))
			require.Equal(t, []early{c.want}, streamSeen.early(t))
			for _, r := range []*recorder{seen, streamSeen} {
				require.Zero(t, r.arrivals())
			}
		})
	}
}

// TestWhoWaitsForAVariantAndGoesHasAnOutcome, with the reason why the caller has
// gone.
func TestWhoWaitsForAVariantAndGoesHasAnOutcome(t *testing.T) {
	p := newTriton(t)
	wanted := make(chan names.InactiveError, 2)
	o := dispatch.Options{OutageWait: time.Hour, Wanted: func(e names.InactiveError) error { wanted <- e; return nil }}
	d, seen, client := streamed(t, o, apps(1, p, "fast"))
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { _, err := ask(ctx, t, d, .8); failed <- err }()
	<-wanted
	m := message("id", 1, 7)
	both(forName("a"), wish("accuracy", .8))(m)
	s := openStream(ctx, t, client, m)
	<-wanted
	cancel()
	requireCode(t, codes.Canceled, <-failed)
	_, err := s.Recv()
	requireCode(t, codes.Canceled, err)
	require.Eventually(t, func() bool { return len(seen.early(t)) == 2 }, 30*time.Second, time.Millisecond)
	require.Equal(t, []early{{"a", "", dispatch.Cancelled, "cancel"}, {"a", "", dispatch.Cancelled, "cancel"}}, seen.early(t))
	require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
}

// TestWhatFrontsRefuseHasAnOutcome: fronts answer before the dispatcher receives
// the request.
func TestWhatFrontsRefuseHasAnOutcome(t *testing.T) {
	p := newTriton(t)
	routes := apps(1, p, "fast")
	routes.Names["a"].Config, routes.Names["a"].Versions = modelConfig("a"), []string{"1"}
	d, seen := newDispatcher(t, dispatch.Options{}, routes)
	grpcAddress, httpAddress := fronts(t, d, routes)
	post := func(path, body string) int {
		code, _ := postTo(t, http.DefaultClient, "http://"+httpAddress+path, body)
		return code
	}
	const inputs = `"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}`
	require.Equal(t, 200, post("/v2/models/a/infer", "{"+inputs))
	require.Equal(t, 404, post("/v2/models/made%20up/infer", "{"+inputs))
	require.Equal(t, 500, post("/v2/models/fast/infer", "{"))
	require.Equal(t, 500, post("/v2/models/a/infer", "{"))
	require.Equal(t, 400, post("/v2/models/a/infer", `{"parameters": {"accuracy": 0.99}, `+inputs))
	require.Equal(t, 400, post("/v2/models/a/infer", strings.Repeat(" ", 65<<20)), "it is too large")
	require.Equal(t, 501, post("/v2/models/a/generate", "{}"), "an app's name is no model of a server's")
	require.Equal(t, 404, post("/v2/models/made%20up/generate_stream", "{}"))
	require.Equal(t, 400, post("/v2/models/fast/generate", strings.Repeat(`{"a":`, 2000)))
	require.Equal(t, 503, post("/v2/models/fast/generate", "{}"), "its server has no HTTP endpoint")
	require.Equal(t, 404, post("/v2/models/fast/infer?"+strings.Repeat("a", 9<<10), "{}"), "the path is too long")
	frame := batch.Frame{Data: mem.BufferSlice{mem.SliceBuffer{0xff}}}
	err := dialTo(t, grpcAddress).Invoke(t.Context(), tritonpb.GRPCInferenceService_ModelInfer_FullMethodName, &frame, &batch.Frame{}, grpc.ForceCodecV2(batch.Codec{}))
	requireCode(t, codes.Internal, err)
	refusedFor := func(name, model, reason string) early { return early{name, model, dispatch.Refused, reason} }
	require.Equal(t, []early{
		refusedFor("", "", "unknown_model"), refusedFor("", "fast", "invalid"), refusedFor("a", "", "invalid"), refusedFor("a", "", "no_variant"), refusedFor("a", "", "invalid"),
		refusedFor("a", "", "invalid"), refusedFor("", "", "unknown_model"), refusedFor("", "fast", "invalid"), refusedFor("", "fast", "invalid"), refusedFor("", "", "invalid"),
	}, seen.early(t))
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 1, dispatch.Failed: 1, dispatch.Refused: 10}, resultsInTime(seen.count(t)))
}

// TestWhatComesBeforeTheFirstTable gets the error "not ready", by each way to the dispatcher: it is not known yet which
// models are served.
func TestWhatComesBeforeTheFirstTable(t *testing.T) {
	d, seen := newDispatcher(t, dispatch.Options{}, nil)
	grpcAddress, httpAddress := fronts(t, d, nil)
	const text = "Server not ready: no route table yet"
	client := tritonpb.NewGRPCInferenceServiceClient(dialTo(t, grpcAddress))
	_, err := client.ModelInfer(t.Context(), message("1", 1, 1))
	requireCode(t, codes.Unavailable, err)
	require.Equal(t, text, status.Convert(err).Message())
	require.Equal(t, []string{"2||false|" + text}, lines(t, openStream(t.Context(), t, client, message("2", 1, 1))))
	for _, path := range []string{"infer", "versions/1/infer", "generate", "generate_stream"} {
		code, body := postTo(t, http.DefaultClient, "http://"+httpAddress+"/v2/models/m/"+path, "{}")
		require.Equal(t, 503, code, path)
		require.Contains(t, body, text, path)
	}
	require.Equal(t, slices.Repeat([]early{{"", "", dispatch.Refused, "not_ready"}}, 6), seen.early(t))
}

// TestWhatTheGateRefusesHasAnOutcome: one, under the model of its path where that is known and served.
func TestWhatTheGateRefusesHasAnOutcome(t *testing.T) {
	p := newTriton(t)
	routes := apps(1, p, "fast")
	routes.Names["a"].Config, routes.Names["a"].Versions = modelConfig("a"), []string{"1"}
	d, seen := newDispatcher(t, dispatch.Options{}, routes)
	r := &rig{d: d, table: routes}
	agg := aggregate.New(aggregate.Options{Partitions: r, Models: r})
	g := gate.New(gate.Options{Requests: 1, Bytes: 1 << 20, Connections: 10, Stall: time.Minute})
	t.Cleanup(g.Close)
	s := front.New(front.Options{Inferer: d, Aggregator: agg, Refused: d.Refused})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(g.Listener(l, true)) }()
	t.Cleanup(func() { s.Stop(); <-done })
	handler := httpfront.New(httpfront.Options{Inferer: d, Catalog: agg, Picker: picker{d}, Endpoints: agg, Aggregator: agg, Refused: d.Refused})
	server := httptest.NewUnstartedServer(handler)
	server.Listener = g.Listener(server.Listener, false)
	server.Config.ConnContext = gate.WithConn
	server.Start()
	t.Cleanup(func() { server.Close(); handler.Close() })

	client := tritonpb.NewGRPCInferenceServiceClient(dialTo(t, l.Addr().String()))
	holds := openStream(t.Context(), t, client, asking("1", forName("fast")))
	_, err = holds.Recv()
	require.NoError(t, err, "it is let in, and stays")
	_, err = client.ModelInfer(t.Context(), asking("2", forName("fast")))
	requireCode(t, codes.Unavailable, err)
	_, err = openStream(t.Context(), t, client).Recv()
	requireCode(t, codes.Unavailable, err)
	_, err = client.ModelConfig(t.Context(), &tritonpb.ModelConfigRequest{Name: "fast"})
	requireCode(t, codes.Unavailable, err)
	for _, path := range []string{"fast/infer", "a/infer", "made up/infer", "fast/generate", "fast/generate_stream", "fast/trace/setting"} {
		code, _ := postTo(t, server.Client(), server.URL+"/v2/models/"+strings.ReplaceAll(path, " ", "%20"), "{}")
		require.Equal(t, 503, code, path)
	}
	_ = lines(t, holds)
	of := func(name, model string) early { return early{name, model, dispatch.Refused, "queue_requests"} }
	require.Equal(t, []early{of("", ""), of("", ""), of("", "fast"), of("a", ""), of("", ""), of("", "fast"), of("", "fast")}, seen.early(t))
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 1, dispatch.Refused: 7}, resultsInTime(seen.count(t)))
}

// TestAStreamThatIsNotLetInHasAnOutcome: one, for the requests on it, which are
// not read.
func TestAStreamThatIsNotLetInHasAnOutcome(t *testing.T) {
	d, seen, client := streamed(t, dispatch.Options{}, table(1, nil, newTriton(t)))
	require.NoError(t, d.Drain(t.Context()))
	s, err := client.ModelStreamInfer(t.Context())
	require.NoError(t, err)
	_, err = s.Recv()
	requireCode(t, codes.Unavailable, err)
	require.Equal(t, []early{{"", "", dispatch.Refused, "draining"}}, seen.early(t))
}

// TestABodyThatNeverComesWholeHasAnOutcome: its client has closed the connection.
func TestABodyThatNeverComesWholeHasAnOutcome(t *testing.T) {
	routes := table(1, nil, newTriton(t))
	d, seen := newDispatcher(t, dispatch.Options{}, routes)
	_, address := fronts(t, d, routes)
	for _, path := range []string{"infer", "generate"} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		require.NoError(t, err)
		_, err = conn.Write([]byte("POST /v2/models/m/" + path + " HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{"))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	require.Eventually(t, func() bool { return len(seen.early(t)) == 2 }, 30*time.Second, time.Millisecond)
	require.Equal(t, slices.Repeat([]early{{"", "m", dispatch.Cancelled, dispatch.GoneDisconnect}}, 2), seen.early(t))
}

// postTo sends a body and returns the status and the answer.
func postTo(t *testing.T, client *http.Client, url, body string) (code int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	resp, err := client.Do(r)
	require.NoError(t, err)
	text, _ := io.ReadAll(resp.Body)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, string(text)
}
