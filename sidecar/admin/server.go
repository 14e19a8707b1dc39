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
	"slices"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/console"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/watch"
)

// maxBody bounds a request: the largest is a plan file.
const maxBody = 16 << 20

// API is what the server exposes. Errors that are *api.Error keep their
// code; any other is an internal error.
type API interface {
	Version(ctx context.Context) (api.Version, error)
	Ready(ctx context.Context) (api.Health, error)
	Models(ctx context.Context) ([]api.Model, error)
	// Glance is Models without profiles and estimates, which take long to put together.
	Glance(ctx context.Context) ([]api.Model, error)
	Model(ctx context.Context, name string) (api.Model, error)
	// Slowest are the slowest requests of a model in the last minute, slowest first.
	Slowest(ctx context.Context, model string) ([]api.SlowRequest, error)
	GPUs(ctx context.Context) ([]api.GPU, error)
	Partitions(ctx context.Context) ([]api.Partition, error)
	Partition(ctx context.Context, id string) (api.Partition, error)
	GPUAdvice(ctx context.Context) (api.GPUAdvice, error)
	Cordon(ctx context.Context, r api.CordonRequest) (api.CordonResult, error)
	Restart(ctx context.Context, r api.RestartRequest) (api.Partition, error)
	// LogFile is where the output of a partition's server is. Where it is no file of this machine, the API is a LogStreamer.
	LogFile(ctx context.Context, partition string) (string, error)
	// OrderModel loads or unloads a model.
	OrderModel(ctx context.Context, r api.ModelRequest) (api.Model, error)
	Plan(ctx context.Context) (api.Plan, error)
	Diff(ctx context.Context, r api.DiffRequest) (api.Diff, error)
	// History lists the plans that served, newest first.
	History(ctx context.Context) ([]api.PlanRecord, error)
	Pin(ctx context.Context, r api.PinRequest) (api.Plan, error)
	Apply(ctx context.Context, r api.ApplyRequest) (api.ApplyResult, error)
	Explain(ctx context.Context, model string) (api.Explanation, error)
	// Policies lists those there are. Only with describe are processes started to ask
	// what they are, those in use excepted.
	Policies(ctx context.Context, describe bool) ([]api.Policy, error)
	Policy(ctx context.Context, name string, describe bool) (api.Policy, error)
	UsePolicy(ctx context.Context, r api.UsePolicyRequest) (api.Policy, error)
	Revisions(ctx context.Context) ([]api.RepositoryRevision, error)
	// Import reads a model repository; progress is called as it goes on.
	Import(ctx context.Context, r api.ImportRequest, progress func(api.ImportProgress)) (api.RepositoryRevision, error)
	Rollback(ctx context.Context, r api.RollbackRequest) (api.RepositoryRevision, error)
	// CompareRevisions says what differs between two revisions; an empty to is the
	// current one, an empty from the one before to.
	CompareRevisions(ctx context.Context, from, to string) (api.RepositoryDiff, error)
	Collect(ctx context.Context, r api.CollectRequest) (api.Collected, error)
	Verify(ctx context.Context, r api.VerifyRequest) (api.Verified, error)
	Release(ctx context.Context, r api.ReleaseRequest) (api.ReleaseResult, error)
	// Measure times generated batches on servers that others run.
	Measure(ctx context.Context, r api.MeasureRequest) ([]api.Measured, error)
	// Calibrate measures in a scratch partition; progress is called as it goes on.
	Calibrate(ctx context.Context, r api.CalibrateRequest, progress func(api.CalibrateProgress)) (api.Calibrated, error)
	// VerifyMerge merges models and verifies that on a scratch server; progress is called as it goes on.
	VerifyMerge(ctx context.Context, r api.MergeVerifyRequest, progress func(api.MergeProgress)) (api.MergeVerified, error)
	// Snapshot is what a policy would see now: a policy.Snapshot as JSON with the
	// names of policy.proto.
	Snapshot(ctx context.Context) (json.RawMessage, error)
	// Record writes a trace of what arrives until ctx ends (nil) or w fails.
	// Nothing is written before an error that is a *api.Error.
	Record(ctx context.Context, w io.Writer) (api.Recorded, error)
	// Events gives the events after since, oldest first.
	Events(ctx context.Context, since uint64) ([]api.Event, error)
}

// NewHandler serves conch, and its state to watchers, unless there is no hub of these. The same mux answers /livez and /readyz, and has the files of
// the console. Requests that are marked as those of a door that takes no orders only look.
func NewHandler(conch API, watchers *watch.Hub, logger *slog.Logger) http.Handler {
	s := &server{conch: conch, watchers: watchers, log: logger}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { s.write(w, http.StatusOK, api.Health{OK: true}) })
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /v1/ready", answer(s, func(r *http.Request) (api.Health, error) { return conch.Ready(r.Context()) }))
	mux.HandleFunc("GET /v1/version", answer(s, func(r *http.Request) (api.Version, error) { return conch.Version(r.Context()) }))
	mux.HandleFunc("GET /v1/models", answer(s, func(r *http.Request) ([]api.Model, error) { return conch.Models(r.Context()) }))
	mux.HandleFunc("GET /v1/models/{model}", answer(s, func(r *http.Request) (api.Model, error) {
		return conch.Model(r.Context(), r.PathValue("model"))
	}))
	mux.HandleFunc("GET /v1/models/{model}/slowest", answer(s, func(r *http.Request) ([]api.SlowRequest, error) {
		return conch.Slowest(r.Context(), r.PathValue("model"))
	}))
	mux.HandleFunc("GET /v1/gpus", answer(s, func(r *http.Request) ([]api.GPU, error) { return conch.GPUs(r.Context()) }))
	mux.HandleFunc("GET /v1/partitions", answer(s, func(r *http.Request) ([]api.Partition, error) { return conch.Partitions(r.Context()) }))
	mux.HandleFunc("GET /v1/partitions/{partition}", answer(s, func(r *http.Request) (api.Partition, error) {
		return conch.Partition(r.Context(), r.PathValue("partition"))
	}))
	mux.HandleFunc("GET /v1/partitions/{partition}/log", s.logs)
	mux.HandleFunc("POST /v1/partitions/restart", order(s, conch.Restart))
	mux.HandleFunc("POST /v1/gpus/cordon", order(s, conch.Cordon))
	mux.HandleFunc("POST /v1/models/order", order(s, conch.OrderModel))
	mux.HandleFunc("GET /v1/gpus/advice", answer(s, func(r *http.Request) (api.GPUAdvice, error) { return conch.GPUAdvice(r.Context()) }))
	mux.HandleFunc("GET /v1/plan", answer(s, func(r *http.Request) (api.Plan, error) { return conch.Plan(r.Context()) }))
	mux.HandleFunc("POST /v1/plan/diff", order(s, conch.Diff))
	mux.HandleFunc("GET /v1/plan/history", answer(s, func(r *http.Request) ([]api.PlanRecord, error) { return conch.History(r.Context()) }))
	mux.HandleFunc("POST /v1/plan/pin", order(s, conch.Pin))
	mux.HandleFunc("POST /v1/plan/apply", order(s, conch.Apply))
	mux.HandleFunc("GET /v1/plan/explain/{model}", answer(s, func(r *http.Request) (api.Explanation, error) {
		return conch.Explain(r.Context(), r.PathValue("model"))
	}))
	mux.HandleFunc("GET /v1/policies", answer(s, func(r *http.Request) ([]api.Policy, error) { return conch.Policies(r.Context(), describes(r)) }))
	mux.HandleFunc("GET /v1/policies/{policy}", answer(s, func(r *http.Request) (api.Policy, error) {
		return conch.Policy(r.Context(), r.PathValue("policy"), describes(r))
	}))
	mux.HandleFunc("PUT /v1/policy", order(s, conch.UsePolicy))
	mux.HandleFunc("GET /v1/repository/revisions", answer(s, func(r *http.Request) ([]api.RepositoryRevision, error) {
		return conch.Revisions(r.Context())
	}))
	mux.HandleFunc("POST /v1/repository/import", either(s, conch.Import))
	mux.HandleFunc("POST /v1/repository/rollback", order(s, conch.Rollback))
	mux.HandleFunc("GET /v1/repository/diff", answer(s, func(r *http.Request) (api.RepositoryDiff, error) {
		return conch.CompareRevisions(r.Context(), r.URL.Query().Get("from"), r.URL.Query().Get("to"))
	}))
	mux.HandleFunc("POST /v1/repository/gc", order(s, conch.Collect))
	mux.HandleFunc("POST /v1/repository/verify", order(s, conch.Verify))
	mux.HandleFunc("POST /v1/release", order(s, conch.Release))
	mux.HandleFunc("POST /v1/measure", order(s, conch.Measure))
	mux.HandleFunc("POST /v1/calibrate", long(s, conch.Calibrate))
	mux.HandleFunc("POST /v1/merge/verify", long(s, conch.VerifyMerge))
	mux.HandleFunc("GET /v1/snapshot", answer(s, func(r *http.Request) (json.RawMessage, error) { return conch.Snapshot(r.Context()) }))
	mux.HandleFunc("GET /v1/trace", s.trace)
	mux.HandleFunc("GET /v1/events", s.events)
	if watchers != nil {
		mux.HandleFunc("GET /v1/watch", s.watch)
	}
	mux.Handle("GET "+console.Path, console.New())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("the admin API has no %s %s", r.Method, r.URL.Path)})
	})
	return s.guard(mux)
}

// describes reports whether policies are to be asked what they are; ?describe=false is
// for completion in a shell, which must start nothing.
func describes(r *http.Request) bool { return r.URL.Query().Get("describe") != "false" }

type server struct {
	conch    API
	watchers *watch.Hub
	log      *slog.Logger
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
			s.fail(w, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("body of %s %s: %v", r.Method, r.URL.Path, err)})
			return
		}
		if o, isOrder := any(&in).(api.Order); isOrder {
			*o.By() = author(r.Context(), *o.By())
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
	h, err := s.conch.Ready(r.Context())
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

// events answers a list.
func (s *server) events(w http.ResponseWriter, r *http.Request) {
	since, err := parseSince(r)
	if err != nil {
		s.fail(w, err)
		return
	}
	kinds, err := parseKinds(r)
	if err != nil {
		s.fail(w, err)
		return
	}
	answer(s, func(r *http.Request) ([]api.Event, error) {
		all, err := s.conch.Events(r.Context(), since)
		if len(kinds) > 0 {
			all = slices.DeleteFunc(slices.Clone(all), func(e api.Event) bool { return !slices.Contains(kinds, e.Kind) })
		}
		return all, err
	})(w, r)
}

// parseKinds reads the kinds of event that are asked for: none means all. An unknown one is refused, since no event would ever answer it.
func parseKinds(r *http.Request) (kinds []api.EventKind, err error) {
	for _, text := range r.URL.Query()["kind"] {
		kind := api.EventKind(text)
		if known := events.Kinds(); !slices.Contains(known, kind) {
			slices.Sort(known)
			return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("there is no event of kind %q; there are %s", text, strings.Trim(fmt.Sprint(known), "[]"))}
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

func parseSince(r *http.Request) (uint64, error) {
	text := r.URL.Query().Get("since")
	if text == "" {
		return 0, nil
	}
	since, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("since=%q is not an event id", text)}
	}
	return since, nil
}

// write answers with JSON. What cannot be encoded, such as a number that is none,
// is an error of Conch's: the operator gets it, and not an empty answer.
func (s *server) write(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		s.log.Error("admin answer cannot be encoded", "error", err, "answer", fmt.Sprintf("%+v", body))
		status, text = http.StatusInternalServerError, fmt.Appendf(nil, `{"error":{"code":%q,"message":%q}}`, api.CodeInternal, "the answer cannot be encoded: "+err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(append(text, '\n')); err != nil {
		s.log.Debug("admin answer not delivered", "error", err)
	}
}

func (s *server) fail(w http.ResponseWriter, err error) {
	var known *api.Error
	if !errors.As(err, &known) {
		s.log.Error("admin call failed", "error", err)
		known = &api.Error{Code: api.CodeInternal, Message: err.Error()}
	}
	s.write(w, status(known.Code), struct {
		Error *api.Error `json:"error"`
	}{known})
}

func status(c api.Code) int {
	switch c {
	case api.CodeInvalid:
		return http.StatusBadRequest
	case api.CodeUnauthenticated:
		return http.StatusUnauthorized
	case api.CodeNotFound:
		return http.StatusNotFound
	case api.CodeConflict:
		return http.StatusConflict
	case api.CodeRefused:
		return http.StatusUnprocessableEntity
	case api.CodeUnavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}
