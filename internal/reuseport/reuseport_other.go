// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package reuseport

import (
	"context"
	"errors"
	"net"
)

var errUnsupported = errors.New("sharing a port needs Linux")

// Listen fails: addresses are shared on Linux only.
func Listen(context.Context, string) (*net.TCPListener, error) { return nil, errUnsupported }

// Check fails like Listen.
func Check(string) error { return errUnsupported }

// Yield fails like Listen.
func Yield(*net.TCPListener, uint32) error { return errUnsupported }
