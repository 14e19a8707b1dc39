// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"
)

// NewClient reads the files and returns gRPC credentials that follow them.
func NewClient(o Options) (credentials.TransportCredentials, error) {
	s, err := newSource(o, func(l *loaded) *tls.Config {
		return &tls.Config{Certificates: l.certificates, RootCAs: l.pool, MinVersion: o.MinVersion, ServerName: o.ServerName, Time: o.Now}
	})
	if err != nil {
		return nil, err
	}
	return &client{files: s, TransportCredentials: credentials.NewTLS(s.current.Load())}, nil
}

// client makes every handshake with the files of its moment.
type client struct {
	credentials.TransportCredentials
	files *source
}

// ClientHandshake implements credentials.TransportCredentials.
func (c *client) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(c.files.get()).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials. Copies follow the same
// files.
func (c *client) Clone() credentials.TransportCredentials {
	return &client{files: c.files, TransportCredentials: c.TransportCredentials.Clone()}
}
