// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// framed is all that a transport has to do (CONTRIBUTING.md, "Adding a transport"). Its messages are a length of four bytes and a ModelInferRequest; answers are a byte,
// the code of a gRPC status, a length, and the ModelInferResponse or the error's text. One request of a connection is under way at a time.
type framed struct {
	d    *dispatch.Dispatcher
	gate *gate.Gate
	most int // bytes of a message
}

// serve takes connections until the listener is closed.
func (f framed) serve(ctx context.Context, l net.Listener) {
	doors := f.gate.Listener(l, true)
	for {
		conn, err := doors.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			ctx, left := context.WithCancel(gate.WithConn(ctx, conn)) // it ends with the connection
			defer left()
			for f.request(ctx, conn) == nil { // a caller that leaves while its request runs is noticed when the answer is written: a transport that reads meanwhile notices at once
			}
		}()
	}
}

// request serves one request. The error ends the connection.
func (f framed) request(ctx context.Context, conn net.Conn) error {
	// 1. The gate admits a request once it begins to come, before more of it is read, and it ends once: a connection that waits for its next request has none under way.
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	admitted, refused := gate.ConnOf(ctx).Admit(func(error) { _ = conn.Close() })
	if refused != nil {
		f.d.Refused(ctx, "", refused)
		_ = f.answer(conn, nil, refused)
		return refused // the rest of the message is not read
	}
	defer admitted.End()

	// 2. What is read counts as the caller's until the message is whole.
	admitted.Receive()
	data, err := f.read(conn, binary.BigEndian.Uint32(head[:]))
	if evicted := admitted.Received(len(data)); evicted != nil {
		err = evicted
	}
	if err != nil {
		f.d.Refused(ctx, "", err)
		_ = f.answer(conn, nil, err)
		return err
	}

	// 3. From here on the request belongs to the dispatcher, with its buffers.
	r, err := batch.ReadRequest(mem.BufferSlice{mem.SliceBuffer(data)})
	if err != nil {
		f.d.Refused(ctx, "", err)
		return f.answer(conn, nil, status.Error(codes.InvalidArgument, err.Error()))
	}
	type end struct {
		r   *batch.Response
		err error
	}
	ended := make(chan end, 1)
	f.d.Begin(ctx, nil, r, func(_ *wire.Turn, r *batch.Response, err error) { ended <- end{r, err} }) // Then must not block.

	// 4. The answer is the transport's to free. It counts as held for the caller until it is written.
	got := <-ended
	if got.err != nil {
		return f.answer(conn, nil, got.err)
	}
	defer got.r.Free()
	answer := got.r.Marshal()
	caller := gate.ConnOf(ctx)
	caller.Owe(answer.Len())
	defer caller.Release(answer.Len()) // its length now: it is freed by then
	return f.answer(conn, answer, got.r.Err())
}

// read reads a message of n bytes. The buffer grows with what has come, which the gate counts: a length alone takes no memory.
func (f framed) read(conn io.Reader, n uint32) ([]byte, error) {
	if int64(n) > int64(f.most) {
		return nil, status.Errorf(codes.ResourceExhausted, "a message has %d bytes, and at most %d are read", n, f.most)
	}
	data, err := io.ReadAll(io.LimitReader(conn, int64(n)))
	if err != nil || len(data) < int(n) {
		return nil, status.Error(codes.Canceled, "the caller left before the message was whole")
	}
	return data, nil
}

// answer consumes data.
func (f framed) answer(conn net.Conn, data mem.BufferSlice, failure error) error {
	defer data.Free()
	s, _ := status.FromError(failure)
	text := data.Materialize()
	if failure != nil {
		text = []byte(s.Message())
	}
	_, err := conn.Write(append(binary.BigEndian.AppendUint32([]byte{byte(s.Code())}, uint32(len(text))), text...))
	return err
}

// TestATransportOfItsOwn: what a new transport needs of the request way is what framed uses of it. Its requests are queued, counted and refused as all others.
func TestATransportOfItsOwn(t *testing.T) {
	p := newTriton(t)
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	g := gate.New(gate.Options{Requests: 1, Connections: 10, Bytes: 1 << 20, Stall: time.Minute})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() { framed{d: d, gate: g, most: 1 << 20}.serve(t.Context(), l) })
	t.Cleanup(func() { g.Close(); _ = l.Close(); running.Wait() })
	dial := func() net.Conn {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	reply := func(conn net.Conn) (codes.Code, []byte) {
		var head [5]byte
		_, err := io.ReadFull(conn, head[:])
		require.NoError(t, err)
		text := make([]byte, binary.BigEndian.Uint32(head[1:]))
		_, err = io.ReadFull(conn, text)
		require.NoError(t, err)
		return codes.Code(head[0]), text
	}
	ask := func(conn net.Conn, data []byte) (codes.Code, []byte) {
		_, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
		require.NoError(t, err)
		return reply(conn)
	}
	conn := dial()
	good, err := proto.Marshal(message("7", 2, 1))
	require.NoError(t, err)
	for range 2 {
		code, data := ask(conn, good)
		require.Equal(t, codes.OK, code, string(data))
		var r tritonpb.ModelInferResponse
		require.NoError(t, proto.Unmarshal(data, &r))
		require.Equal(t, "7", r.GetId())
	}
	require.Len(t, p.executions(), 2)

	m := message("8", 1, 1)
	m.ModelName = "none"
	bad, err := proto.Marshal(m)
	require.NoError(t, err)
	code, data := ask(conn, bad)
	require.Equal(t, codes.NotFound, code, string(data))
	code, _ = ask(conn, []byte("no message"))
	require.Equal(t, codes.InvalidArgument, code)

	// A second request of the transport is one too many for this gate while the first runs.
	p.set(func() { p.hold, p.started = make(chan struct{}), make(chan string, 1) })
	held := make(chan codes.Code)
	go func() { code, _ := ask(conn, good); held <- code }()
	<-p.started
	code, data = ask(dial(), good)
	require.Equal(t, codes.Unavailable, code, string(data))
	close(p.hold)
	require.Equal(t, codes.OK, <-held)
	idle := func() bool { return g.Stats().Requests == 0 && g.Stats().Bytes == 0 && seen.settled() }
	require.Eventually(t, idle, 30*time.Second, time.Millisecond)

	// A message that is too long is not read, and one whose caller leaves is counted.
	long := dial()
	_, err = long.Write(binary.BigEndian.AppendUint32(nil, 1<<30))
	require.NoError(t, err)
	code, data = reply(long)
	require.Equal(t, codes.ResourceExhausted, code, string(data))
	require.Eventually(t, idle, 30*time.Second, time.Millisecond)
	unfinished := dial()
	_, err = unfinished.Write(append(binary.BigEndian.AppendUint32(nil, 100), "half"...))
	require.NoError(t, err)
	require.NoError(t, unfinished.Close())
	require.Eventually(t, func() bool { return seen.count(t)[dispatch.Cancelled] == 1 }, 30*time.Second, time.Millisecond)
	require.Eventually(t, idle, 30*time.Second, time.Millisecond)
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 3, dispatch.Refused: 4, dispatch.Cancelled: 1}, resultsInTime(seen.count(t)))
}
