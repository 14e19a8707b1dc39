// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observers

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/dispatch"
)

// ended is a context that has ended.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// silent listens to nothing but arrivals.
type silent struct {
	dispatch.Observer
	arrived int
}

// hintCounter counts the lines that name the command.
type hintCounter struct{ times atomic.Int64 }

func (s *hintCounter) Write(line []byte) (int, error) {
	if strings.Contains(string(line), "tritonctl advise") {
		s.times.Add(1)
	}
	return len(line), nil
}

func (s *silent) Asked(dispatch.Asked)           {}
func (s *silent) Arrived(string, int, time.Time) { s.arrived++ }

func TestAMinuteOfTrafficUnderObserveIsPointedAtOnce(t *testing.T) {
	for _, c := range []struct {
		name      string
		observing bool
		traffic   int
		want      int
	}{
		{"traffic", true, 3, 1},
		{"no traffic", true, 0, 0},
		{"in control by then", false, 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var out hintCounter
				next := &silent{}
				h := PointAtAdvice(next, func() bool { return c.observing }, "unix:///run/conch/admin.sock", slog.New(slog.NewTextHandler(&out, nil)))
				for range c.traffic {
					h.Arrived("m", 1, time.Now())
				}
				time.Sleep(enoughTraffic - time.Millisecond)
				synctest.Wait()
				require.Zero(t, out.times.Load())
				time.Sleep(time.Hour)
				synctest.Wait()
				require.NoError(t, h.Run(ended(t)))
				require.EqualValues(t, c.want, out.times.Load())
				require.Equal(t, c.traffic, next.arrived)
			})
		})
	}
}

func TestNothingIsPointedAtAfterTheEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out hintCounter
		h := PointAtAdvice(&silent{}, func() bool { return true }, "", slog.New(slog.NewTextHandler(&out, nil)))
		h.Arrived("m", 1, time.Now())
		require.NoError(t, h.Run(ended(t)))
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Zero(t, out.times.Load())
	})
}
