// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// wrongPort says which port of a Triton an address is, where it answers by HTTP and not by gRPC, and which to give instead; empty where nothing
// answers so. Triton's ports are beside each other unless its operator has said otherwise: HTTP, gRPC, metrics.
func wrongPort(ctx context.Context, address string, patience time.Duration) string {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "" // a Unix socket
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	answers := func(path string) (status int) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			return 0
		}
		answer, err := transport.RoundTrip(r)
		if err != nil {
			return 0
		}
		_ = answer.Body.Close() // of no interest
		return answer.StatusCode
	}
	beside := func(by int) string { return net.JoinHostPort(host, strconv.Itoa(port+by)) }
	switch metrics := answers("/metrics"); {
	case metrics == 0:
		return ""
	case metrics == http.StatusOK:
		return fmt.Sprintf("%s is the metrics port of a Triton, and conch wants its gRPC port: %s, unless its operator has moved it", address, beside(-1))
	case answers("/v2/health/live") == http.StatusOK:
		return fmt.Sprintf("%s is the HTTP port of a Triton, and conch wants its gRPC port: %s, unless its operator has moved it", address, beside(+1))
	}
	return fmt.Sprintf("%s speaks HTTP and no gRPC, and conch wants the gRPC port of a Triton", address)
}
