// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"io"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/internal/triton/tritonjson"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// httpFront is Triton's HTTP v2 protocol. Paths are matched as they stand in the request line, without percent-decoding, as Triton does.
type httpFront struct{ server *Server }

var (
	modelPath      = regexp.MustCompile(`^/v2/models/([^/]+)(?:/versions/([0-9]+))?(?:/(infer|generate|generate_stream|ready|config|stats|trace/setting))?$`)
	repositoryPath = regexp.MustCompile(`^/v2/repository(?:/([^/]+))?/(?:index|models/([^/]+)/(load|unload))$`)
	memoryPath     = regexp.MustCompile(`^/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)$`)
)

// notFoundBody is the answer to a path that there is not.
const notFoundBody = `{"error":"Not Found"}`

func (h *httpFront) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["Date"] = nil // Triton sends none
	path, _, _ := strings.Cut(r.RequestURI, "?")
	if r.URL.IsAbs() { // a request line with scheme and host, as for a proxy
		path = r.URL.EscapedPath()
	}
	switch path {
	case "/v2":
		h.get(w, r, func() ([]byte, error) { return tritonjson.Message(serverMetadata()), nil })
		return
	case "/v2/health/live", "/v2/health/ready":
		if plainMethod(w, r, http.MethodGet) {
			plain(w, http.StatusOK, nil)
		}
		return
	case "/v2/models/stats":
		h.get(w, r, func() ([]byte, error) { return h.statistics("", "") })
		return
	case "/v2/logging":
		h.logging(w, r)
		return
	case "/v2/trace/setting":
		h.tracing(w, r, "")
		return
	}
	if m := modelPath.FindStringSubmatch(path); m != nil {
		h.model(w, r, m[1], m[2], m[3])
		return
	}
	if m := repositoryPath.FindStringSubmatch(path); m != nil {
		h.repository(w, r, m[1], m[2], m[3])
		return
	}
	if m := memoryPath.FindStringSubmatch(path); m != nil {
		h.memory(w, r, m[1], m[2], m[3])
		return
	}
	plain(w, http.StatusNotFound, []byte(notFoundBody))
}

// model serves the paths of one model.
func (h *httpFront) model(w http.ResponseWriter, r *http.Request, name, version, action string) {
	switch action {
	case "infer":
		if plainMethod(w, r, http.MethodPost) {
			h.infer(w, r, name, version)
		}
	case "ready":
		if !plainMethod(w, r, http.MethodGet) {
			return
		}
		if _, err := h.server.repo.find(name, version); err != nil {
			plain(w, http.StatusBadRequest, []byte(`{"error":"Model version not ready"}`))
			return
		}
		plain(w, http.StatusOK, nil)
	case "generate", "generate_stream":
		h.generate(w, r, name, version, action == "generate_stream")
	case "config":
		h.get(w, r, func() ([]byte, error) {
			m, err := h.server.repo.find(name, version)
			if err != nil {
				return nil, err
			}
			return tritonjson.Message(m.config), nil
		})
	case "stats":
		h.get(w, r, func() ([]byte, error) { return h.statistics(name, version) })
	case "trace/setting":
		if version != "" { // there are none of a version
			plain(w, http.StatusNotFound, []byte(notFoundBody))
			return
		}
		h.tracing(w, r, name)
	default:
		h.get(w, r, func() ([]byte, error) {
			m, err := h.server.repo.find(name, version)
			if err != nil {
				return nil, err
			}
			return tritonjson.Message(h.server.metadata(m, version)), nil
		})
	}
}

func (h *httpFront) statistics(name, version string) ([]byte, error) {
	stats, err := h.server.statistics(name, version)
	if err != nil {
		return nil, err
	}
	return tritonjson.Message(&pb.ModelStatisticsResponse{ModelStats: stats}), nil
}

// get serves a JSON document to GET alone.
func (h *httpFront) get(w http.ResponseWriter, r *http.Request, f func() ([]byte, error)) {
	if !jsonMethod(w, r, http.MethodGet) {
		return
	}
	b, err := f()
	if err != nil {
		jsonError(w, err)
		return
	}
	document(w, http.StatusOK, b)
}

// body reads a request body of at most what gRPC takes.
func body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > 0 && r.ContentLength <= math.MaxInt32 {
		b := make([]byte, r.ContentLength)
		_, err := io.ReadFull(r.Body, b)
		return b, err
	}
	return io.ReadAll(http.MaxBytesReader(w, r.Body, math.MaxInt32))
}

func plainMethod(w http.ResponseWriter, r *http.Request, method string) bool {
	if r.Method != method {
		plain(w, http.StatusMethodNotAllowed, []byte(`{"error":"Method Not Allowed"}`))
	}
	return r.Method == method
}

func jsonMethod(w http.ResponseWriter, r *http.Request, method string) bool {
	if r.Method != method {
		document(w, http.StatusMethodNotAllowed, []byte(`{"error":"Method Not Allowed"}`))
	}
	return r.Method == method
}

func plain(w http.ResponseWriter, status int, b []byte) { write(w, status, "text/plain", b) }

func document(w http.ResponseWriter, status int, b []byte) { write(w, status, "application/json", b) }

func write(w http.ResponseWriter, status int, contentType string, parts ...[]byte) {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(n))
	w.WriteHeader(status)
	for _, p := range parts {
		if _, err := w.Write(p); err != nil {
			return // the client has gone
		}
	}
}

// plainError answers with a refusal as Triton words it before a request's body is read, and after a model has run.
func plainError(w http.ResponseWriter, err error) {
	e := asError(err)
	plain(w, httpStatus(e.Code), tritonjson.Error(e.Message))
}

// jsonError is plainError while the request is read.
func jsonError(w http.ResponseWriter, err error) {
	e := asError(err)
	document(w, httpStatus(e.Code), tritonjson.Error(e.Message))
}
