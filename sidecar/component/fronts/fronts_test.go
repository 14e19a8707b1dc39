// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package fronts_test

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/buffers"
	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/sidecar/component/fronts"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// running has fronts run until end is called; ended is closed once they have.
func running(t *testing.T, f *fronts.Fronts) (end func(), ended chan struct{}) {
	life, end := context.WithCancel(t.Context())
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		assert.NoError(t, f.Run(life))
	}()
	return end, ended
}

// TestDoorsAreTakenOnceThereAreRoutes, also where not all is ready: before, requests wait with who has the doors, and here they would be refused at once.
func TestDoorsAreTakenOnceThereAreRoutes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, err := config.Parse("conch.yaml", []byte("repository: /models\n"))
		require.NoError(t, err)
		c.Provision(config.Environment{})
		d := dispatch.New(dispatch.Options{Clock: clock.Timers()})
		var taken atomic.Int32
		f, err := fronts.New(t.Context(), fronts.Options{
			Config: c, Dispatcher: d, Aggregate: aggregate.New(aggregate.Options{}), Ready: func() bool { return false },
			Doors:    func(string) net.Listener { taken.Add(1); return nil },
			Registry: prometheus.NewRegistry(), Buffers: new(buffers.Pool), Log: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		end, ended := running(t, f)
		time.Sleep(5 * time.Minute)
		require.Zero(t, taken.Load(), "there are no routes, and whoever has the doors lets requests wait")
		require.NoError(t, d.Swap(t.Context(), &router.Table{}))
		time.Sleep(time.Second)
		require.EqualValues(t, 2, taken.Load(), "the partitions that are up serve, though another is not")
		end()
		<-ended
		d.Close()
	})
}

// TestLateDoors: addresses are bound when it runs, and not where it is to end before.
func TestLateDoors(t *testing.T) {
	for name, runs := range map[string]bool{"runs": true, "only closes": false} {
		t.Run(name, func(t *testing.T) {
			c, err := config.Parse("conch.yaml", []byte("repository: /models\nlisten: {grpc: \"127.0.0.1:0\", http: \"127.0.0.1:0\"}\n"))
			require.NoError(t, err)
			c.Provision(config.Environment{})
			d := dispatch.New(dispatch.Options{})
			f, err := fronts.New(t.Context(), fronts.Options{
				Config: c, Dispatcher: d, Aggregate: aggregate.New(aggregate.Options{}), Ready: func() bool { return false }, Late: true,
				Registry: prometheus.NewRegistry(), Buffers: new(buffers.Pool), Log: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			require.Nil(t, f.Address("grpc"))
			life, end := context.WithCancel(t.Context())
			if !runs {
				end()
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				assert.NoError(t, f.Run(life))
			}()
			if runs {
				require.Eventually(t, func() bool { return f.Address("grpc") != nil && f.Address("http") != nil }, 30*time.Second, time.Millisecond)
			}
			end()
			<-ended
			require.Equal(t, runs, f.Address("grpc") != nil)
			d.Close()
		})
	}
}
