// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin/client"
)

// An address that is no admin API's, or no address, is answered with what to write.
func TestAnAddressThatIsWrong(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:8002": `admin address "127.0.0.1:8002" is no URL; write unix:///path/to/admin.sock or https://host:port`,
		"localhost:8002": "write unix:///path/to/admin.sock or https://host:port",
		"admin.sock":     "write unix:///path/to/admin.sock or https://host:port",
		"unix://":        "has no path",
	} {
		_, err := client.With(address, client.Options{})
		require.ErrorContains(t, err, want, address)
	}

	other := httptest.NewServer(http.NotFoundHandler()) // as Conch's metrics are
	defer other.Close()
	for address, want := range map[string]string{
		other.URL: "answered 404 Not Found: 404 page not found; is that conch's listen.admin?",
		strings.Replace(other.URL, "http:", "https:", 1): "speaks HTTP without TLS; is that conch's listen.admin? It has TLS on TCP",
	} {
		c, err := client.With(address, client.Options{})
		require.NoError(t, err)
		_, err = c.Version(t.Context())
		require.ErrorContains(t, err, want, address)
		c.Close()
	}
}
