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
	"github.com/conch-serving/conch/sidecar/console/door"
)

// A request that may only look asks, and orders nothing, whatever its method and path.
func TestRequestsThatMayOnlyLook(t *testing.T) {
	handler := admin.NewHandler(&stub{}, nil, slog.New(slog.DiscardHandler))
	for _, test := range []struct {
		method, path string
		look         bool
		status       int
	}{
		{http.MethodGet, "/v1/plan", true, http.StatusOK},
		{http.MethodGet, "/console/", true, http.StatusOK},
		{http.MethodHead, "/console/app.js", true, http.StatusOK},
		{http.MethodPost, "/v1/plan/apply", false, http.StatusOK},
		{http.MethodPost, "/v1/plan/apply", true, http.StatusUnprocessableEntity},
		{http.MethodPut, "/v1/policy", true, http.StatusUnprocessableEntity},
		{http.MethodDelete, "/v1/plan/diff", true, http.StatusUnprocessableEntity},
		{http.MethodPost, "/v1/plan/diff/", true, http.StatusUnprocessableEntity},
		{"QUERY", "/v1/plan", true, http.StatusUnprocessableEntity},
	} {
		r := httptest.NewRequest(test.method, test.path, strings.NewReader("{}"))
		if test.look {
			r.Header.Set(door.Look, "true")
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		text, err := io.ReadAll(w.Result().Body)
		require.NoError(t, err)
		require.Equal(t, test.status, w.Code, "%s %s: %s", test.method, test.path, text)
	}
}
