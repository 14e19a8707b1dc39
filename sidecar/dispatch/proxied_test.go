// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// TestWhatIsProxiedHasAnOutcome: a request that generate or generate_stream passes to a server counts once, by the server's answer.
func TestWhatIsProxiedHasAnOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		path   string
		want   []dispatch.Result
	}{
		"answered":               {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }, "models/m/generate", []dispatch.Result{dispatch.OK}},
		"answered with events":   {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "data: {}\n\n") }, "models/m/versions/1/generate_stream", []dispatch.Result{dispatch.OK}},
		"an error among events":  {events(`{"OUT":1,"model_name":"m"}`, `{"error":"the model's own"}`, `{"OUT":2,"model_name":"m"}`), "models/m/generate_stream", []dispatch.Result{dispatch.Failed}},
		"an output named error":  {events(`{"error":"what was measured","model_name":"m","model_version":"1"}`), "models/m/generate_stream", []dispatch.Result{dispatch.OK}},
		"an error as document":   {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"error":"not one answer"}`) }, "models/m/generate", []dispatch.Result{dispatch.Failed}},
		"refused by the server":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }, "models/m/generate", []dispatch.Result{dispatch.Failed}},
		"broken off":             {breaksOff, "models/m/generate_stream", []dispatch.Result{dispatch.Failed}},
		"no request for a model": {func(http.ResponseWriter, *http.Request) {}, "new/route", nil},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(c.answer)
			defer server.Close()
			routes := table(1, nil, newTriton(t))
			routes.Partitions[0].Endpoint.HTTP = strings.TrimPrefix(server.URL, "http://")
			d, seen := newDispatcher(t, dispatch.Options{}, routes)
			_, address := fronts(t, d, routes)
			_, _ = postTo(t, http.DefaultClient, "http://"+address+"/v2/"+c.path, "{}")
			want := map[dispatch.Result]int{}
			for _, r := range c.want {
				want[r]++
			}
			require.Eventually(t, func() bool { return seen.arrivals() == len(c.want) && seen.settled() }, 30*time.Second, time.Millisecond)
			require.Equal(t, want, seen.count(t))
			for _, o := range seen.outcomes {
				require.Equal(t, "m", o.Model)
				require.True(t, o.PassedThrough)
				require.False(t, o.Early)
			}
		})
	}
}

// events answers with events, byte by byte.
func events(all ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, e := range all {
			for _, b := range []byte("data: " + e + "\n\n") {
				_, _ = w.Write([]byte{b})
				w.(http.Flusher).Flush()
			}
		}
	}
}

// breaksOff begins an answer and ends the connection.
func breaksOff(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprint(w, "data: {}\n\n")
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// TestWhoLeavesAnAnswerThatIsProxiedIsCancelled, with the reason.
func TestWhoLeavesAnAnswerThatIsProxiedIsCancelled(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "data: {}\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	routes := table(1, nil, newTriton(t))
	routes.Partitions[0].Endpoint.HTTP = strings.TrimPrefix(server.URL, "http://")
	d, seen := newDispatcher(t, dispatch.Options{}, routes)
	_, address := fronts(t, d, routes)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/v2/models/m/generate_stream", strings.NewReader("{}"))
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	_, err = io.ReadFull(answer.Body, make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Eventually(t, func() bool { return seen.arrivals() == 1 && seen.settled() }, 30*time.Second, time.Millisecond)
	require.Equal(t, map[dispatch.Result]int{dispatch.Cancelled: 1}, seen.count(t))
	require.Equal(t, dispatch.GoneDisconnect, seen.outcomes[0].Reason)
}

// TestWhatAProxiedAnswerSaysOfItsPlace: the same as it says over gRPC, although generate has status 400 for every execution. A server that refuses requests, and a python model that answers with errors of its own,
// are well; one whose executions fail is ejected by three of them; one that does not have the model is passed over; one that cannot be reached, or breaks off,
// is lost.
func TestWhatAProxiedAnswerSaysOfItsPlace(t *testing.T) {
	type standing struct{ ejected, passedOver, lost bool }
	says := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			fmt.Fprint(w, body)
		}
	}
	for name, c := range map[string]struct {
		answer       http.HandlerFunc // nil: nobody listens
		path         string
		onnx, python standing
	}{
		"refused":                  {answer: says(400, `{"error":"[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'm'"}`)},
		"no JSON":                  {answer: says(500, `{"error":"failed to parse the request JSON buffer: Missing a name for object member. at 1"}`)},
		"given up by its queue":    {answer: says(400, `{"error":"Request timeout expired"}`)},
		"refused without a text":   {answer: says(400, "")},
		"a method that it lacks":   {answer: says(405, `{"error":"Method Not Allowed"}`)},
		"its queue is full":        {answer: says(503, `{"error":"[request id: 1] Exceeds maximum queue size"}`)},
		"another version":          {answer: says(404, `{"error":"Request for unknown model: 'm' version 7 is not found"}`)},
		"no model":                 {says(404, `{"error":"Request for unknown model: 'm' is not found"}`), "generate", standing{passedOver: true}, standing{passedOver: true}},
		"words of the model's":     {says(400, `{"error":"the model's own words"}`), "generate", standing{ejected: true}, standing{}},
		"an error of the model's":  {says(500, `{"error":"onnx runtime error 6: out of memory"}`), "generate", standing{ejected: true}, standing{}},
		"an execution that failed": {says(400, `{"error":"Failed to process the request(s) for model 'm_0_0', message: no"}`), "generate", standing{ejected: true}, standing{ejected: true}},
		"a dead model":             {says(400, `{"error":"Stub process 'm_0_0' is not healthy."}`), "generate", standing{ejected: true}, standing{ejected: true}},
		"what stands before it":    {says(502, "<html>"), "generate", standing{ejected: true}, standing{}},
		"an event that refuses":    {answer: events(`{"error":"unexpected shape for input 'IN' for model 'm'"}`), path: "generate_stream"},
		"an event of the model's":  {events(`{"error":"CUDA error"}`), "generate_stream", standing{ejected: true}, standing{}},
		"a first event": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			w.WriteHeader(400)
			fmt.Fprint(w, "data: {\"error\":\"Failed to process the request(s) for model 'm_0_0', message: no\"}\n\n")
		}, "generate_stream", standing{ejected: true}, standing{ejected: true}},
		"an event of an execution":   {events(`{"error":"Failed to process the request(s) for model 'm_0_0', message: no"}`), "generate_stream", standing{ejected: true}, standing{ejected: true}},
		"broken off":                 {breaksOff, "generate_stream", standing{lost: true}, standing{lost: true}},
		"broken off before it began": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "generate", standing{lost: true}, standing{lost: true}},
		"a connection refused":       {nil, "generate", standing{lost: true}, standing{lost: true}},
	} {
		for backend, want := range map[string]standing{"onnxruntime": c.onnx, "python": c.python} {
			t.Run(name+"/"+backend, func(t *testing.T) {
				var asked [2]atomic.Int32
				parts := []*triton{newTriton(t), newTriton(t)}
				routes := table(1, func(m *router.Model) { m.Config.Backend = backend }, parts...)
				for i := range parts {
					server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if asked[i].Add(1); i == 0 {
							c.answer(w, r)
							return
						}
						fmt.Fprint(w, "{}")
					}))
					defer server.Close()
					routes.Partitions[i].Endpoint.HTTP = strings.TrimPrefix(server.URL, "http://")
					if i == 0 && c.answer == nil {
						server.Close()
					}
				}
				if want.lost {
					parts[0].kill() // or it is found again
				}
				d, seen := newDispatcher(t, dispatch.Options{Clock: patient{clock.Timers()}}, routes)
				_, address := fronts(t, d, routes)
				const requests = 5 // one after the other: each goes to the first server, if that is usable
				for i := range requests {
					r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/v2/models/m/"+cmp.Or(c.path, "generate"), strings.NewReader("{}"))
					require.NoError(t, err)
					answer, err := http.DefaultClient.Do(r)
					require.NoError(t, err)
					_, _ = io.Copy(io.Discard, answer.Body) // it may break off
					require.NoError(t, answer.Body.Close())
					require.Eventually(t, func() bool { return seen.arrivals() == i+1 && seen.settled() }, 30*time.Second, time.Millisecond)
				}
				got := standing{lost: !d.Partitions()[0].Up}
				for _, h := range d.Unhealthy() {
					require.Equal(t, "p"+parts[0].address, h.Partition)
					got.ejected = h.Ejected
				}
				got.passedOver = !got.lost && !got.ejected && asked[1].Load() > 0
				require.Equal(t, want, got)
				switch wanted := requests - asked[1].Load(); {
				case want.ejected && name != "a dead model":
					require.EqualValues(t, 3, wanted)
				case want != standing{}:
					require.EqualValues(t, 1, wanted)
				default:
					require.EqualValues(t, requests, wanted)
				}
			})
		}
	}
}

// patientLater is patient once it is on: before, lost servers are asked again in time.
type patientLater struct {
	clock.Clock
	on atomic.Bool
}

func (p *patientLater) After(d time.Duration, f func()) clock.Timer {
	if p.on.Load() {
		return patient{p.Clock}.After(d, f)
	}
	return p.Clock.After(d, f)
}

// TestAnHTTPPortThatFailsAloneTakesNothingElseAway: a server whose HTTP port refuses connections and whose gRPC port answers is taken for lost once, until a probe
// has found it. From then on the port's failures count against the model's place there, as those of executions do.
func TestAnHTTPPortThatFailsAloneTakesNothingElseAway(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	there := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	defer there.Close()
	parts := []*triton{newTriton(t), newTriton(t)}
	routes := table(1, nil, parts...)
	for i, at := range []*httptest.Server{gone, there} {
		routes.Partitions[i].Endpoint.HTTP = strings.TrimPrefix(at.URL, "http://")
	}
	at := &patientLater{Clock: clock.Timers()}
	d, seen := newDispatcher(t, dispatch.Options{Clock: at}, routes)
	_, address := fronts(t, d, routes)
	var codes []int
	for i := range 6 {
		code, _ := postTo(t, http.DefaultClient, "http://"+address+"/v2/models/m/generate", "{}")
		require.Eventually(t, func() bool { return seen.arrivals() == i+1 && seen.settled() }, 30*time.Second, time.Millisecond)
		codes = append(codes, code)
		if i == 0 {
			require.Eventually(t, func() bool { return d.Partitions()[0].Up }, 30*time.Second, time.Millisecond, "it is found")
			at.on.Store(true)
		}
		require.True(t, d.Partitions()[0].Up)
	}
	require.Equal(t, []int{503, 503, 503, 503, 200, 200}, codes)
	require.Len(t, d.Unhealthy(), 1)
}

// TestWhatTritonCannotReadDoesNotReachIt: Triton ends a connection, without an answer, on which a request line or a header field comes that its parser has no room for. A client
// must not be able to have a place taken for lost by that.
func TestWhatTritonCannotReadDoesNotReachIt(t *testing.T) {
	const room = 8 << 10 // of tritonserver 2.51: for a name, for a value, and for a target with two further bytes
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		fits := len(r.RequestURI) <= room-3 && len(r.Host) < room
		for name, values := range r.Header {
			fits = fits && len(name) < room-1
			for _, value := range values {
				fits = fits && len(value) < room
			}
		}
		if !fits {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, "{}")
	}))
	defer server.Close()
	part := newTriton(t)
	routes := table(1, nil, part)
	routes.Partitions[0].Endpoint.HTTP = strings.TrimPrefix(server.URL, "http://")
	d, seen := newDispatcher(t, dispatch.Options{Clock: patient{clock.Timers()}}, routes)
	_, address := fronts(t, d, routes)
	const path = "/v2/models/m/generate"
	for name, c := range map[string]struct {
		target, host, field, value string
		code                       int
	}{
		"a target that fits":    {target: strings.Repeat("a", room-3-len(path+"?")), code: 200},
		"a target that is long": {target: strings.Repeat("a", room-2-len(path+"?")), code: 404},
		"a host":                {host: strings.Repeat("h", room), code: 431},
		"a value that fits":     {field: "Cookie", value: strings.Repeat("v", room-1), code: 200},
		"a value that is long":  {field: "Cookie", value: strings.Repeat("v", room), code: 431},
		"a name that fits":      {field: strings.Repeat("N", room-2), value: "v", code: 200},
		"a name that is long":   {field: strings.Repeat("N", room-1), value: "v", code: 431},
	} {
		t.Run(name, func(t *testing.T) {
			before := asked.Load()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+path+"?"+c.target, strings.NewReader("{}"))
			require.NoError(t, err)
			if r.Host = cmp.Or(c.host, address); c.field != "" {
				r.Header[c.field] = []string{c.value}
			}
			answer, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			require.Equal(t, c.code, answer.StatusCode)
			require.Eventually(t, seen.settled, 30*time.Second, time.Millisecond)
			require.Equal(t, c.code == 200, asked.Load() > before)
			require.True(t, d.Partitions()[0].Up)
			require.Empty(t, d.Unhealthy())
		})
	}
}
