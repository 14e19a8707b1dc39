// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// TestTheSwitchOfTheWire: conch serves both protocols whatever `wire` says. Who speaks HTTP/2 shows by a frame of data for a stream that was never begun,
// which grpc-go ignores.
func TestTheSwitchOfTheWire(t *testing.T) {
	t.Parallel()
	for wire, ignored := range map[string]bool{"own": false, "grpc-go": true} {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			c := startConch(t, text(writeZoo(t, "alpha"), t.TempDir(), "wire: "+wire))
			for _, err := range c.burst("alpha", 10) {
				require.NoError(t, err)
			}
			code, said := c.do("http", http.MethodPost, "/v2/models/alpha/infer", `{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1,16],"data":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}]}`)
			require.Equal(t, http.StatusOK, code, said)

			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", c.address("grpc").String())
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
			_, err = io.WriteString(conn, http2.ClientPreface)
			require.NoError(t, err)
			f := http2.NewFramer(conn, conn)
			require.NoError(t, f.WriteSettings())
			require.NoError(t, f.WriteData(7, false, []byte("x")))
			require.NoError(t, f.WritePing(false, [8]byte{1}))
			for {
				frame, err := f.ReadFrame()
				require.NoError(t, err)
				_, ended := frame.(*http2.GoAwayFrame)
				answer, answered := frame.(*http2.PingFrame)
				if ended || answered && answer.IsAck() {
					require.Equal(t, ignored, answered)
					return
				}
			}
		})
	}
}
