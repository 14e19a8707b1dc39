// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package doors is what the doors of clients and of operators have in common:
// addresses that are bound, and HTTP servers.
package doors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
)

const (
	// HeaderTimeout bounds how long the lines before a body take; Triton's clients
	// stay far below.
	HeaderTimeout = 10 * time.Second
	// IdleTimeout ends connections of operators and scrapers that ask nothing more:
	// what leaks its connections costs conch no descriptors.
	IdleTimeout = 5 * time.Minute
)

// Listen binds a TCP address.
func Listen(address string) (net.Listener, error) {
	var l net.ListenConfig
	// Binding a socket does not wait, so there is nothing to cancel.
	return l.Listen(context.Background(), "tcp", address)
}

// Error is why the address of a key of conch.yaml's listen cannot be bound.
func Error(key string, err error) error {
	return fmt.Errorf("listen.%s: %w; choose another address, or off", key, err)
}

// HTTP makes a server whose requests end with base.
func HTTP(base context.Context, h http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler: h, ReadHeaderTimeout: HeaderTimeout, IdleTimeout: IdleTimeout, Protocols: protocols,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    slog.NewLogLogger(log.With("part", "http").Handler(), slog.LevelDebug),
	}
}

// Served is why a server of a key of conch.yaml's listen has ended, nil if it was
// asked to.
func Served(key string, err error) error {
	if err == nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return fmt.Errorf("listen.%s: %w", key, err)
}
