// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
)

// Replica is one conch of a release. Its text is what the Lease names it by, so that whoever reads who leads knows where that one is reached.
type Replica struct {
	// Name is its Pod's, ID its own over restarts.
	Name, ID string
	// GRPC and HTTP are its clients' doors, host:port; empty where one is off.
	GRPC, HTTP string
}

// String is the identity: NAME/ID@GRPC,HTTP.
func (r Replica) String() string { return r.Name + "/" + r.ID + "@" + r.GRPC + "," + r.HTTP }

// ParseReplica reads an identity. One of another form is a name without addresses.
func ParseReplica(identity string) (r Replica) {
	who, at, _ := strings.Cut(identity, "@")
	r.Name, r.ID, _ = strings.Cut(who, "/")
	r.GRPC, r.HTTP, _ = strings.Cut(at, ",")
	return r
}

// LocalAddress is this machine's, or Pod's, as the cluster sees it: the one from which the API server is reached.
func (c Connection) LocalAddress(ctx context.Context) (string, error) {
	if c.server == "" {
		return "", errors.New("the address of the API server is not known")
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", c.server) // sends nothing
	if err != nil {
		return "", fmt.Errorf("this machine's address in the cluster: %w", err)
	}
	defer conn.Close() //nolint:errcheck // nothing was sent
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	return host, err
}
