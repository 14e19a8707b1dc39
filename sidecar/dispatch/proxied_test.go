// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch"
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
