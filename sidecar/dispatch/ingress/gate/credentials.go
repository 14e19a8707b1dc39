// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Credentials lets gRPC handlers find the *Conn of their call: see Caller.
func Credentials(under credentials.TransportCredentials) credentials.TransportCredentials {
	return serverCredentials{under}
}

type serverCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (s serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := s.TransportCredentials.ServerHandshake(raw)
	c, ok := raw.(*Conn)
	if !ok || err != nil {
		return conn, info, err
	}
	c.Shaken()
	return conn, authInfo{info, c}, nil
}

// Clone implements credentials.TransportCredentials.
func (s serverCredentials) Clone() credentials.TransportCredentials {
	return serverCredentials{s.TransportCredentials.Clone()}
}

// authInfo is the result of the handshake, and its connection.
type authInfo struct {
	credentials.AuthInfo
	conn *Conn
}

// Caller is the connection that a gRPC call came on, or nil.
func Caller(ctx context.Context) *Conn {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, _ := p.AuthInfo.(authInfo)
	return info.conn
}
