// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/conch-serving/conch/sidecar/admin/client"
)

// maxBody bounds a request: the largest is a policy with its parameters.
const maxBody = 1 << 20

// API is what the server exposes. Errors that are *client.Error keep their
// code; any other is an internal error.
type API interface {
	Version(ctx context.Context) (client.Version, error)
	Ready(ctx context.Context) (client.Health, error)
	Models(ctx context.Context) ([]client.Model, error)
	Model(ctx context.Context, name string) (client.Model, error)
	GPUs(ctx context.Context) ([]client.GPU, error)
	GPUAdvice(ctx context.Context) (client.GPUAdvice, error)
	Plan(ctx context.Context) (client.Plan, error)
	Diff(ctx context.Context) (client.Diff, error)
	Apply(ctx context.Context, r client.ApplyRequest) (client.ApplyResult, error)
	Explain(ctx context.Context, model string) (client.Explanation, error)
	Policies(ctx context.Context) ([]client.Policy, error)
	Policy(ctx context.Context, name string) (client.Policy, error)
	UsePolicy(ctx context.Context, r client.UsePolicyRequest) (client.Policy, error)
	Revisions(ctx context.Context) ([]client.RepositoryRevision, error)
	Import(ctx context.Context, r client.ImportRequest) (client.RepositoryRevision, error)
	Rollback(ctx context.Context, r client.RollbackRequest) (client.RepositoryRevision, error)
	Release(ctx context.Context, r client.ReleaseRequest) (client.ReleaseResult, error)
	// Measure times generated batches on servers that others run.
	Measure(ctx context.Context, r client.MeasureRequest) ([]client.Measured, error)
	// Snapshot is what a policy would see now: a policy.Snapshot as JSON with the
	// names of policy.proto.
	Snapshot(ctx context.Context) (json.RawMessage, error)
	// Record writes a trace of what arrives until ctx ends (nil) or w fails.
	// Nothing is written before an error that is a *client.Error.
	Record(ctx context.Context, w io.Writer) (client.Recorded, error)
	// Events gives the events after since, oldest first.
	Events(ctx context.Context, since uint64) ([]client.Event, error)
	// Follow yields them and then every new one until ctx ends or yield fails.
	Follow(ctx context.Context, since uint64, yield func(client.Event) error) error
}

// NewHandler serves api. The same mux answers /livez and /readyz.
func NewHandler(api API, logger *slog.Logger) http.Handler {
	s := &server{api: api, log: logger}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { s.write(w, http.StatusOK, client.Health{OK: true}) })
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /v1/ready", answer(s, func(r *http.Request) (client.Health, error) { return api.Ready(r.Context()) }))
	mux.HandleFunc("GET /v1/version", answer(s, func(r *http.Request) (client.Version, error) { return api.Version(r.Context()) }))
	mux.HandleFunc("GET /v1/models", answer(s, func(r *http.Request) ([]client.Model, error) { return api.Models(r.Context()) }))
	mux.HandleFunc("GET /v1/models/{model}", answer(s, func(r *http.Request) (client.Model, error) {
		return api.Model(r.Context(), r.PathValue("model"))
	}))
	mux.HandleFunc("GET /v1/gpus", answer(s, func(r *http.Request) ([]client.GPU, error) { return api.GPUs(r.Context()) }))
	mux.HandleFunc("GET /v1/gpus/advice", answer(s, func(r *http.Request) (client.GPUAdvice, error) { return api.GPUAdvice(r.Context()) }))
	mux.HandleFunc("GET /v1/plan", answer(s, func(r *http.Request) (client.Plan, error) { return api.Plan(r.Context()) }))
	mux.HandleFunc("POST /v1/plan/diff", answer(s, func(r *http.Request) (client.Diff, error) { return api.Diff(r.Context()) }))
	mux.HandleFunc("POST /v1/plan/apply", order(s, api.Apply))
	mux.HandleFunc("GET /v1/plan/explain/{model}", answer(s, func(r *http.Request) (client.Explanation, error) {
		return api.Explain(r.Context(), r.PathValue("model"))
	}))
	mux.HandleFunc("GET /v1/policies", answer(s, func(r *http.Request) ([]client.Policy, error) { return api.Policies(r.Context()) }))
	mux.HandleFunc("GET /v1/policies/{policy}", answer(s, func(r *http.Request) (client.Policy, error) {
		return api.Policy(r.Context(), r.PathValue("policy"))
	}))
	mux.HandleFunc("PUT /v1/policy", order(s, api.UsePolicy))
	mux.HandleFunc("GET /v1/repository/revisions", answer(s, func(r *http.Request) ([]client.RepositoryRevision, error) {
		return api.Revisions(r.Context())
	}))
	mux.HandleFunc("POST /v1/repository/import", order(s, api.Import))
	mux.HandleFunc("POST /v1/repository/rollback", order(s, api.Rollback))
	mux.HandleFunc("POST /v1/release", order(s, api.Release))
	mux.HandleFunc("POST /v1/measure", order(s, api.Measure))
	mux.HandleFunc("GET /v1/snapshot", answer(s, func(r *http.Request) (json.RawMessage, error) { return api.Snapshot(r.Context()) }))
	mux.HandleFunc("GET /v1/trace", s.trace)
	mux.HandleFunc("GET /v1/events", s.events)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, &client.Error{Code: client.CodeNotFound, Message: fmt.Sprintf("the admin API has no %s %s", r.Method, r.URL.Path)})
	})
	return mux
}

type server struct {
	api API
	log *slog.Logger
}

// answer serves a call that takes nothing but the URL.
func answer[T any](s *server, call func(*http.Request) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out, err := call(r)
		if err != nil {
			s.fail(w, err)
			return
		}
		s.write(w, http.StatusOK, out)
	}
}

// order serves a call with a JSON body; unknown members are refused, since a
// misspelt guard must not be ignored.
func order[In, Out any](s *server, call func(context.Context, In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
		d.DisallowUnknownFields()
		if err := d.Decode(&in); err != nil && !errors.Is(err, io.EOF) {
			s.fail(w, &client.Error{Code: client.CodeInvalid, Message: fmt.Sprintf("body of %s %s: %v", r.Method, r.URL.Path, err)})
			return
		}
		out, err := call(r.Context(), in)
		if err != nil {
			s.fail(w, err)
			return
		}
		s.write(w, http.StatusOK, out)
	}
}

func (s *server) readyz(w http.ResponseWriter, r *http.Request) {
	h, err := s.api.Ready(r.Context())
	if err != nil {
		s.fail(w, err)
		return
	}
	status := http.StatusOK
	if !h.OK {
		status = http.StatusServiceUnavailable
	}
	s.write(w, status, h)
}

// events answers a list, or with follow=true a stream that ends with the
// request.
func (s *server) events(w http.ResponseWriter, r *http.Request) {
	since, err := parseSince(r)
	if err != nil {
		s.fail(w, err)
		return
	}
	if r.URL.Query().Get("follow") != "true" {
		answer(s, func(r *http.Request) ([]client.Event, error) { return s.api.Events(r.Context(), since) })(w, r)
		return
	}
	flush := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if err := flush.Flush(); err != nil {
		return
	}
	err = s.api.Follow(r.Context(), since, func(e client.Event) error {
		data, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "id: %d\ndata: %s\n\n", e.ID, data); err != nil {
			return err
		}
		return flush.Flush()
	})
	if err != nil && r.Context().Err() == nil {
		s.log.Warn("event stream ended", "error", err)
	}
}

func parseSince(r *http.Request) (uint64, error) {
	text := r.URL.Query().Get("since")
	if text == "" {
		return 0, nil
	}
	since, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, &client.Error{Code: client.CodeInvalid, Message: fmt.Sprintf("since=%q is not an event id", text)}
	}
	return since, nil
}

func (s *server) write(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		s.log.Debug("admin answer not delivered", "error", err)
	}
}

func (s *server) fail(w http.ResponseWriter, err error) {
	var known *client.Error
	if !errors.As(err, &known) {
		s.log.Error("admin call failed", "error", err)
		known = &client.Error{Code: client.CodeInternal, Message: err.Error()}
	}
	s.write(w, status(known.Code), struct {
		Error *client.Error `json:"error"`
	}{known})
}

func status(c client.Code) int {
	switch c {
	case client.CodeInvalid:
		return http.StatusBadRequest
	case client.CodeNotFound:
		return http.StatusNotFound
	case client.CodeConflict:
		return http.StatusConflict
	case client.CodeRefused:
		return http.StatusUnprocessableEntity
	case client.CodeUnavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}
