// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/console/door"
)

// onlyLooks reports whether a request came by a door that takes no orders.
func onlyLooks(r *http.Request) bool { return r.Header.Get(door.Look) != "" }

// questions are the calls that change nothing though their method is not GET: what they ask does not fit into a URL.
var questions = []string{"/v1/plan/diff"}

// guard refuses orders that come by a door that takes none.
func (s *server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		safe := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodPost && slices.Contains(questions, r.URL.Path)
		if !safe && onlyLooks(r) {
			s.fail(w, &api.Error{Code: api.CodeRefused, Message: fmt.Sprintf(
				"this door only looks, and %s %s would change something: tritonctl ui --allow-changes, or listen.ui.allowChanges in conch.yaml, opens one that takes orders", r.Method, r.URL.Path)})
			return
		}
		next.ServeHTTP(w, r)
	})
}
