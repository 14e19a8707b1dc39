// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package loadgen_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// affine is a Triton that answers OUTPUT = 2*INPUT + add.
type affine struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	add   float32
	calls atomic.Int64
	hold  func() // runs before the answer, if set
}

func (s *affine) compute(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i += 4 {
		x := math.Float32frombits(binary.LittleEndian.Uint32(raw[i:]))
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(2*x+s.add))
	}
	return out
}

func (s *affine) ModelInfer(_ context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
	s.calls.Add(1)
	if s.hold != nil {
		s.hold()
	}
	return &tritonpb.ModelInferResponse{ModelName: r.ModelName, RawOutputContents: [][]byte{s.compute(r.RawInputContents[0])}}, nil
}

func (s *affine) listen(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	tritonpb.RegisterGRPCInferenceServiceServer(server, s)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

func TestGRPCChecksAnswers(t *testing.T) {
	for _, elements := range []int{1, 16, 17, 150_000} {
		for _, c := range []struct {
			add  float32
			want error
		}{{1, nil}, {3, loadgen.ErrWrong}} {
			t.Run(fmt.Sprintf("%d elements plus %g", elements, c.add), func(t *testing.T) {
				end := (&affine{add: c.add}).listen(t)
				g, err := loadgen.NewGRPC([]string{end}, []loadgen.Model{{Name: "m"}}, loadgen.Emulated(elements))
				require.NoError(t, err)
				defer g.Close()
				for sequence := range uint64(3) {
					require.ErrorIs(t, g.Call(t.Context(), 0, sequence), c.want)
				}
			})
		}
	}
}

func TestGRPCBalancesByOutstanding(t *testing.T) {
	var first atomic.Bool
	held, release := make(chan struct{}), make(chan struct{})
	hold := func() {
		if first.CompareAndSwap(false, true) {
			close(held)
			<-release
		}
	}
	a, b := &affine{add: 1, hold: hold}, &affine{add: 1, hold: hold}
	g, err := loadgen.NewGRPC([]string{a.listen(t), b.listen(t)}, []loadgen.Model{{Name: "m"}}, loadgen.Emulated(16))
	require.NoError(t, err)
	defer g.Close()
	answered := make(chan error)
	go func() { answered <- g.Call(t.Context(), 0, 1) }()
	<-held
	for range 20 {
		require.NoError(t, g.Call(t.Context(), 0, 2))
	}
	require.ElementsMatch(t, []int64{1, 20}, []int64{a.calls.Load(), b.calls.Load()}, "the busy endpoint gets nothing while the other is idle")
	close(release)
	require.NoError(t, <-answered)
}

func TestHTTPChecksAnswers(t *testing.T) {
	model := &affine{add: 1}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		header, err := strconv.Atoi(r.Header.Get("Inference-Header-Content-Length"))
		if err != nil || r.URL.Path != "/v2/models/m/infer" {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		w.Header().Set("Inference-Header-Content-Length", "2")
		_, _ = w.Write(append([]byte("{}"), model.compute(body[header:])...))
	}))
	defer server.Close()
	endpoint := strings.TrimPrefix(server.URL, "http://")
	for _, elements := range []int{16, 1000} {
		h, err := loadgen.NewHTTP(endpoint, "m", loadgen.Emulated(elements), 2)
		require.NoError(t, err)
		for sequence := range uint64(3) {
			require.NoError(t, h.Call(t.Context(), 0, sequence))
		}
		model.add = 2
		require.ErrorIs(t, h.Call(t.Context(), 0, 1), loadgen.ErrWrong)
		model.add = 1
		h.Close()
	}
	h, err := loadgen.NewHTTP(endpoint, "other", loadgen.Emulated(16), 2)
	require.NoError(t, err)
	defer h.Close()
	require.ErrorContains(t, h.Call(t.Context(), 0, 1), "400 Bad Request: no")
}
