// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json"
	"net/http"
	"net/http/httputil"
	"net/url"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Proxy hands requests on to conch as they are, with the client's own token, and its answers back, streams without delay.
func (c *Client) Proxy() (http.Handler, error) {
	base, err := url.Parse(c.base)
	if err != nil {
		return nil, err
	}
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(base)
			if c.token != "" {
				r.Out.Header.Set("Authorization", "Bearer "+c.token)
			}
		},
		Transport:     c.http.Transport,
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return // nobody is there to be told
			}
			text, _ := json.Marshal(map[string]*api.Error{"error": {Code: api.CodeUnavailable, Message: "no conch answers at " + c.address + ": " + err.Error()}}) // strings can be encoded
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "no-store")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write(text) // the caller has gone
		},
	}, nil
}
