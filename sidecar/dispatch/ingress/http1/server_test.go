// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http1_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/ingress/http1"
)

const (
	infer  = "POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
	health = "GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
	index  = "POST /v2/repository/index HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
)

// ask sends a request on a connection and reads the answer.
func ask(t *testing.T, conn net.Conn, text string) *nethttp.Response {
	t.Helper()
	_, err := io.WriteString(conn, text)
	require.NoError(t, err)
	return read(t, conn)
}

func read(t *testing.T, conn net.Conn) *nethttp.Response {
	t.Helper()
	answer, err := nethttp.ReadResponse(bufio.NewReaderSize(onlyOne{conn}, 1), nil)
	require.NoError(t, err)
	_, err = io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer
}

// onlyOne reads a byte at a time: nothing of a next answer is lost.
type onlyOne struct{ net.Conn }

func (o onlyOne) Read(p []byte) (int, error) { return o.Conn.Read(p[:1]) }

// ended requires that the server closes a connection.
func ended(t *testing.T, conn net.Conn) {
	t.Helper()
	n, err := conn.Read(make([]byte, 1))
	require.Zero(t, n)
	require.Error(t, err)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	var network net.Error
	require.False(t, asTimeout(err, &network), "it is still open")
}

// rest is what comes before the server closes a connection.
func rest(t *testing.T, conn net.Conn) string {
	t.Helper()
	all, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(all)
}

func asTimeout(err error, network *net.Error) bool {
	n, ok := err.(net.Error) //nolint:errorlint // a connection's own
	*network = n
	return ok && n.Timeout()
}

// TestPlainRequestsAreAnsweredHere, whatever net/http answers between them.
func TestPlainRequestsAreAnsweredHere(t *testing.T) {
	s := start(t, true, mirror, nil)
	conn := s.dial()
	for _, text := range []string{infer, infer, health, infer, index, infer, strings.ReplaceAll(infer, "a\r\n", "a\r\nConnection: keep-alive\r\n")} {
		ask(t, conn, text)
	}
	require.Equal(t, int32(2), s.theirs.Load(), "only what is not plain")
	ask(t, conn, "POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	ask(t, conn, infer)
	require.Equal(t, int32(4), s.theirs.Load(), "after a request whose end only net/http finds")
}

// TestARequestThatComesBeforeNetHTTPHasEnded its own, whose answer the client has: it is still plain, also where its bytes come in two pieces.
func TestARequestThatComesBeforeNetHTTPHasEnded(t *testing.T) {
	for _, first := range []int{1, len(infer) / 2, len(infer)} {
		goOn := make(chan struct{})
		var theirs atomic.Int32
		server := &nethttp.Server{Handler: nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
			mirror.ServeHTTP(w, r)
			if r.Method == nethttp.MethodGet {
				assert.NoError(t, nethttp.NewResponseController(w).Flush())
				<-goOn
				assert.NoError(t, r.Context().Err(), "the client has not left")
			}
		}), ConnState: func(_ net.Conn, now nethttp.ConnState) {
			if now == nethttp.StateActive {
				theirs.Add(1)
			}
		}}
		below, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		l := counting{below, new(atomic.Int64)}
		own, done := http1.New(server, isInfer), make(chan struct{})
		go func() { defer close(done); _ = own.Serve(l) }()
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", below.Addr().String())
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		for range 3 {
			ask(t, conn, health)
			has := l.read.Load() + int64(first)
			_, err := io.WriteString(conn, infer[:first])
			require.NoError(t, err)
			require.Eventually(t, func() bool { return l.read.Load() == has }, 20*time.Second, time.Millisecond, "net/http's wait ends with them")
			goOn <- struct{}{}
			_, err = io.WriteString(conn, infer[first:])
			require.NoError(t, err)
			read(t, conn)
		}
		require.Equal(t, int32(3), theirs.Load())
		require.NoError(t, conn.Close())
		require.NoError(t, own.Close())
		<-done
	}
}

// counting is a listener that counts the bytes that its connections were read.
type counting struct {
	net.Listener
	read *atomic.Int64
}

func (l counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return counted{c, l.read}, err
}

type counted struct {
	net.Conn
	read *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// TestPiecesOfARequest: a head and a body may come byte by byte.
func TestPiecesOfARequest(t *testing.T) {
	s := start(t, true, mirror, nil)
	conn := s.dial()
	for range 2 {
		for _, c := range []byte(infer) {
			_, err := conn.Write([]byte{c})
			require.NoError(t, err)
		}
		read(t, conn)
	}
	require.Zero(t, s.theirs.Load())
}

// waiting is a handler that waits for the test, or for the end of the request.
type waiting struct {
	begun, goOn chan struct{}
	left        chan error
}

func newWaiting() *waiting {
	return &waiting{begun: make(chan struct{}, 8), goOn: make(chan struct{}), left: make(chan error, 8)}
}

func (h *waiting) ServeHTTP(w nethttp.ResponseWriter, r *nethttp.Request) {
	body, _ := io.ReadAll(r.Body)
	h.begun <- struct{}{}
	select {
	case <-h.goOn:
	case <-r.Context().Done():
		h.left <- r.Context().Err()
	}
	w.Header()["Content-Length"] = []string{fmt.Sprint(len(body))}
	_, _ = w.Write(body)
}

// TestAClientThatLeavesCancelsItsRequest, whether it closes, half-closes or resets; a client that sends its next request does not.
func TestAClientThatLeavesCancelsItsRequest(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn) error{
		"closes": (*net.TCPConn).Close, "half-closes": (*net.TCPConn).CloseWrite,
		"resets": func(c *net.TCPConn) error { _ = c.SetLinger(0); return c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			h := newWaiting()
			bothLater(t, h, nil, func(t *testing.T, s *server) {
				conn := s.dial()
				_, err := io.WriteString(conn, infer)
				require.NoError(t, err)
				<-h.begun
				require.NoError(t, leave(conn))
				require.ErrorIs(t, <-h.left, context.Canceled)
			})
		})
	}
	h := newWaiting()
	bothLater(t, h, nil, func(t *testing.T, s *server) {
		conn := s.dial()
		for range 3 {
			_, err := io.WriteString(conn, infer)
			require.NoError(t, err)
			<-h.begun
			_, err = io.WriteString(conn, infer)
			require.NoError(t, err)
			h.goOn <- struct{}{}
			read(t, conn)
			<-h.begun
			h.goOn <- struct{}{}
			read(t, conn)
		}
		require.Empty(t, h.left)
	})
}

// TestPanicsEndTheConnection and nothing else.
func TestPanicsEndTheConnection(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	handler := nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		if broken.Load() {
			panic(nethttp.ErrAbortHandler)
		}
		mirror(w, r)
	})
	both(t, handler, nil, func(t *testing.T, s *server) {
		broken.Store(true)
		conn := s.dial()
		_, err := io.WriteString(conn, infer)
		require.NoError(t, err)
		ended(t, conn)
		broken.Store(false)
		ask(t, s.dial(), infer)
		require.NoError(t, s.shutdown(t.Context()), "nothing is under way")
	})
}

// TestLargeAnswersToSlowReaders come whole.
func TestLargeAnswersToSlowReaders(t *testing.T) {
	const size = 8 << 20
	handler := nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header()["Content-Length"] = []string{fmt.Sprint(size)}
		for i := range 8 {
			_, _ = w.Write([]byte(strings.Repeat(string(rune('a'+i)), size/8)))
		}
	})
	both(t, handler, nil, func(t *testing.T, s *server) {
		conn := s.dial()
		require.NoError(t, conn.SetReadBuffer(64<<10))
		_, err := io.WriteString(conn, infer)
		require.NoError(t, err)
		time.Sleep(50 * time.Millisecond) // the sockets are full by now
		answer, err := nethttp.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Len(t, body, size)
		for i := range 8 {
			require.Equal(t, size/8, strings.Count(string(body), string(rune('a'+i))))
		}
	})
}

// TestAnswersThatComeLaterWaitForNobody: whoever gives one returns at once, though the client reads nothing. It has everything when it reads.
func TestAnswersThatComeLaterWaitForNobody(t *testing.T) {
	const size = 8 << 20
	gave := make(chan struct{})
	s := start(t, true, nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		done := w.(interface{ Later() func(bool) }).Later()
		w.Header()["Content-Length"] = []string{fmt.Sprint(size)}
		for i := range 8 {
			_, _ = w.Write([]byte(strings.Repeat(string(rune('a'+i)), size/8)))
		}
		done(true)
		gave <- struct{}{}
	}), nil)
	conn := s.dial()
	_, err := io.WriteString(conn, infer+infer)
	require.NoError(t, err)
	<-gave
	from := bufio.NewReader(conn)
	for i := range 2 {
		answer, err := nethttp.ReadResponse(from, nil)
		require.NoError(t, err)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Len(t, body, size)
		for i := range 8 {
			require.Equal(t, size/8, strings.Count(string(body), string(rune('a'+i))))
		}
		if i == 0 {
			<-gave // the next request had to wait for the end of the answer
		}
	}
}

// TestAnAnswerThatIsGivenUpEndsTheConnection, and so does a body that was not read: what follows would be taken for a request.
func TestAnAnswerThatIsGivenUpEndsTheConnection(t *testing.T) {
	for name, read := range map[string]bool{"given up": true, "a body that was not read": false} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan struct{}, 9)
			s := start(t, true, nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
				asked <- struct{}{}
				if read {
					_, _ = io.Copy(io.Discard, r.Body)
				}
				done := w.(interface{ Later() func(bool) }).Later()
				go done(false)
			}), nil)
			conn := s.dial()
			_, err := io.WriteString(conn, infer+infer)
			require.NoError(t, err)
			ended(t, conn)
			require.Len(t, asked, 1)
			require.NoError(t, s.shutdown(t.Context()), "nothing is under way")
		})
	}
}

// TestClientsThatTakeNothingAreCutOff, after the gate's time.
func TestClientsThatTakeNothingAreCutOff(t *testing.T) {
	failed := make(chan error, 1)
	handler := impatient{nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header()["Content-Length"] = []string{fmt.Sprint(64 << 20)}
		_, err := w.Write(make([]byte, 64<<20))
		failed <- err
	})}
	both(t, handler, nil, func(t *testing.T, s *server) {
		conn := s.dial()
		_, err := io.WriteString(conn, strings.Replace(infer, "3\r\n\r\nabc", "4\r\n\r\nabcd", 1))
		require.NoError(t, err)
		require.Error(t, <-failed)
	})
}

// TestShortAnswersEndTheConnection: the client must not take what follows for the rest.
func TestShortAnswersEndTheConnection(t *testing.T) {
	handler := nethttp.HandlerFunc(func(w nethttp.ResponseWriter, _ *nethttp.Request) {
		w.Header()["Content-Length"] = []string{"10"}
		n, err := io.WriteString(w, "12345678901")
		require.Zero(t, n)
		require.ErrorIs(t, err, nethttp.ErrContentLength)
		_, _ = io.WriteString(w, "123")
	})
	both(t, handler, nil, func(t *testing.T, s *server) {
		conn := s.dial()
		_, err := io.WriteString(conn, infer)
		require.NoError(t, err)
		answer, err := nethttp.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		_, err = io.ReadAll(answer.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	})
}

// TestAllocations is the budget of a request on a kept connection: six are the handler's.
func TestAllocations(t *testing.T) {
	exchange := kept(t, true, 1<<10)
	exchange()
	require.LessOrEqual(t, testing.AllocsPerRun(200, exchange), 10.)
}

// TestAHandlerThatPanicsAfterLaterEndsTheConnection, whether another goroutine has the answer by then or nobody: the client does not wait for ever, and nothing
// stays under way.
func TestAHandlerThatPanicsAfterLaterEndsTheConnection(t *testing.T) {
	for name, hands := range map[string]bool{"nobody has the answer": false, "another goroutine has it": true} {
		t.Run(name, func(t *testing.T) {
			gave, release := make(chan struct{}), make(chan struct{})
			s := start(t, true, nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				done := w.(interface{ Later() func(bool) }).Later()
				if hands {
					go func() {
						defer close(gave)
						<-release
						w.Header()["Content-Length"] = []string{"3"}
						_, _ = io.WriteString(w, "abc")
						done(true)
					}()
				}
				panic(nethttp.ErrAbortHandler)
			}), nil)
			conn := s.dial()
			_, err := io.WriteString(conn, infer+infer)
			require.NoError(t, err)
			ended(t, conn)
			require.NoError(t, s.shutdown(t.Context()), "nothing is under way")
			if close(release); hands {
				<-gave
			}
		})
	}
}
