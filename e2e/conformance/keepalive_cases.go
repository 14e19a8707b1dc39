// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/binary"
	"net"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// keepaliveCases are what clients do that have keepalive on (KeepAliveOptions of tritonclient): they ping, every few seconds and in these
// cases more often, to find out whether the server is still there.
func keepaliveCases() []Case {
	const pings = 10
	return []Case{
		{"grpc/pings beside calls keep the connection", func(e *Env) {
			p := e.pinger()
			for i := range uint32(pings) {
				p.call(2*i + 1)
				require.True(e, p.ping())
			}
			require.Empty(e, p.goAway())
		}},
		{"grpc/pings beside messages on a stream keep the connection", func(e *Env) {
			p := e.pinger()
			p.open(1, pb.GRPCInferenceService_ModelStreamInfer_FullMethodName)
			for range pings {
				p.message(1, false)
				p.answered()
				require.True(e, p.ping())
			}
			require.Empty(e, p.goAway())
		}},
		{"grpc/a few pings on a connection without calls", func(e *Env) {
			p := e.pinger()
			require.True(e, p.ping())
			require.True(e, p.ping())
			require.Empty(e, p.goAway())
		}},
		{"grpc/many pings on a connection without calls end it", func(e *Env) {
			p := e.pinger()
			for range pings {
				if !p.ping() {
					break
				}
				time.Sleep(30 * time.Millisecond) // no flood, which is another matter
			}
			require.Equal(e, "ENHANCE_YOUR_CALM: too_many_pings", p.goAway())
		}},
	}
}

// pinger is a client of HTTP/2 frames.
type pinger struct {
	*Env
	frames  *http2.Framer
	headers bytes.Buffer
	encoder *hpack.Encoder
	body    []byte
	acks    chan struct{}
	answers chan struct{} // ends of messages or streams

	mu         sync.Mutex // guards writing, and
	goAwayText string     // what the server's GOAWAY says
}

func (e *Env) pinger() *pinger {
	conn, err := (&net.Dialer{}).DialContext(e.ctx(), "tcp", e.Target.GRPC)
	require.NoError(e, err)
	require.NoError(e, conn.SetDeadline(time.Now().Add(callTimeout)))
	_, err = conn.Write([]byte(http2.ClientPreface))
	require.NoError(e, err)
	message, err := proto.Marshal(identity())
	require.NoError(e, err)
	p := &pinger{Env: e, frames: http2.NewFramer(conn, conn), acks: make(chan struct{}, 100), answers: make(chan struct{}, 100),
		body: append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)}
	p.encoder = hpack.NewEncoder(&p.headers)
	require.NoError(e, p.frames.WriteSettings())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.read()
	}()
	e.Cleanup(func() {
		require.NoError(e, conn.Close())
		<-ended
	})
	return p
}

// read reads until the connection ends.
func (p *pinger) read() {
	defer close(p.acks)
	defer close(p.answers)
	for {
		frame, err := p.frames.ReadFrame()
		if err != nil {
			return
		}
		p.mu.Lock()
		switch v := frame.(type) {
		case *http2.SettingsFrame:
			if !v.IsAck() {
				_ = p.frames.WriteSettingsAck() // a connection that has ended shows soon
			}
		case *http2.PingFrame:
			if v.IsAck() {
				p.acks <- struct{}{}
			} else {
				_ = p.frames.WritePing(true, v.Data)
			}
		case *http2.DataFrame:
			if len(v.Data()) > 0 {
				p.answers <- struct{}{}
			}
		case *http2.GoAwayFrame:
			p.goAwayText = v.ErrCode.String() + ": " + string(v.DebugData())
		}
		p.mu.Unlock()
	}
}

// ping pings and waits for the answer; false is the end of the connection.
func (p *pinger) ping() bool {
	p.mu.Lock()
	err := p.frames.WritePing(false, [8]byte{1})
	p.mu.Unlock()
	if err != nil {
		for range p.acks { // the last messages are read
		}
		return false
	}
	_, ok := <-p.acks
	return ok
}

// answered waits for an answer.
func (p *pinger) answered() {
	p.Helper()
	_, ok := <-p.answers
	require.True(p, ok, "the connection has ended: %s", p.goAway())
}

// call makes a ModelInfer call.
func (p *pinger) call(stream uint32) {
	p.Helper()
	p.open(stream, pb.GRPCInferenceService_ModelInfer_FullMethodName)
	p.message(stream, true)
	p.answered()
}

func (p *pinger) open(stream uint32, method string) {
	p.Helper()
	p.headers.Reset()
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "c"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		require.NoError(p, p.encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
	}
	p.write(func() error {
		return p.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: p.headers.Bytes(), EndHeaders: true})
	})
}

func (p *pinger) message(stream uint32, last bool) {
	p.Helper()
	p.write(func() error { return p.frames.WriteData(stream, last, p.body) })
}

func (p *pinger) write(f func() error) {
	p.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NoError(p, f())
}

// goAway is the text with which the server ended the connection; empty if it has not.
func (p *pinger) goAway() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.goAwayText
}
