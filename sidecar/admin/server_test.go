// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stub answers what a test sets and panics on the rest.
type stub struct {
	admin.API
	ready api.Health
	err   error
	rate  float64
}

func (s *stub) Ready(context.Context) (api.Health, error) { return s.ready, s.err }
func (s *stub) Plan(context.Context) (api.Plan, error)    { return api.Plan{}, s.err }
func (s *stub) Apply(_ context.Context, r api.ApplyRequest) (api.ApplyResult, error) {
	return api.ApplyResult{Plan: api.Plan{Revision: r.IfRevision}}, s.err
}

func (s *stub) Model(context.Context, string) (api.Model, error) {
	return api.Model{Rate: s.rate}, s.err
}

func serve(t *testing.T, s *stub) *client.Client {
	t.Helper()
	return serveAPI(t, s)
}

func serveAPI(t *testing.T, s admin.API) *client.Client {
	t.Helper()
	server := httptest.NewServer(admin.NewHandler(s, nil, slog.New(slog.DiscardHandler)))
	t.Cleanup(server.Close)
	c, err := client.New(server.URL)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// TestAnAnswerThatCannotBeEncodedSaysSo: it is an error of conch's, not an empty answer.
func TestAnAnswerThatCannotBeEncodedSaysSo(t *testing.T) {
	_, err := serve(t, &stub{rate: math.NaN()}).Model(t.Context(), "m")
	require.ErrorContains(t, err, "the answer cannot be encoded: json: unsupported value: NaN")
	m, err := serve(t, &stub{rate: 3}).Model(t.Context(), "m")
	require.NoError(t, err)
	require.InDelta(t, 3, m.Rate, 0)
}

func TestReadyzSaysWhyNot(t *testing.T) {
	s := &stub{ready: api.Health{Checks: []api.Check{{Name: "plan", Reason: "no plan has been applied yet"}}}}
	server := httptest.NewServer(admin.NewHandler(s, nil, slog.New(slog.DiscardHandler)))
	defer server.Close()
	status, body := fetch(t, server.URL+"/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "no plan has been applied yet")
	s.ready.OK = true
	status, _ = fetch(t, server.URL+"/readyz")
	require.Equal(t, http.StatusOK, status)
	status, _ = fetch(t, server.URL+"/livez")
	require.Equal(t, http.StatusOK, status)
	status, body = fetch(t, server.URL+"/v2/health/live")
	require.Equal(t, http.StatusNotFound, status)
	require.Contains(t, body, "the admin API has no GET /v2/health/live")
}

func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.Get(url)
	require.NoError(t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(body)
}

func TestErrorsKeepTheirCodeAndViolations(t *testing.T) {
	s := &stub{}
	c := serve(t, s)
	for _, code := range []api.Code{api.CodeInvalid, api.CodeNotFound, api.CodeConflict, api.CodeUnavailable, api.CodeRefused} {
		sent := &api.Error{Code: code, Message: "no", Violations: []api.Violation{{Code: "share", Subject: "gpu0", Text: "120%"}}}
		s.err = sent
		_, err := c.Plan(t.Context())
		var got *api.Error
		require.ErrorAs(t, err, &got)
		require.Equal(t, sent, got)
	}
	s.err = errors.New("disk full")
	_, err := c.Plan(t.Context())
	require.Equal(t, api.CodeInternal, api.CodeOf(err))
	require.ErrorContains(t, err, "disk full")
}

func TestAMisspeltGuardIsRefused(t *testing.T) {
	server := httptest.NewServer(admin.NewHandler(&stub{}, nil, slog.New(slog.DiscardHandler)))
	defer server.Close()
	for body, want := range map[string]int{
		`{"if_revison": 7}`:  http.StatusBadRequest,
		`{"if_revision": 7`:  http.StatusBadRequest,
		`{"if_revision": 7}`: http.StatusOK,
		``:                   http.StatusOK,
	} {
		r, err := http.Post(server.URL+"/v1/plan/apply", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		r.Body.Close()
		require.Equal(t, want, r.StatusCode, body)
	}
}

func TestListenReplacesOnlyASocketThatNobodyAnswersOn(t *testing.T) {
	dir, err := os.MkdirTemp("", "adm")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "run", "admin.sock")

	first, err := admin.Listen("unix://" + path)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	_, err = admin.Listen("unix://" + path)
	require.ErrorIs(t, err, admin.ErrInUse)

	// A killed process leaves its socket behind.
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, first.Close())
	second, err := admin.Listen("unix://" + path)
	require.NoError(t, err)
	require.NoError(t, second.Close())

	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	_, err = admin.Listen("unix://" + path)
	require.ErrorContains(t, err, "not a socket")
	_, err = admin.Listen("unix://")
	require.ErrorContains(t, err, "has no path")
}
