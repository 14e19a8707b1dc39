// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package handon

import (
	"errors"
	"net"
	"sync"
	"time"
)

// socket is an open address that one server after another accepts from.
type socket struct {
	*net.TCPListener
	// early are connections that came to a server that had just been stopped. At most one is there for each change of servers.
	early chan net.Conn
}

// open binds an address.
func open(address string) (*socket, error) {
	l, err := net.Listen("tcp", address) //nolint:noctx // binding does not wait
	if err != nil {
		return nil, err
	}
	return &socket{l.(*net.TCPListener), make(chan net.Conn, 1)}, nil
}

// turn is the listener of one server: Close ends the server's accepting and leaves the socket open.
type turn struct {
	*socket
	accepting sync.Mutex
	once      sync.Once
	over      chan struct{}
}

func (s *socket) turn() *turn { return &turn{socket: s, over: make(chan struct{})} }

// Accept implements net.Listener.
func (t *turn) Accept() (net.Conn, error) {
	t.accepting.Lock()
	defer t.accepting.Unlock()
	select {
	case <-t.over:
		return nil, net.ErrClosed
	case c := <-t.early:
		return c, nil
	default:
	}
	c, err := t.TCPListener.Accept()
	select {
	case <-t.over:
		if err == nil {
			t.early <- c
		}
		return nil, net.ErrClosed
	default:
		return c, err
	}
}

// Close implements net.Listener. No connection is accepted in this turn after it has returned.
func (t *turn) Close() error {
	err := net.ErrClosed
	t.once.Do(func() {
		close(t.over)
		err = t.SetDeadline(time.Unix(1, 0)) // wakes Accept
		t.accepting.Lock()
		defer t.accepting.Unlock()
		err = errors.Join(err, t.SetDeadline(time.Time{}))
	})
	return err
}

// last is the listener of the server that has the socket to the end: Close closes it.
type last struct{ *turn }

// Close implements net.Listener.
func (l last) Close() error {
	err := l.turn.Close()
	if errors.Is(err, net.ErrClosed) {
		return err
	}
	err = errors.Join(err, l.TCPListener.Close())
	select {
	case c := <-l.early:
		err = errors.Join(err, c.Close())
	default:
	}
	return err
}
