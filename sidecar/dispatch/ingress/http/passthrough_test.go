// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
)

// A request that passes through must arrive as it was sent, and its answer unchanged, event by event.
func TestPassesThroughUntouched(t *testing.T) {
	release := make(chan struct{})
	var seen *nethttp.Request
	var seenBody []byte
	upstream := httptest.NewServer(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		seen = r
		seenBody, _ = io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		fmt.Fprint(w, "data: one\n\n")
		w.(nethttp.Flusher).Flush()
		<-release
		fmt.Fprint(w, "data: two\n\n")
	}))
	defer upstream.Close()
	p := &partitions{endpoints: []string{strings.TrimPrefix(upstream.URL, "http://")}}
	address := serve(t, front.Options{Picker: p, Endpoints: p})

	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v2/models/m%%2f%%41/generate_stream?q=%%20 HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\nX-Mine: 1\r\nContent-Length: 9\r\n\r\n{\"a\":\"b\"}")
	reader := bufio.NewReader(conn)
	response, err := nethttp.ReadResponse(reader, nil)
	require.NoError(t, err)
	defer response.Body.Close()
	line, err := bufio.NewReader(response.Body).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "data: one\n", line, "the first event must not wait for the second")
	close(release)
	_, err = io.Copy(io.Discard, response.Body)
	require.NoError(t, err)

	require.Equal(t, "/v2/models/m%2f%41/generate_stream?q=%20", seen.RequestURI)
	require.Equal(t, `{"a":"b"}`, string(seenBody))
	require.Equal(t, "h", seen.Host)
	require.Equal(t, nethttp.Header{"Accept": {"text/event-stream"}, "X-Mine": {"1"}, "Content-Length": {"9"}}, seen.Header)
	require.Equal(t, "text/event-stream; charset=utf-8", response.Header.Get("Content-Type"))
	require.Equal(t, "m%2f%41", p.model.Load())
	require.Eventually(t, func() bool { return p.released.Load() == 1 }, 30*time.Second, time.Millisecond)
}

func TestPassThroughErrors(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	p := &partitions{endpoints: []string{strings.TrimPrefix(gone.URL, "http://")}}
	address := serve(t, front.Options{Picker: p, Endpoints: p})
	a := send(t, address, request{Method: "POST", Path: "/v2/models/m/generate"})
	require.Equal(t, 503, a.Code)
	require.Contains(t, errorOf(t, a), "failed to reach a Triton server: ")
	a = send(t, address, request{Method: "GET", Path: "/v2/logging"})
	require.Equal(t, 503, a.Code)

	address = serve(t, front.Options{Picker: &partitions{}, Endpoints: &partitions{}})
	a = send(t, address, request{Method: "POST", Path: "/v2/models/m/generate"})
	require.Equal(t, 404, a.Code)
	require.Equal(t, "Request for unknown model: 'm' is not found", errorOf(t, a))
	require.Equal(t, "application/json", a.ContentType)
	a = send(t, address, request{Method: "GET", Path: "/v2/new/route"})
	require.Equal(t, answer{Code: 404, ContentType: "text/plain", Body: `{"error":"Not Found"}`}, a)
	a = send(t, address, request{Method: "GET", Path: "/v2/logging"})
	require.Equal(t, 503, a.Code)
}

// exclusive records when a change begins, ends and is taken back.
type exclusive struct {
	partitions
	events chan string
}

func (e *exclusive) Exclusively() (end func()) {
	e.events <- "begins"
	return func() { e.events <- "ends" }
}

func (e *exclusive) Checkpoint(context.Context, string) (func(context.Context) error, error) {
	e.events <- "is noted"
	return func(context.Context) error { e.events <- "is taken back"; return nil }, nil
}

// TestAChangeOfSettingsIsByItself: from its checkpoint to its restore no other protocol changes anything.
func TestAChangeOfSettingsIsByItself(t *testing.T) {
	p := &exclusive{events: make(chan string, 20)}
	for range 2 {
		s := httptest.NewServer(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
			p.events <- "is told"
			w.WriteHeader(map[bool]int{true: 400, false: 200}[r.URL.Path == "/v2/trace/setting"])
		}))
		t.Cleanup(s.Close)
		p.endpoints = append(p.endpoints, strings.TrimPrefix(s.URL, "http://"))
	}
	address := serve(t, front.Options{Picker: p, Endpoints: p})
	for path, want := range map[string][]string{
		"/v2/logging":       {"begins", "is noted", "is told", "is told", "ends"},
		"/v2/trace/setting": {"begins", "is noted", "is told", "is told", "is taken back", "ends"},
	} {
		send(t, address, request{Method: "POST", Path: path, Body: "{}"})
		for _, event := range want {
			require.Equal(t, event, <-p.events, path)
		}
	}
}

// A setting is given to all partitions, a query is sent to the first, and a refusal by any is returned.
func TestSettingsReachEveryPartition(t *testing.T) {
	type partition struct {
		server *httptest.Server
		bodies []string
		refuse string
	}
	start := func() *partition {
		p := &partition{}
		p.server = httptest.NewServer(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
			body, _ := io.ReadAll(r.Body)
			p.bodies = append(p.bodies, r.Method+" "+r.RequestURI+" "+string(body))
			w.Header().Set("Content-Type", "application/json")
			if p.refuse != "" {
				w.WriteHeader(nethttp.StatusBadRequest)
				_, _ = io.WriteString(w, p.refuse)
				return
			}
			_, _ = io.WriteString(w, `{"log_info":true}`)
		}))
		t.Cleanup(p.server.Close)
		return p
	}
	first, second := start(), start()
	p := &partitions{endpoints: []string{strings.TrimPrefix(first.server.URL, "http://"), strings.TrimPrefix(second.server.URL, "http://")}}
	address := serve(t, front.Options{Picker: p, Endpoints: p})

	a := send(t, address, request{Method: "POST", Path: "/v2/logging", Body: `{"log_info":true}`})
	require.Equal(t, answer{Code: 200, ContentType: "application/json", Body: `{"log_info":true}`}, a)
	a = send(t, address, request{Method: "GET", Path: "/v2/logging"})
	require.Equal(t, 200, a.Code)
	require.Equal(t, []string{`POST /v2/logging {"log_info":true}`, `GET /v2/logging `}, first.bodies)
	require.Equal(t, []string{`POST /v2/logging {"log_info":true}`}, second.bodies)

	second.refuse = `{"error":"no"}`
	a = send(t, address, request{Method: "POST", Path: "/v2/systemsharedmemory/region/r/register", Body: `{}`})
	require.Equal(t, answer{Code: 400, ContentType: "application/json", Body: `{"error":"no"}`}, a)
	first.refuse, second.refuse = `{"error":"unknown model"}`, ""
	a = send(t, address, request{Method: "GET", Path: "/v2/models/m/trace/setting"})
	require.Equal(t, 200, a.Code, "one partition has the model")
}

func TestUnixSocketPartition(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.sock")
	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	upstream := &nethttp.Server{Handler: nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		fmt.Fprint(w, r.RequestURI)
	})}
	go upstream.Serve(listener) //nolint:errcheck // ends with the test
	defer upstream.Close()
	p := &partitions{endpoints: []string{"unix:" + path}}
	address := serve(t, front.Options{Picker: p, Endpoints: p})
	for _, r := range []request{{Method: "GET", Path: "/v2/trace/setting"}, {Method: "POST", Path: "/v2/models/m/generate"}} {
		a := send(t, address, r)
		require.Equal(t, 200, a.Code, a.text())
		require.Equal(t, r.Path, a.text())
	}
}
