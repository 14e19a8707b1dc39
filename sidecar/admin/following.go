// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Following is the API of a conch that may follow another one of its release. While it does (follows), it answers what it reads of the release's state: the history of
// plans, and the repository's revisions. Whoever asks for anything else, or orders something, is told which one owns; that is empty while it is not known.
func Following(all http.Handler, follows func() (owner string, is bool), logger *slog.Logger) http.Handler {
	s := &server{log: logger}
	mux := http.NewServeMux()
	for _, answered := range []string{"GET /livez", "GET /v1/version", "GET /v1/plan/history", "GET /v1/repository/revisions", "GET /v1/repository/diff"} {
		mux.Handle(answered, all)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		owner, is := follows()
		switch {
		case !is:
			all.ServeHTTP(w, r)
		case owner == "":
			s.fail(w, &api.Error{Code: api.CodeUnavailable, Message: "this replica follows, and which one owns the release's servers is not known yet"})
		default:
			s.fail(w, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("this replica follows: ask %s, which owns the release's servers", owner)})
		}
	})
	return mux
}
