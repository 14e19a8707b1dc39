// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package reuseport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen opens an address, host:port, that other processes may open too. A
// steering that an earlier process left behind ends.
func Listen(ctx context.Context, address string) (*net.TCPListener, error) {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return control(raw, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	}}
	c.SetMultipathTCP(false) // its sockets cannot be steered
	l, err := c.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	tcp := l.(*net.TCPListener)
	err = onSocket(tcp, func(fd int) error {
		// ENOENT: no program is attached.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("share %s: %w", address, err)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return tcp, nil
}

// Check says whether Listen would fail, without taking part in the address.
func Check(address string) error {
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return err
	}
	family, at := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: a.Port, Addr: [16]byte(a.IP.To16())})
	if four := a.IP.To4(); four != nil {
		family, at = unix.AF_INET, &unix.SockaddrInet4{Port: a.Port, Addr: [4]byte(four)}
	} else if a.IP == nil {
		at = &unix.SockaddrInet6{Port: a.Port}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil // no such family: Listen knows better
	}
	defer unix.Close(fd) //nolint:errcheck // it was never used
	for _, option := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1); err != nil {
			return fmt.Errorf("share %s: %w", address, err)
		}
	}
	if err := unix.Bind(fd, at); err != nil {
		return fmt.Errorf("bind %s: %w", address, err)
	}
	return nil
}

// Yield steers new connections to the process that opened the address as
// number other, counting from 0: the one that came second is 1. Where there is
// no such process the hash goes on deciding. Connections that are under way to
// this listener still come.
func Yield(l *net.TCPListener, other uint32) error {
	filter := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: other}}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return onSocket(l, func(fd int) error {
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &program); err != nil {
			return fmt.Errorf("steer connections away from %s: %w", l.Addr(), err)
		}
		return nil
	})
}

func onSocket(l *net.TCPListener, do func(fd int) error) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, do)
}

func control(raw syscall.RawConn, do func(fd int) error) error {
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = do(int(fd)) }); err != nil {
		return err
	}
	return failed
}
