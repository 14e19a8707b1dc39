// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
)

// handClock has timers that go off when the test says so.
type handClock struct {
	dispatch.Clock
	asked chan *handTimer
}

type handTimer struct {
	wait    time.Duration
	ring    func()
	stopped chan struct{}
}

func newHandClock() *handClock {
	return &handClock{Clock: dispatch.TimerClock(), asked: make(chan *handTimer, 10)}
}

func (c *handClock) After(wait time.Duration, ring func()) dispatch.Timer {
	t := &handTimer{wait: wait, ring: ring, stopped: make(chan struct{})}
	c.asked <- t
	return t
}

func (t *handTimer) Stop() bool {
	close(t.stopped)
	return true
}

func decoupled(m *dispatch.Model) {
	m.Batchable, m.Config.ModelTransactionPolicy = false, &tritonpb.ModelTransactionPolicy{Decoupled: true}
}

// TestWhoGoesUnderAnswers: when the caller of a stream goes while a decoupled model answers, the server is left a second, on the
// dispatcher's clock, to come to an end; then its stream is cancelled.
func TestWhoGoesUnderAnswers(t *testing.T) {
	for name, ends := range map[string]bool{"that end": true, "that do not": false} {
		t.Run(name, func(t *testing.T) {
			p := newTriton(t)
			p.hold, p.started, p.cancelled = make(chan struct{}), make(chan string, 1), make(chan string, 1)
			clock := newHandClock()
			d, seen, client := streamed(t, dispatch.Options{Clock: clock}, table(1, decoupled, p))
			ctx, cancel := context.WithCancel(t.Context())
			openStream(ctx, t, client, message("a", 1, 1))
			require.Equal(t, "a", <-p.started)
			cancel()
			timer := <-clock.asked
			require.Equal(t, time.Second, timer.wait)
			require.Empty(t, p.cancelled)
			if ends {
				close(p.hold)
			} else {
				timer.ring()
				require.Equal(t, "a", <-p.cancelled)
			}
			<-timer.stopped
			require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 10*time.Second, time.Millisecond)
			require.Equal(t, map[dispatch.Result]int{dispatch.Cancelled: 1}, seen.count(t))
			require.Empty(t, p.cancelled)
			require.True(t, d.Partitions()[0].Up, "nothing is wrong with the partition")
		})
	}
}
