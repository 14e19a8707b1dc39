// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/mem"
)

// Socket reads from a socket and writes to it, by system calls that do not wait (now.go).
type Socket struct {
	conn net.Conn
	raw  syscall.RawConn

	// Of who reads.
	read, ready func(fd uintptr) bool
	into        []byte
	size        int
	pool        mem.BufferPool
	buf         *[]byte // with what was read; nil if nothing was
	got         int
	readErr     error
	tries       int

	// Of who writes.
	try, await func(fd uintptr) bool
	vector     [shortVector]unix.Iovec
	pieces     [][]byte
	n          int
	err        error
}

var (
	_ GatherWriter = (*Socket)(nil)
	_ onReady      = (*Socket)(nil)
)

// NewSocket returns nil for a connection that is no socket.
func NewSocket(conn net.Conn) *Socket {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	s := &Socket{conn: conn, raw: raw}
	s.read = func(fd uintptr) bool {
		for {
			if s.got, s.readErr = readNow(int(fd), s.into); !errors.Is(s.readErr, unix.EINTR) {
				return !errors.Is(s.readErr, unix.EAGAIN)
			}
		}
	}
	s.ready = func(fd uintptr) bool {
		s.tries++
		buf := s.pool.Get(s.size)
		s.into = *buf
		done := s.read(fd)
		s.into = nil
		if s.readErr == nil && s.got > 0 {
			s.buf = buf
			return true
		}
		s.pool.Put(buf)
		return done
	}
	s.try = func(fd uintptr) bool {
		for {
			if s.n, s.err = writeNow(int(fd), s.pieces, &s.vector); !errors.Is(s.err, unix.EINTR) {
				return true
			}
		}
	}
	s.await = func(fd uintptr) bool { return s.try(fd) && !errors.Is(s.err, unix.EAGAIN) }
	return s
}

// Read implements io.Reader. It must not be called by two goroutines at once, like ReadOnReady.
func (s *Socket) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.into, s.got, s.readErr = p, 0, nil
	err := s.raw.Read(s.read)
	s.into = nil
	if err = s.ended(err); err != nil {
		return 0, err
	}
	return s.got, nil
}

// ReadOnReady reads into a buffer that it takes from the pool once there is something to read: who waits holds none.
func (s *Socket) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	s.size, s.pool, s.buf, s.got, s.readErr, s.tries = size, pool, nil, 0, nil, 0
	err := s.raw.Read(s.ready)
	buf := s.buf
	s.pool, s.buf = nil, nil
	if buf != nil {
		return buf, s.got, nil
	}
	return nil, 0, s.ended(err)
}

// Waited reports whether the last ReadOnReady found nothing at first. It is for who reads.
func (s *Socket) Waited() bool { return s.tries > 1 }

// ended is the error of a read; nil: it has brought something.
func (s *Socket) ended(err error) error {
	switch {
	case err != nil:
		return err
	case s.readErr != nil:
		local := s.conn.LocalAddr()
		return &net.OpError{Op: "read", Net: local.Network(), Source: local, Addr: s.conn.RemoteAddr(), Err: os.NewSyscallError("read", s.readErr)}
	case s.got == 0:
		return io.EOF
	}
	return nil
}

// Gathers implements GatherWriter.
func (*Socket) Gathers() bool { return true }

// TryWrite implements GatherWriter. It must not be called by two goroutines at once, like AwaitWrite.
func (s *Socket) TryWrite(pieces [][]byte) (int, error) { return s.write(pieces, s.try) }

// AwaitWrite implements GatherWriter. It ends with the connection's write deadline.
func (s *Socket) AwaitWrite(pieces [][]byte) (int, error) { return s.write(pieces, s.await) }

func (s *Socket) write(pieces [][]byte, by func(fd uintptr) bool) (int, error) {
	s.pieces = pieces
	err := s.raw.Write(by)
	s.pieces = nil
	switch {
	case err != nil:
		return 0, err
	case errors.Is(s.err, unix.EAGAIN):
		return 0, nil
	case s.err != nil:
		return 0, s.err
	}
	return s.n, nil
}
