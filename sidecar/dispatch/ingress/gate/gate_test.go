// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// door is a gate before a listener, as a front has it.
type door struct {
	*gate.Gate
	t testing.TB
	l *gate.Listener
}

func open(t testing.TB, o gate.Options) *door {
	o.Requests, o.Connections = max(o.Requests, 1), max(o.Connections, 1)
	if o.Bytes == 0 {
		o.Bytes = 1 << 20
	}
	if o.Stall == 0 {
		o.Stall = time.Minute
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := gate.New(o)
	d := &door{Gate: g, t: t, l: g.Listener(l, true)}
	t.Cleanup(func() {
		g.Close()
		require.NoError(t, l.Close())
	})
	return d
}

// dial is a new client.
func (d *door) dial() net.Conn {
	client, err := (&net.Dialer{}).DialContext(d.t.Context(), "tcp", d.l.Addr().String())
	require.NoError(d.t, err)
	d.t.Cleanup(func() { _ = client.Close() })
	return client
}

// enter is a new client and its connection as the front sees it.
func (d *door) enter() (client net.Conn, conn *gate.Conn) {
	client = d.dial()
	accepted, err := d.l.Accept()
	require.NoError(d.t, err)
	conn = accepted.(*gate.Conn)
	d.t.Cleanup(func() { _ = conn.Close() })
	return client, conn
}

// gone requires that a client's connection is closed.
func (d *door) gone(client net.Conn) {
	require.NoError(d.t, client.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err := client.Read(make([]byte, 1))
	require.Error(d.t, err)
	timeout, ok := err.(net.Error) //nolint:errorlint // net.Conn gives it bare
	require.False(d.t, ok && timeout.Timeout(), "the connection is still open")
}

func never(error) {}

func unavailable(t require.TestingT, err error) {
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
}

// TestTheIdlestGoes: one connection too many closes the one that has been without a request for longest, and never one that has a request.
func TestTheIdlestGoes(t *testing.T) {
	d := open(t, gate.Options{Connections: 2, Requests: 10})
	_, a := d.enter()
	first, _ := d.enter()
	busy, err := a.Admit(never)
	require.NoError(t, err)
	_, c := d.enter()
	d.gone(first)
	require.Equal(t, uint64(1), d.Stats().Refused[gate.Displaced])
	require.Equal(t, 2, d.Stats().Connections)

	_, err = c.Admit(never)
	require.NoError(t, err)
	refused := d.dial()
	accepted := make(chan struct{})
	go func() { // refuses it and waits for the next one
		defer close(accepted)
		conn, err := d.l.Accept()
		if err == nil {
			_ = conn.Close()
		}
	}()
	d.gone(refused)
	require.Equal(t, uint64(1), d.Stats().Refused[gate.TooManyConnections])
	busy.End()
	d.dial() // takes the place of a, whose request has ended
	<-accepted
	require.Equal(t, uint64(2), d.Stats().Refused[gate.Displaced])
}

// TestRefusedBeforeItIsRead: beyond a bound the answer is UNAVAILABLE, and nothing is counted.
func TestRefusedBeforeItIsRead(t *testing.T) {
	held := int64(0)
	d := open(t, gate.Options{Requests: 1, Bytes: 100, Held: func() int64 { return held }})
	_, c := d.enter()
	r, err := c.Admit(never)
	require.NoError(t, err)
	_, err = c.Admit(never)
	unavailable(t, err)
	r.End()
	held = 101 // by the dispatcher
	_, err = c.Admit(never)
	unavailable(t, err)
	held = 0
	r, err = c.Admit(never)
	require.NoError(t, err)
	r.End()
	s := d.Stats()
	require.Zero(t, s.Requests)
	require.Zero(t, s.Bytes)
	require.Equal(t, uint64(1), s.Refused[gate.TooManyRequests])
	require.Equal(t, uint64(1), s.Refused[gate.TooManyBytes])
}

// TestARequestEndsOnce, whoever ends it, and however many at once.
func TestARequestEndsOnce(t *testing.T) {
	d := open(t, gate.Options{Requests: 2})
	_, c := d.enter()
	r, err := c.Admit(never)
	require.NoError(t, err)
	other, err := c.Admit(never)
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 8 {
		all.Go(r.End)
	}
	all.Wait()
	require.EqualValues(t, 1, d.Stats().Requests)
	other.End()
	require.Zero(t, d.Stats().Requests)
}

// TestUnfinishedBodiesAreEvicted: those of the connection that holds most, when more comes than may be held; then nothing is held.
func TestUnfinishedBodiesAreEvicted(t *testing.T) {
	const bound = 64 << 10
	d := open(t, gate.Options{Requests: 10, Connections: 2, Bytes: bound})
	modest, small := d.enter()
	greedy, large := d.enter()
	evicted := make(chan error, 2)
	for _, c := range []*gate.Conn{small, large} {
		r, err := c.Admit(func(err error) {
			if c == large {
				evicted <- err
			} else {
				evicted <- nil
			}
		})
		require.NoError(t, err)
		r.Receive()
		defer r.End()
	}
	_, err := modest.Write(make([]byte, 1000))
	require.NoError(t, err)
	_, err = io.ReadFull(small, make([]byte, 1000))
	require.NoError(t, err)
	go func() { _, _ = greedy.Write(make([]byte, bound)) }()
	_, err = io.ReadFull(large, make([]byte, bound))
	require.NoError(t, err)
	unavailable(t, <-evicted)
	require.Empty(t, evicted, "the other one is left alone")
	require.NoError(t, small.Close())
	require.NoError(t, large.Close())
	require.Zero(t, d.Stats().Bytes)
	require.Zero(t, d.Stats().Connections)
}

// TestWhoTakesNoAnswerIsClosed after the time Stall, and the bytes that it held are not held any more.
func TestWhoTakesNoAnswerIsClosed(t *testing.T) {
	d := open(t, gate.Options{Stall: time.Second})
	client, c := d.enter()
	r, err := c.Admit(never)
	require.NoError(t, err)
	answer := r.Sent(mem.BufferSlice{mem.SliceBuffer(make([]byte, 5000))})
	require.Equal(t, int64(5000), d.Stats().Bytes)
	d.gone(client)
	require.Equal(t, uint64(1), d.Stats().Refused[gate.Stalled])
	require.Zero(t, d.Stats().Bytes)
	answer.Free() // by the transport, later
	require.Zero(t, d.Stats().Bytes, "it is not counted out twice")
	r.End()
	require.Zero(t, d.Stats().Requests)
}

// TestWhatIsHeldIsBounded: whatever is held, answered and released, in whatever order, the bound holds for what may be refused, and in the end
// nothing is counted.
func TestWhatIsHeldIsBounded(t *testing.T) {
	const bound = 10_000
	d := open(t, gate.Options{Requests: 1000, Bytes: bound})
	_, c := d.enter()
	rapid.Check(t, func(t *rapid.T) {
		var held []int
		var requests []*gate.Request
		var answers []mem.BufferSlice
		total := int64(0)
		size := rapid.IntRange(1, bound/2)
		t.Repeat(map[string]func(*rapid.T){
			"hold": func(t *rapid.T) {
				n := size.Draw(t, "n")
				if err := c.Hold(n); err != nil {
					unavailable(t, err)
					require.Greater(t, total+int64(n), int64(bound), "there was room")
					return
				}
				held, total = append(held, n), total+int64(n)
				require.LessOrEqual(t, total, int64(bound))
			},
			"release": func(t *rapid.T) {
				if len(held) > 0 {
					c.Release(held[0])
					total -= int64(held[0])
					held = held[1:]
				}
			},
			"answer": func(t *rapid.T) {
				r, err := c.Admit(never)
				if err != nil {
					unavailable(t, err)
					require.Greater(t, total, int64(bound))
					return
				}
				n := size.Draw(t, "answer")
				answers, requests = append(answers, r.Sent(mem.BufferSlice{mem.SliceBuffer(make([]byte, n))})), append(requests, r)
				total += int64(n)
			},
			"taken": func(t *rapid.T) {
				if len(answers) > 0 {
					total -= int64(answers[0].Len())
					answers[0].Free()
					requests[0].End()
					answers, requests = answers[1:], requests[1:]
				}
			},
			"": func(t *rapid.T) {
				require.Equal(t, total, d.Stats().Bytes)
				require.Equal(t, int64(len(requests)), d.Stats().Requests)
			},
		})
		for _, n := range held {
			c.Release(n)
		}
		for i, a := range answers {
			a.Free()
			requests[i].End()
		}
		require.Zero(t, d.Stats().Bytes)
		require.Zero(t, d.Stats().Requests)
	})
}

// TestWritesThatNobodyTakes: a connection whose client takes nothing of what is written to it is closed, whatever is
// written.
func TestWritesThatNobodyTakes(t *testing.T) {
	d := open(t, gate.Options{Stall: 500 * time.Millisecond})
	_, c := d.enter()
	_, err := c.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Time{})) // as gRPC does after its first writes
	for err == nil {
		_, err = c.Write(make([]byte, 512<<10))
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	require.Zero(t, d.Stats().Connections)
	require.Equal(t, uint64(1), d.Stats().Refused[gate.Stalled])
}

// TestAnswerThatIsTakenSlowly: a client has the time Stall for every part of an answer, not for all of it. A machine that is too slow for that is given another
// try, with more time.
func TestAnswerThatIsTakenSlowly(t *testing.T) {
	for stall := time.Second; ; stall *= 2 {
		if longest, err := takesSlowly(t, stall); err == nil {
			return
		} else if longest < stall/2 || stall > time.Minute {
			t.Fatal("a part was waited for no longer than", longest, err)
		}
	}
}

// takesSlowly has a client take an answer in parts, for longer than one deadline, and returns how long it was between two parts at most.
func takesSlowly(t *testing.T, stall time.Duration) (longest time.Duration, err error) {
	const piece, pieces = 64 << 10, 50
	pause := stall / 25
	d := open(t, gate.Options{Stall: stall})
	client, c := d.enter()
	require.NoError(t, client.(*net.TCPConn).SetReadBuffer(piece))
	require.NoError(t, c.NetConn().(*net.TCPConn).SetWriteBuffer(piece))
	answer := make([]byte, piece*pieces)
	for i := range answer {
		answer[i] = byte(i / 1000)
	}
	written := make(chan error, 1)
	go func() {
		n, err := c.Write(answer)
		if err == nil && n != len(answer) {
			err = io.ErrShortWrite
		}
		written <- err
	}()
	got := make([]byte, len(answer))
	last := time.Now()
	for from := 0; from < len(got); from += piece {
		time.Sleep(pause)
		_, err := io.ReadFull(client, got[from:from+piece])
		now := time.Now()
		longest, last = max(longest, now.Sub(last)), now
		if err != nil {
			return longest, errors.Join(err, <-written)
		}
	}
	require.NoError(t, <-written)
	require.Equal(t, answer, got)
	require.Zero(t, d.Stats().Refused[gate.Stalled])
	return longest, nil
}

// TestWriteToWhoHasGone fails, however much it is.
func TestWriteToWhoHasGone(t *testing.T) {
	for _, size := range []int{1, 1 << 20} {
		d := open(t, gate.Options{})
		client, c := d.enter()
		require.NoError(t, client.Close())
		var err error
		for err == nil {
			_, err = c.Write(make([]byte, size))
		}
		require.True(t, errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET), err)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		require.Zero(t, d.Stats().Refused[gate.Stalled])
	}
}

// BenchmarkRequest is the cost of a gRPC call at the gate without its reading and writing.
func BenchmarkRequest(b *testing.B) {
	d := open(b, gate.Options{Requests: 10})
	_, c := d.enter()
	data := make([]byte, 1<<10)
	b.ReportAllocs()
	for b.Loop() {
		r, err := c.Admit(never)
		if err != nil {
			b.Fatal(err)
		}
		r.Receive()
		if err := r.Received(len(data)); err != nil {
			b.Fatal(err)
		}
		answer := r.Sent(mem.BufferSlice{mem.SliceBuffer(data)})
		answer.Free()
		r.End()
	}
}

// TestHalfClosed: the client sees the end, and what it sends is still read.
func TestHalfClosed(t *testing.T) {
	d := open(t, gate.Options{})
	client, c := d.enter()
	require.NoError(t, c.CloseWrite())
	_, err := client.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	_, err = client.Write([]byte("x"))
	require.NoError(t, err)
	n, err := c.Read(make([]byte, 9))
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// closing is a connection that another goroutine closes while bytes are read from it.
type closing struct {
	net.Conn
	close func()
}

func (c *closing) Read(p []byte) (int, error) {
	c.close()
	return len(p), nil
}

// one is a listener of one connection.
type one struct {
	net.Listener
	conn net.Conn
}

func (l one) Accept() (net.Conn, error) { return l.conn, nil }

// TestBytesThatAreReadWhileAConnectionCloses are counted out again: nobody else would.
func TestBytesThatAreReadWhileAConnectionCloses(t *testing.T) {
	g := gate.New(gate.Options{Requests: 1, Connections: 1, Bytes: 1 << 20, Stall: time.Minute})
	defer g.Close()
	client, server := net.Pipe()
	defer func() { require.NoError(t, client.Close()) }()
	below := &closing{Conn: server}
	accepted, err := g.Listener(one{conn: below}, true).Accept()
	require.NoError(t, err)
	below.close = func() { _ = accepted.Close() }
	n, err := accepted.Read(make([]byte, 100))
	require.NoError(t, err)
	require.Equal(t, 100, n)
	require.Zero(t, g.Stats().Bytes)
}

// TestAnAnswerThatIsDropped is counted out once, though its buffer may be freed later or never.
func TestAnAnswerThatIsDropped(t *testing.T) {
	for name, size := range map[string]int{"small": 100, "large": 100 << 10} {
		t.Run(name, func(t *testing.T) {
			d := open(t, gate.Options{Requests: 1})
			_, c := d.enter()
			r, err := c.Admit(never)
			require.NoError(t, err)
			defer r.End()
			r.Undelivered() // nothing was sent
			data := r.Sent(mem.BufferSlice{mem.SliceBuffer(make([]byte, size))})
			require.EqualValues(t, size, d.Stats().Bytes)
			r.Undelivered()
			require.Zero(t, d.Stats().Bytes)
			data.Free()
			require.Zero(t, d.Stats().Bytes)
		})
	}
}
