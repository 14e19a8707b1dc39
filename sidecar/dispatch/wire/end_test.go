// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// fullSocket takes nothing, and says so when it is told to.
type fullSocket struct {
	net.Conn
	tries, full chan struct{}
	awaited     int
}

func (*fullSocket) Gathers() bool { return true }

func (s *fullSocket) TryWrite([][]byte) (int, error) {
	s.tries <- struct{}{}
	<-s.full
	return 0, nil
}

func (s *fullSocket) AwaitWrite([][]byte) (int, error) {
	s.awaited++
	return 0, net.ErrClosed
}

// A write that finds the socket full when its connection has ended meanwhile is not gone on with: who ended the connection has waited for all writers already,
// and one more would end the process where that wait is about to return.
func TestNoWriterBeginsAfterTheEnd(t *testing.T) {
	s := &fullSocket{tries: make(chan struct{}), full: make(chan struct{})}
	l := newLink(s, false)
	l.mu.Lock()
	l.frame(func(b []byte) []byte { return head{kind: http2.FrameSettings}.append(b) })
	l.mu.Unlock()
	flushed := make(chan struct{})
	go func() { defer close(flushed); l.flush() }()
	<-s.tries
	l.mu.Lock()
	l.fail(errClosed)
	l.mu.Unlock()
	l.writers.Wait()
	close(s.full)
	<-flushed
	l.writers.Wait()
	require.Zero(t, s.awaited, "a writer has begun")
	require.False(t, l.writing)
}
