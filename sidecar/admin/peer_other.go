// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package admin

import (
	"errors"
	"net"
)

// peer is known on Linux only.
func peer(*net.UnixConn) (uint32, error) { return 0, errors.ErrUnsupported }
