// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import "net"

// GatherWriter is a connection that writes several pieces with one system call. Gathers reports whether it can do so.
type GatherWriter interface {
	Gathers() bool
	// TryWrite does not wait. It returns how many bytes the socket has taken. A nil error with fewer bytes than there are says that the socket is full.
	TryWrite(pieces [][]byte) (int, error)
	// AwaitWrite waits until the socket takes something, and returns how many bytes it has taken.
	AwaitWrite(pieces [][]byte) (int, error)
}

// maxPieces is how many pieces one system call takes (IOV_MAX).
const maxPieces = 1024

// tryWriter writes what is pending without waiting.
type tryWriter struct {
	to     GatherWriter
	pieces [][]byte
}

// newTryWriter returns nil for a connection that cannot write so, such as one of TLS.
func newTryWriter(conn net.Conn) *tryWriter {
	if g, ok := conn.(GatherWriter); ok {
		if g.Gathers() {
			return &tryWriter{to: g}
		}
		return nil
	}
	if s := NewSocket(conn); s != nil {
		return &tryWriter{to: s}
	}
	return nil
}

// write reports how many bytes the socket has taken, and whether that is everything.
func (w *tryWriter) write(p *pending) (written int, all bool, err error) {
	for next := 0; next < len(p.parts); {
		w.pieces = w.pieces[:0]
		size := 0
		for ; next < len(p.parts) && len(w.pieces) < maxPieces; next++ {
			b := p.bytes(next)
			w.pieces = append(w.pieces, b)
			size += len(b)
		}
		n, err := w.to.TryWrite(w.pieces)
		clear(w.pieces)
		written += n
		if err != nil || n < size {
			return written, false, err
		}
	}
	return written, true, nil
}

// finish writes what is pending after its first n bytes, and waits while the socket is full.
func (w *tryWriter) finish(p *pending, n int) error {
	for first := 0; ; {
		for ; first < len(p.parts) && n >= len(p.bytes(first)); first++ {
			n -= len(p.bytes(first))
		}
		if first == len(p.parts) {
			return nil
		}
		w.pieces = append(w.pieces[:0], p.bytes(first)[n:])
		for i := first + 1; i < len(p.parts) && len(w.pieces) < maxPieces; i++ {
			w.pieces = append(w.pieces, p.bytes(i))
		}
		took, err := w.to.AwaitWrite(w.pieces)
		clear(w.pieces)
		if n += took; err != nil {
			return err
		}
	}
}
