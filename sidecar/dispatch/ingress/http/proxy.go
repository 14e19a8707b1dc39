// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"net"
	nethttp "net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
)

// proxy passes requests to partitions unchanged.
type proxy struct {
	transport *nethttp.Transport
	reverse   *httputil.ReverseProxy
}

func newProxy(log *slog.Logger) *proxy {
	transport := &nethttp.Transport{
		DialContext:         dialEndpoint,
		DisableCompression:  true, // the caller's own Accept-Encoding is passed on
		MaxIdleConnsPerHost: 64,
		// Triton does not end while a connection is open, idle ones included.
		IdleConnTimeout: 5 * time.Second,
		// Triton garbles a request line that arrives in two segments.
		WriteBufferSize: 64 << 10,
	}
	p := &proxy{transport: transport}
	p.reverse = &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // generate_stream: every event at once
		Rewrite: func(r *httputil.ProxyRequest) {
			x := exchangeOf(r.In)
			r.Out.URL = endpointURL(x.server.Endpoint, r.In)
			x.execution.OnwardHTTP(r.Out.Header)
			r.Out.Host = r.In.Host
			r.Out.Header.Del("Expect") // the body has been received
		},
		ModifyResponse: func(answer *nethttp.Response) error {
			x := exchangeOf(answer.Request)
			x.status = answer.StatusCode
			x.watchErrors(answer)
			return nil
		},
		ErrorHandler: func(w nethttp.ResponseWriter, r *nethttp.Request, err error) {
			exchangeOf(r).err = err
			if r.Context().Err() == nil {
				log.Warn("request could not be passed to a partition", "path", r.URL.Path, "error", err)
			}
			fail(w, nethttp.StatusServiceUnavailable, plainType, "failed to reach a Triton server: "+err.Error())
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	return p
}

const socketSuffix = ".unix"

// endpointURL returns the URL of an endpoint with the path exactly as the caller wrote it. A unix socket's path becomes
// the host, in hexadecimal, so that connections are pooled by it.
func endpointURL(endpoint string, in *nethttp.Request) *url.URL {
	host := endpoint
	if path, ok := strings.CutPrefix(endpoint, "unix:"); ok {
		host = hex.EncodeToString([]byte(path)) + socketSuffix
	}
	u := &url.URL{Scheme: "http", Host: host, Opaque: requestPath(in)}
	if in.URL != nil {
		u.RawQuery = in.URL.RawQuery
	}
	return u
}

func dialEndpoint(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	host, _, err := net.SplitHostPort(address)
	if err == nil && strings.HasSuffix(host, socketSuffix) {
		path, err := hex.DecodeString(strings.TrimSuffix(host, socketSuffix))
		if err == nil {
			return d.DialContext(ctx, "unix", string(path))
		}
	}
	return d.DialContext(ctx, network, address)
}

// pass hands a request to one partition that has the model; to any if it names none. The body is read first: until then net/http does not notice
// that a client that waits for a partition has gone.
func (h *Handler) pass(w nethttp.ResponseWriter, r *nethttp.Request, rt route) {
	body, ok := h.harmless(w, r, rt)
	if !ok {
		return
	}
	x := h.exchange(r, rt)
	defer x.end(r.Context())
	conn := gate.ConnOf(r.Context())
	conn.Owe(body.Len())           // while it waits for a partition, too
	defer conn.Release(body.Len()) // its length now: it may be freed by then
	server, done, err := h.o.Picker.Pick(r.Context(), rt.model)
	if err != nil {
		x.err = err
		body.Free()
		h.refused(r, rt, err)
		failStatus(w, jsonType, err)
		return
	}
	defer func() { done(x.report()) }()
	if server.Endpoint == "" {
		x.err = errNoEndpoint
		body.Free()
		failStatus(w, jsonType, errNoEndpoint)
		return
	}
	h.forward(w, r, server, body, x)
}

var errNoEndpoint = status.Error(codes.Unavailable, "no Triton server with an HTTP endpoint is up")

// passTo hands a request to a server.
func (h *Handler) passTo(w nethttp.ResponseWriter, r *nethttp.Request, server Server) {
	body, ok := h.harmless(w, r, route{})
	if !ok {
		return
	}
	x := h.exchange(r, route{})
	defer x.end(r.Context())
	conn := gate.ConnOf(r.Context())
	conn.Owe(body.Len())
	defer conn.Release(body.Len())
	h.forward(w, r, server, body, x)
}

// forward hands a request whose body was read to a server, and returns its answer.
func (h *Handler) forward(w nethttp.ResponseWriter, r *nethttp.Request, server Server, body mem.Buffer, x *exchange) {
	x.sendTo(server)
	// Not freed: the transport may read a body until after the answer has begun.
	out := r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	out.Body = io.NopCloser(bytes.NewReader(body.ReadOnlyData()))
	out.ContentLength = int64(body.Len())
	out.TransferEncoding = nil
	h.proxy.reverse.ServeHTTP(w, out)
	x.whole = true
}

// passModel handles generate and generate_stream.
func (h *Handler) passModel(w nethttp.ResponseWriter, r *nethttp.Request, rt route) {
	if allow(w, r, nethttp.MethodPost, jsonType) {
		h.pass(w, r, rt)
	}
}

// What passes through has to be readable for Triton, which ends a connection, without an answer, on which a longer target, or a header field with a longer name or value,
// comes: its server would be taken for lost. The request line has to reach Triton in one piece besides.
const (
	maxTargetBytes = 8<<10 - 3
	maxNameBytes   = 8<<10 - 2
	maxValueBytes  = 8<<10 - 1
)

// tooLong reports whether a request has a header field that Triton has no room for.
func tooLong(r *nethttp.Request) bool {
	if len(r.Host) > maxValueBytes {
		return true
	}
	for name, values := range r.Header {
		if len(name) > maxNameBytes || slices.ContainsFunc(values, func(v string) bool { return len(v) > maxValueBytes }) {
			return true
		}
	}
	return false
}

// unknown handles a path that Triton 2.51 does not have. A newer Triton may have it, below /v2/; any other path is
// answered here.
func (h *Handler) unknown(w nethttp.ResponseWriter, r *nethttp.Request, path string) {
	if strings.HasPrefix(path, "/v2/") && !strings.HasSuffix(path, "/") {
		if server, done, err := h.o.Picker.Pick(r.Context(), ""); err == nil {
			defer done(nil) // without a model it has no outcome
			if server.Endpoint != "" {
				h.passTo(w, r, server)
				return
			}
		}
	}
	fail(w, nethttp.StatusNotFound, plainType, "Not Found")
}
