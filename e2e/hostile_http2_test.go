// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// dial opens an HTTP/2 connection to conch's gRPC port. It does not read conch's frames.
func (b *besieged) dial() (*rawHTTP2, net.Conn) {
	c := dialTCP(b.T, b.conch.GRPC)
	return newRawHTTP2(b.T, c), c
}

// ends counts the streams that conch ends, until all of n are or the connection is closed.
func ends(f *rawHTTP2, n int) <-chan int {
	ended := make(chan int, 1)
	go func() {
		streams := map[uint32]bool{}
		for len(streams) < n {
			frame, err := f.ReadFrame()
			if err != nil {
				break
			}
			switch v := frame.(type) {
			case *http2.HeadersFrame:
				if v.StreamEnded() {
					streams[v.StreamID] = true
				}
			case *http2.RSTStreamFrame:
				streams[v.StreamID] = true
			}
		}
		ended <- len(streams)
	}()
	return ended
}

// within is what comes out of a channel in time.
func within[T any](t testing.TB, c <-chan T, what string) (v T) {
	select {
	case v = <-c:
	case <-time.After(besiegedPatience):
		require.FailNow(t, what)
	}
	return v
}

// discard reads a connection to its end.
func discard(c net.Conn) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, c)
	}()
	return ended
}

// Misuse of HTTP/2 below gRPC reaches no server and disturbs no other client.
func TestHostileHTTP2(t *testing.T) {
	t.Parallel()
	b := besiege(t)
	message := framed(t)
	half := message[:len(message)/2]
	attack := func(name string, connections, requests int, run func(*besieged)) {
		t.Run(name, func(t *testing.T) {
			b := *b
			b.T = t
			b.attacked(connections, requests, func() { run(&b) })
		})
	}

	attack("streams half closed in the middle of a message", 1, 200, func(b *besieged) {
		f, c := b.dial()
		defer c.Close()
		ended := ends(f, 200)
		for i := range uint32(200) {
			f.open(2*i + 1)
			_ = f.WriteData(2*i+1, true, half) // conch may have gone, which shows below
		}
		require.Equal(b, 200, within(b, ended, "the streams do not end"))
	})
	attack("connections half closed in the middle of a message", 20, 20, func(b *besieged) {
		for range 20 {
			f, c := b.dial()
			f.open(1)
			_ = f.WriteData(1, false, half)
			require.NoError(b, c.(*net.TCPConn).CloseWrite())
			within(b, discard(c), "a connection of which nothing can come any more is not closed")
			_ = c.Close()
		}
	})
	attack("messages byte by byte, never whole", 1, 50, func(b *besieged) {
		f, c := b.dial()
		defer c.Close()
		discard(c)
		for i := range uint32(50) {
			f.open(2*i + 1)
		}
		for k := range 60 {
			for i := range uint32(50) {
				require.NoError(b, f.WriteData(2*i+1, false, message[k:k+1]))
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	attack("headers beyond their limit", 1, 50, func(b *besieged) {
		f, c := b.dial()
		defer c.Close()
		ended := ends(f, 50)
		for i := range uint32(50) {
			block := f.block([2]string{"x-" + marker, strings.Repeat("y", 32<<10)})
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block[:16<<10]})
			_ = f.WriteContinuation(2*i+1, true, block[16<<10:])
			_ = f.WriteData(2*i+1, true, message)
		}
		within(b, ended, "calls with such headers do not end, nor does their connection")
	})
	attack("headers that never end", 4, 4, func(b *besieged) {
		for range 4 {
			f, c := b.dial()
			gone := discard(c)
			block := f.block()
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block})
			field := hpack.AppendHuffmanString(nil, marker)
			field = append([]byte{0, 1, 'x', 0x80 | byte(len(field))}, field...)
			piece := []byte(strings.Repeat(string(field), (16<<10)/len(field)))
			var err error
			for i := 0; i < 4000 && err == nil; i++ { // 64 MiB
				err = f.WriteContinuation(1, false, piece)
			}
			require.Error(b, err, "64 MiB of headers were taken")
			within(b, gone, "headers that never end do not end the connection")
			_ = c.Close()
		}
	})
	attack("windows beyond what a window can be", 20, 20, func(b *besieged) {
		for i := range 20 {
			f, c := b.dial()
			f.open(1)
			_ = f.WriteData(1, false, half)
			if i%2 == 0 { // an error of the connection
				gone := discard(c)
				_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31})
				within(b, gone, "a window of 2 GiB is taken")
			} else {
				for range 1000 {
					_ = f.WriteWindowUpdate(0, 1<<31-1)
					_ = f.WriteWindowUpdate(1, 1<<31-1)
				}
			}
			_ = c.Close()
		}
	})
	attack("settings without end, whose acknowledgements nobody reads", 1, 1, func(b *besieged) {
		f, c := b.dial()
		defer c.Close()
		require.NoError(b, c.(*net.TCPConn).SetReadBuffer(4<<10))
		require.NoError(b, f.WriteSettings())
		many := bytes.Repeat([]byte{0, 0, 0, byte(http2.FrameSettings), 0, 0, 0, 0, 0}, 1000)
		// A million are taken before the sockets' buffers are full, which takes as long as conch has to wait for a processor. Then nothing
		// moves, for as long as conch is patient.
		var err error
		for i := 0; i < 10_000 && err == nil; i++ {
			require.NoError(b, c.SetWriteDeadline(time.Now().Add(besiegedPatience)))
			_, err = c.Write(many)
		}
		require.Error(b, err, "ten million settings were taken")
		require.NotErrorIs(b, err, os.ErrDeadlineExceeded, "nothing moves, and the connection is still open")
	})
	attack("answers for which no window is ever opened", 8, 80, func(b *besieged) {
		large := proto.Clone(b.good).(*tritonpb.ModelInferRequest) // a good one, whose answer is not taken
		large.Inputs[0].Shape, large.RawInputContents = []int64{1, 64 << 10}, [][]byte{make([]byte, 256<<10)}
		wire, err := proto.Marshal(large)
		require.NoError(b, err)
		wire = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(wire))), wire...)
		var gone []<-chan struct{}
		for i := range 8 {
			f, c := b.dial()
			defer c.Close()
			if i%2 == 0 {
				require.NoError(b, f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
			}
			gone = append(gone, discard(c))
			for k := range uint32(10) {
				f.open(2*k + 1)
				for rest := wire; len(rest) > 0; {
					n := min(len(rest), 16<<10)
					if f.WriteData(2*k+1, n == len(rest), rest[:n]) != nil {
						break
					}
					rest = rest[n:]
				}
			}
		}
		for _, ended := range gone {
			within(b, ended, "who takes no answers is still connected")
		}
	})
	attack("resets, right after the headers and in the middle of a message", 3, 3000, func(b *besieged) {
		var all sync.WaitGroup
		defer all.Wait()
		for shape := range 3 {
			f, c := b.dial()
			discard(c)
			all.Go(func() {
				defer c.Close()
				for i := range uint32(1000) {
					id := 2*i + 1
					f.open(id)
					if shape > 0 {
						_ = f.WriteData(id, false, half)
					}
					if shape > 1 { // and on, after the reset
						_ = f.WriteRSTStream(id, http2.ErrCodeCancel)
						_ = f.WriteData(id, true, message[len(half):])
					}
					if f.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
						return // conch has had enough
					}
				}
			})
		}
	})
}

// block is the headers of a ModelInfer call, and more.
func (h *rawHTTP2) block(more ...[2]string) []byte {
	h.header.Reset()
	for _, f := range append([][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/inference.GRPCInferenceService/ModelInfer"}, {":authority", "c"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	}, more...) {
		_ = h.encode.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: len(more) > 0}) // into memory
	}
	return append([]byte(nil), h.header.Bytes()...)
}
