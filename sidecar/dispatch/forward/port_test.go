// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forward_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// accepting is the address of a listener whose connections are served by a function, until the test ends.
func accepting(t *testing.T, serve func(net.Conn)) (address string) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				serve(conn)
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

// listen is an HTTP port whose connections are served by a function, and a Conn to it.
func listen(t *testing.T, serve func(net.Conn)) *forward.Conn {
	c, err := forward.Dial("127.0.0.1:1", forward.Options{HTTP: accepting(t, serve), IdleHTTP: time.Hour})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

type posted struct {
	a   *forward.Answer
	err error
}

// post begins a call as soon as a connection is there.
func post(t *testing.T, c *forward.Conn, body mem.Buffer) <-chan posted {
	ended := make(chan posted, 2)
	r := &forward.HTTPRequest{Model: "m", HTTP: &batch.HTTP{Body: body, HeaderLength: -1}}
	require.Eventually(t, func() bool {
		return c.StartHTTP(t.Context(), r, func(_ *wire.Turn, a *forward.Answer, err error) { ended <- posted{a, err} })
	}, 30*time.Second, time.Millisecond)
	return ended
}

const answered = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

// TestHTTPAnswers: what a server's HTTP port may send, and what is made of it. Whether the server has had its last word, and whether the connection is used again.
func TestHTTPAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		answer                string
		body                  string
		code                  codes.Code
		lost, foreign, closes bool
	}{
		"an answer":             {answer: answered, body: "{}"},
		"the last one":          {answer: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", body: "{}", closes: true},
		"HTTP/1.0":              {answer: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", body: "{}", closes: true},
		"more than asked for":   {answer: answered + answered, body: "{}", closes: true},
		"an error":              {answer: "HTTP/1.1 400 Bad Request\r\nContent-Length: 13\r\n\r\n{\"error\":\"x\"}", code: codes.InvalidArgument},
		"not whole":             {answer: answered[:len(answered)-1], lost: true, closes: true},
		"half a head":           {answer: answered[:20], lost: true, closes: true},
		"nothing":               {lost: true, closes: true},
		"no HTTP":               {answer: "SSH-2.0\r\n\r\n", foreign: true, closes: true},
		"no head":               {answer: "HTTP/1.1 200 OK\r\nwords\r\n\r\n", foreign: true, closes: true},
		"a head without end":    {answer: "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 20_000), foreign: true, closes: true},
		"chunked":               {answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", foreign: true, closes: true},
		"chunked for ever":      {answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", foreign: true, closes: true},
		"too long":              {answer: "HTTP/1.1 200 OK\r\nContent-Length: 3000000000\r\n\r\n{}", foreign: true, closes: true},
		"to the end":            {answer: "HTTP/1.1 200 OK\r\n\r\n{}", foreign: true, closes: true},
		"not yet":               {answer: "HTTP/1.1 100 Continue\r\n\r\n" + answered, foreign: true, closes: true},
		"no JSON":               {answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", foreign: true, closes: true},
		"an error of no Triton": {answer: "HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno", foreign: true, closes: true},
		"JSON beyond the body":  {answer: "HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 3\r\nContent-Length: 2\r\n\r\n{}", foreign: true, closes: true},
	} {
		t.Run(name, func(t *testing.T) {
			again := make(chan bool, 9)
			conn := listen(t, func(conn net.Conn) {
				in := bufio.NewReader(conn)
				r, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				_, _ = io.ReadAll(r.Body)
				_, _ = io.WriteString(conn, c.answer)
				if c.lost {
					_ = conn.Close()
				}
				_, err = http.ReadRequest(in)
				again <- err == nil
				_, _ = io.WriteString(conn, answered)
			})
			got := <-post(t, conn, mem.SliceBuffer("{}"))
			require.Equal(t, c.lost, forward.Lost(got.err), "%v", got.err)
			if c.foreign {
				require.ErrorIs(t, got.err, forward.ErrForeign)
			} else if !c.lost {
				require.Equal(t, c.code, status.Code(got.err))
			}
			require.Equal(t, !c.lost, got.a.LastWord)
			if c.body != "" {
				require.Equal(t, c.body, string(got.a.HTTP.Body.ReadOnlyData()))
				got.a.HTTP.Body.Free()
			} else {
				require.Nil(t, got.a.HTTP)
			}
			if c.closes {
				require.False(t, <-again)
				return
			}
			next := <-post(t, conn, mem.SliceBuffer("{}"))
			require.NoError(t, next.err)
			require.True(t, <-again)
		})
	}
}

// TestAnAnswerThatNobodyAskedFor: what a port sends between two requests is not taken for the answer to the next one, though that is sent before it is whole.
func TestAnAnswerThatNobodyAskedFor(t *testing.T) {
	goOn, closed := make(chan struct{}), make(chan bool, 9)
	c := listen(t, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.ReadAll(r.Body)
		fmt.Fprint(conn, answered)
		<-goOn
		fmt.Fprint(conn, answered[:20])
		_, err = in.ReadByte()
		closed <- err != nil
	})
	for range 2 {
		got := <-post(t, c, mem.SliceBuffer("{}"))
		require.NoError(t, got.err)
		got.a.HTTP.Body.Free()
		goOn <- struct{}{}
		select {
		case is := <-closed:
			require.True(t, is)
		case <-time.After(30 * time.Second):
			t.Fatal("the connection is kept for another request")
		}
	}
}

// counting is a pool that knows what was put back.
type counting struct{ put chan struct{} }

func (counting) Get(n int) *[]byte { b := make([]byte, n); return &b }

func (p counting) Put(*[]byte) { p.put <- struct{}{} }

// TestAnAnswerBeforeTheWholeRequest: the call ends with it, the body is given back once nobody writes it, and the connection is not used again.
func TestAnAnswerBeforeTheWholeRequest(t *testing.T) {
	goOn, read := make(chan struct{}), make(chan []byte, 9)
	c := listen(t, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		fmt.Fprint(conn, answered)
		<-goOn
		got, _ := io.ReadAll(r.Body)
		read <- got
	})
	large := bytes.Repeat([]byte("large"), 4<<20)
	pool := counting{make(chan struct{}, 1)}
	body := mem.NewBuffer(&large, pool)
	got := <-post(t, c, body)
	require.NoError(t, got.err)
	body.Free() // the caller's reference
	close(goOn)
	<-pool.put // once
	require.Less(t, len(<-read), len(large), "the connection was closed with the answer")
	require.Empty(t, pool.put)
}

// TestLargeRequestsByHTTP: what the socket does not take at once follows.
func TestLargeRequestsByHTTP(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	c := listen(t, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			got, _ := io.ReadAll(r.Body)
			if !bytes.Equal(got, large) {
				return
			}
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n{", len(got)+1)
			_, _ = conn.Write(got)
		}
	})
	for range 3 {
		got := <-post(t, c, mem.SliceBuffer(large))
		require.NoError(t, got.err)
		require.True(t, bytes.Equal(large, got.a.HTTP.Body.ReadOnlyData()[1:]))
		got.a.HTTP.Body.Free()
	}
}

// TestCloseEndsCallsByHTTP, once each, as lost; so does a replacement of the connections when the old ones are dropped.
func TestCloseEndsCallsByHTTP(t *testing.T) {
	c := listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	one := post(t, c, mem.SliceBuffer("{}"))
	drop, err := c.Replace()
	require.NoError(t, err)
	require.Empty(t, one)
	require.NoError(t, drop())
	require.True(t, forward.Lost((<-one).err))
	two := post(t, c, mem.SliceBuffer("{}"))
	require.NoError(t, c.Close())
	require.True(t, forward.Lost((<-two).err))
	require.Empty(t, one)
	require.Empty(t, two)
	require.False(t, c.StartHTTP(t.Context(), &forward.HTTPRequest{Model: "m", HTTP: &batch.HTTP{Body: mem.SliceBuffer("{}")}}, nil))
}

// TestIdleConnectionsToThePortAreClosed, because a Triton does not end while one is open.
func TestIdleConnectionsToThePortAreClosed(t *testing.T) {
	closed := make(chan struct{}, 9)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }), ConnState: func(_ net.Conn, now http.ConnState) {
		if now == http.StateClosed {
			select {
			case closed <- struct{}{}:
			default: // a slow machine closes many before one is used
			}
		}
	}}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	c, err := forward.Dial("127.0.0.1:1", forward.Options{HTTP: l.Addr().String(), IdleHTTP: 20 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	for range 3 {
		got := <-post(t, c, mem.SliceBuffer("{}"))
		if got.err == nil { // else it was closed as the request came
			got.a.HTTP.Body.Free()
		}
		<-closed
	}
}
