// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package fronts_test

import (
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/conch-serving/conch/internal/buffers"
	"github.com/conch-serving/conch/sidecar/component/fronts"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
)

// watched is a listener that calls a function before it is closed.
type watched struct {
	net.Listener
	closes func()
}

func (w watched) Close() error {
	w.closes()
	return w.Listener.Close()
}

// TestClientsAreSentElsewhereBeforeAnythingIsRefused: the gRPC door leaves, which begins with its listener and sends GOAWAY on every connection before it comes back,
// while requests are still accepted.
func TestClientsAreSentElsewhereBeforeAnythingIsRefused(t *testing.T) {
	for range 20 { // the order of two goroutines may be right by chance
		c, err := config.Parse("conch.yaml", []byte("repository: /models\n"))
		require.NoError(t, err)
		c.Provision(config.Environment{})
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		d := dispatch.New(dispatch.Options{})
		var once sync.Once
		var draining bool
		door := watched{l, func() { once.Do(func() { draining = d.Draining() }) }}
		f, err := fronts.New(t.Context(), fronts.Options{
			Config: c, Dispatcher: d, Aggregate: aggregate.New(aggregate.Options{}), Ready: func() bool { return true }, Connections: 10,
			Doors: func(key string) net.Listener {
				if key == "grpc" {
					return door
				}
				return nil
			},
			Registry: prometheus.NewRegistry(), Buffers: new(buffers.Pool), Log: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		end, ended := running(t, f)

		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
		require.NoError(t, err)
		_, err = io.WriteString(conn, http2.ClientPreface)
		require.NoError(t, err)
		framer := http2.NewFramer(conn, conn)
		require.NoError(t, framer.WriteSettings())
		until := func(is func(http2.Frame) bool) {
			for {
				frame, err := framer.ReadFrame()
				require.NoError(t, err)
				if is(frame) {
					return
				}
			}
		}
		until(func(f http2.Frame) bool { s, ok := f.(*http2.SettingsFrame); return ok && s.IsAck() })
		end()
		until(func(f http2.Frame) bool { _, ok := f.(*http2.GoAwayFrame); return ok })
		require.NoError(t, conn.Close())
		<-ended
		require.False(t, draining, "requests were refused before")
		require.NoError(t, d.Close())
	}
}
