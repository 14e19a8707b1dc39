// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// marker is in every hostile request, and in nothing else that clients send.
const marker = "must-not-arrive"

// tap stands between conch and a server and looks for the marker in what conch sends.
type tap struct {
	address string
	arrived atomic.Int32
}

func newTap(t *testing.T, server string) *tap {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &tap{address: l.Addr().String()}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.pass(from, server) })
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		all.Wait() // conch has ended before, and its connections with it
	})
	return p
}

func (p *tap) pass(from net.Conn, server string) {
	defer from.Close()
	to, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", server)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}()
	// A header is compressed, and ends in the middle of a byte.
	packed := hpack.AppendHuffmanString(nil, marker)
	needles := [][]byte{[]byte(marker), packed[:len(packed)-1]}
	var kept []byte // the end of what was passed on before
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		seen := append(kept, buf[:n]...)
		for _, needle := range needles {
			p.arrived.Add(int32(bytes.Count(seen, needle)))
		}
		kept = slices.Clone(seen[max(0, len(seen)-len(marker)+1):])
		if _, failed := to.Write(buf[:n]); failed != nil || err != nil {
			return
		}
	}
}

// besieged is conch, with small limits, before a server of which every byte that it gets is looked at.
type besieged struct {
	*testing.T
	conch *rig.Conch
	taps  [2]*tap // gRPC and HTTP
	stub  tritonpb.GRPCInferenceServiceClient
	good  *tritonpb.ModelInferRequest
}

func besiege(t *testing.T) *besieged {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	server, err := rig.StartServer(ctx, rig.ServerOptions{Repository: conformanceModels(t, "identity")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	direct, err := grpc.NewClient(server.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer direct.Close()
	_, err = tritonpb.NewGRPCInferenceServiceClient(direct).RepositoryModelLoad(ctx, &tritonpb.RepositoryModelLoadRequest{ModelName: "identity"})
	require.NoError(t, err)

	b := &besieged{T: t, taps: [2]*tap{newTap(t, server.GRPC), newTap(t, server.HTTP)}}
	b.conch, err = rig.StartConch(ctx, rig.ConchOptions{
		Bin: setting(t, "CONCH_BIN"), Mode: "observe", Attach: []*rig.Server{{GRPC: b.taps[0].address, HTTP: b.taps[1].address, Metrics: server.Metrics}},
		Settings: map[string]any{"limits": map[string]any{"queueBytes": queueBytes, "messageBytes": messageBytes, "stall": besiegedStall.String(), "queueRequests": 5000}},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of conch's log:\n%s", b.conch.LogTail())
		}
		require.NoError(t, b.conch.Close())
	})
	b.good = &tritonpb.ModelInferRequest{ModelName: "identity", Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{rawInput("INPUT0", "FP32", 1, 2)}, RawInputContents: [][]byte{make([]byte, 8)}}
	conn, err := grpc.NewClient(b.conch.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	b.stub = tritonpb.NewGRPCInferenceServiceClient(conn)
	require.Eventually(t, func() bool { return b.call() == nil }, 30*time.Second, 10*time.Millisecond, "conch serves what the server has loaded")

	// The taps would notice.
	marked := proto.Clone(b.good).(*tritonpb.ModelInferRequest)
	marked.Id = marker
	_, err = b.stub.ModelInfer(ctx, marked)
	require.NoError(t, err)
	require.Equal(t, int32(1), b.taps[0].arrived.Swap(0))
	response, err := http.Get("http://" + b.conch.HTTP + "/v2/" + marker)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, int32(1), b.taps[1].arrived.Swap(0))
	return b
}

// besiegedStall is short, so that a test that waits for it ends soon.
const besiegedStall = time.Second

// besiegedPatience is how long a test waits for what comes a stall after something else: on a machine that others keep busy, conch may wait
// for a processor much longer than for that.
const besiegedPatience = 4 * time.Minute

// call is one good request.
func (b *besieged) call() error {
	_, err := b.stub.ModelInfer(context.Background(), b.good)
	return err
}

// while makes good calls, enough to have a 99th percentile, and until done is closed.
func (b *besieged) while(done <-chan struct{}) (p99 time.Duration, err error) {
	var times []time.Duration
	for ended := false; !ended || len(times) < 300; {
		start := time.Now()
		if err := b.call(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(start))
		time.Sleep(time.Millisecond)
		select {
		case <-done:
			ended = true
		default:
		}
	}
	slices.Sort(times)
	return times[len(times)*99/100], nil
}

// An attack may make others' slowest calls this many times slower, in the best of some rounds. The attackers run on the same processors
// as conch, whose share of them halves. The client that was measured alone had them for itself.
const (
	besideFactor = 20
	besideRounds = 5
)

// attacked runs an attack, several times if others suffer, and requires that nothing of it reaches the server, that others are served
// meanwhile about as fast as without it, and that memory is bounded.
func (b *besieged) attacked(connections, requests int, attack func()) {
	b.Helper()
	base := rss(b.T, b.conch.Pid())
	peak := watchRSS(b.T, b.conch.Pid())
	best := 0.
	never := make(chan struct{})
	close(never)
	for round := range besideRounds {
		alone, err := b.while(never)
		require.NoError(b, err)
		done := make(chan struct{})
		var beside time.Duration
		var others sync.WaitGroup
		others.Go(func() { beside, err = b.while(done) })
		func() {
			defer others.Wait() // even if the attack ends the test
			defer close(done)
			attack()
		}()
		require.NoError(b, err, "others are served")
		ratio := beside.Seconds() / alone.Seconds()
		b.Logf("round %d: others' p99 %v alone, %v beside: %.1f times", round, alone, beside, ratio)
		if best == 0 || ratio < best {
			best = ratio
		}
		if best <= besideFactor {
			break
		}
	}
	require.LessOrEqual(b, best, float64(besideFactor), "others suffer")
	most := peak()
	b.Logf("%d MiB resident at most, %d before", most>>20, base>>20)
	require.Less(b, most, bound(base, connections, requests))
	for _, tap := range b.taps {
		require.Zero(b, tap.arrived.Load(), "it reached the server")
	}
}

// framed is a gRPC message with the marker in it.
func framed(t testing.TB) []byte {
	message, err := proto.Marshal(&tritonpb.ModelInferRequest{
		ModelName: "identity", Id: marker, Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{rawInput("INPUT0", "FP32", 1, 256)}, RawInputContents: [][]byte{make([]byte, 1024)},
	})
	require.NoError(t, err)
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}
