// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package doors_test

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/component/doors"
)

// piped is a listener of one connection.
type piped struct{ conns chan net.Conn }

func (p piped) Accept() (net.Conn, error) {
	if c, ok := <-p.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (piped) Close() error   { return nil }
func (piped) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// TestIdleConnectionsEnd: a client that keeps its connection to the operators' door and asks nothing more loses it, after a while.
func TestIdleConnectionsEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		server := doors.HTTP(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ready") }), slog.New(slog.DiscardHandler))
		here, there := net.Pipe()
		door := piped{make(chan net.Conn, 1)}
		door.conns <- there
		served := make(chan error, 1)
		go func() { served <- server.Serve(door) }()

		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://conch/", http.NoBody)
		require.NoError(t, err)
		answers := bufio.NewReader(here)
		for _, rest := range []time.Duration{doors.IdleTimeout - time.Second, 2 * doors.IdleTimeout} {
			require.NoError(t, request.Write(here))
			response, err := http.ReadResponse(answers, request)
			require.NoError(t, err)
			body, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, "ready", string(body))
			time.Sleep(rest)
		}
		_, err = answers.ReadByte()
		require.ErrorIs(t, err, io.EOF)
		close(door.conns)
		require.ErrorIs(t, <-served, net.ErrClosed)
	})
}
