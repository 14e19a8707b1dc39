// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/console/door"
)

// onlyLooks marks requests that came by a door that takes no orders.
type onlyLooks struct{}

// OnlyLook marks a request's context as that of a door that takes no orders.
func OnlyLook(ctx context.Context) context.Context { return context.WithValue(ctx, onlyLooks{}, true) }

// questions are the calls that change nothing though their method is not GET: what they ask does not fit into a URL.
var questions = []string{"/v1/plan/diff"}

// guard refuses orders that come by a door that takes none.
func (s *server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(door.Look) != "" {
			r = r.WithContext(OnlyLook(r.Context()))
		}
		safe := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodPost && slices.Contains(questions, r.URL.Path)
		if !safe && r.Context().Value(onlyLooks{}) != nil {
			s.fail(w, &api.Error{Code: api.CodeRefused, Message: fmt.Sprintf(
				"this door only looks, and %s %s would change something: tritonctl ui --allow-changes, or listen.ui.allowChanges in conch.yaml, opens one that takes orders", r.Method, r.URL.Path)})
			return
		}
		next.ServeHTTP(w, r)
	})
}
