// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"net"
	"strconv"
)

// freePort finds a port without a listener at the moment.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// portTaken reports whether a port has a listener.
func portTaken(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return true
	}
	_ = l.Close() // it was opened to see whether that is possible
	return false
}
