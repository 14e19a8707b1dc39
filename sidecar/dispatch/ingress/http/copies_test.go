// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/http1"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// places are the parts of memory that something was read into, or written from.
type places struct {
	mu  sync.Mutex
	all [][2]uintptr
}

func (p *places) add(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	p.all = append(p.all, [2]uintptr{at, at + uintptr(len(b))})
}

// of counts the bytes of b that lie there.
func (p *places) of(b []byte) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	from := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	to := from + uintptr(len(b))
	for _, m := range p.all {
		if f, t := max(from, m[0]), min(to, m[1]); f < t {
			n += int(t - f)
		}
	}
	return n
}

// watched is a client's connection that notes into what it is read, and from what it is written.
type watched struct {
	net.Conn
	socket        *wire.Socket
	read, written *places
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	w.read.add(p[:max(0, n)])
	return n, err
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	w.written.add(p[:n])
	return n, err
}

func (w *watched) Gathers() bool { return true }

func (w *watched) TryWrite(pieces [][]byte) (int, error) {
	n, err := w.socket.TryWrite(pieces)
	for left, i := n, 0; left > 0; i++ {
		took := min(left, len(pieces[i]))
		w.written.add(pieces[i][:took])
		left -= took
	}
	return n, err
}

func (w *watched) AwaitWrite(pieces [][]byte) (int, error) { return w.socket.AwaitWrite(pieces) }

type watching struct {
	net.Listener
	read, written *places
}

func (l watching) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &watched{c, wire.NewSocket(c), l.read, l.written}, nil
}

// TestCopiesOfABody: the tensors of a large request lie where they were read, but for the first 64 KiB, which are moved once; they are sent on from there;
// and a large answer is written from where it lies. So Conch copies a payload to a server without shared memory about a tenth of a time on its way in,
// and not at all on its way out.
func TestCopiesOfABody(t *testing.T) {
	const size = 600 << 10
	read, written := &places{}, &places{}
	var stayed, onward int
	kept := false
	out := make([]byte, size)
	h := front.New(front.Options{Inferer: inferFunc(func(_ context.Context, r *batch.Request) (*batch.Response, error) {
		for _, b := range r.Inputs[0].Data {
			stayed += read.of(b.ReadOnlyData())
		}
		sent := r.Marshal() // over gRPC
		for _, b := range sent {
			onward += read.of(b.ReadOnlyData())
		}
		sent.Free()
		kept = r.HTTP != nil
		return &batch.Response{Model: r.Model, Version: "1", Outputs: []batch.Tensor{{Name: "OUTPUT0", Datatype: "FP32", Shape: []int64{1, size / 4}, Data: mem.BufferSlice{mem.SliceBuffer(out)}}}}, nil
	}), Catalog: catalog{}, Picker: nowhere{}, Endpoints: nowhere{}, Aggregator: aggregator{}})
	t.Cleanup(h.Close)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := http1.New(&nethttp.Server{Handler: h}, front.Plain)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(watching{l, read, written}) }()
	t.Cleanup(func() { _ = s.Close(); <-done })

	head := fmt.Sprintf(`{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,%d],"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`, size/4, size)
	r, err := nethttp.NewRequestWithContext(t.Context(), nethttp.MethodPost, "http://"+l.Addr().String()+"/v2/models/id_fp32/infer", strings.NewReader(head+string(make([]byte, size))))
	require.NoError(t, err)
	r.Header.Set("Accept-Encoding", "identity")
	r.Header.Set("Inference-Header-Content-Length", fmt.Sprint(len(head)))
	answer, err := nethttp.DefaultClient.Do(r)
	require.NoError(t, err)
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	nethttp.DefaultClient.CloseIdleConnections()
	require.Equal(t, 200, answer.StatusCode, string(text[:min(300, len(text))]))

	const moved = 64 << 10
	require.GreaterOrEqual(t, stayed, size-moved, "of the tensors lies where it was read")
	require.GreaterOrEqual(t, onward, size-moved, "of the tensors goes on from there over gRPC")
	require.False(t, kept, "a body that is too long for a server's HTTP port is not held beside its tensors")
	require.Eventually(t, func() bool { return written.of(out) == size }, 30*time.Second, time.Millisecond, "of the answer is written from where it lies, which is noted a little after the client has it")
}
