// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin"
)

func TestFollowing(t *testing.T) {
	all := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Method+" "+r.URL.Path) })
	for _, c := range []struct {
		request, owner string
		follows        bool
		want           string
	}{
		{"GET /v1/plan", "", false, "GET /v1/plan"},
		{"POST /v1/plan/apply", "", false, "POST /v1/plan/apply"},
		{"GET /livez", "a", true, "GET /livez"},
		{"GET /v1/version", "a", true, "GET /v1/version"},
		{"GET /v1/plan/history", "a", true, "GET /v1/plan/history"},
		{"GET /v1/repository/revisions", "a", true, "GET /v1/repository/revisions"},
		{"GET /v1/repository/diff", "a", true, "GET /v1/repository/diff"},
		{"GET /v1/plan", "a", true, "this replica follows: ask a, which owns the release's servers"},
		{"GET /v1/watch", "a", true, "this replica follows: ask a, "},
		{"GET /readyz", "a", true, "this replica follows: ask a, "},
		{"POST /v1/plan/apply", "a", true, "this replica follows: ask a, "},
		{"POST /v1/version", "a", true, "this replica follows: ask a, "},
		{"PUT /v1/policy", "", true, "this replica follows, and which one owns the release's servers is not known yet"},
	} {
		t.Run(c.request, func(t *testing.T) {
			h := admin.Following(all, func() (string, bool) { return c.owner, c.follows }, slog.New(slog.DiscardHandler))
			method, path, _ := strings.Cut(c.request, " ")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
			require.Contains(t, w.Body.String(), c.want)
			require.Equal(t, strings.Contains(c.want, "follows"), w.Code == http.StatusServiceUnavailable)
		})
	}
}
