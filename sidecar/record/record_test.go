// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/record"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func read(t *testing.T, data []byte) (h workload.Header, models []workload.TraceModel, all []workload.Arrival) {
	t.Helper()
	r, err := workload.NewReader(bytes.NewReader(data))
	require.NoError(t, err)
	var a workload.Arrival
	for r.Next(&a) {
		all = append(all, a)
	}
	require.NoError(t, r.Err())
	return r.Header, r.Models(), all
}

func TestWhatArrivesWhileSomebodyRecordsIsInTheTrace(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := record.New(time.Now)
		start := time.Now()
		r.Record(dispatch.Arrival{Model: "before", At: start})
		require.False(t, r.Recording())

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var out bytes.Buffer
		var requests, lost uint64
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			requests, lost, err = r.Stream(ctx, &out, "a test")
		}()
		synctest.Wait()
		require.True(t, r.Recording())
		_, _, busy := r.Stream(ctx, &bytes.Buffer{}, "another")
		require.ErrorIs(t, busy, record.ErrBusy)

		// The first one read its clock before the recording began.
		r.Record(dispatch.Arrival{Model: "a", At: start.Add(-time.Millisecond), Rows: 1, SLO: 25 * time.Millisecond})
		time.Sleep(300 * time.Millisecond)
		r.Record(dispatch.Arrival{Model: "b", At: time.Now(), Rows: 4, Bytes: 600, SLO: time.Second, Deadline: 7 * time.Millisecond})
		r.Record(dispatch.Arrival{Model: "a", At: time.Now().Add(-time.Millisecond), Rows: 2})
		<-done
		require.False(t, r.Recording())
		r.Record(dispatch.Arrival{Model: "after", At: time.Now()})

		require.NoError(t, err)
		require.EqualValues(t, 3, requests)
		require.Zero(t, lost)
		h, models, all := read(t, out.Bytes())
		require.Equal(t, "a test", h.Source)
		require.True(t, start.Equal(h.Start))
		require.Equal(t, []workload.TraceModel{{Name: "a", SLO: 25 * time.Millisecond}, {Name: "b", SLO: time.Second}}, models)
		require.Equal(t, []workload.Arrival{
			{Rows: 1},
			{At: 300 * time.Millisecond, Model: 1, Rows: 4, Bytes: 600, Deadline: 7 * time.Millisecond},
			{At: 299 * time.Millisecond, Rows: 2},
		}, all)
	})
}

// stuck takes the header and then nothing until it is let go.
type stuck struct {
	bytes.Buffer
	free chan struct{}
	once bool
}

func (s *stuck) Flush() error {
	if s.once {
		<-s.free
	}
	s.once = true
	return nil
}

func TestAWriterThatIsTooSlowHoldsNobodyBackAndLosesArrivals(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := record.New(time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		out := &stuck{free: make(chan struct{})}
		var requests, lost uint64
		done := make(chan error, 1)
		go func() {
			var err error
			requests, lost, err = r.Stream(ctx, out, "")
			done <- err
		}()
		synctest.Wait()
		time.Sleep(time.Second) // the writer is stuck in its first flush
		const sent = 100_000
		var callers sync.WaitGroup
		for i := range 4 {
			callers.Go(func() {
				for range sent / 4 {
					r.Record(dispatch.Arrival{Model: fmt.Sprint("m", i), At: time.Now(), Rows: 1})
				}
			})
		}
		callers.Wait()
		cancel()
		close(out.free)
		require.NoError(t, <-done)
		require.EqualValues(t, sent, requests+lost)
		require.Positive(t, lost)
		_, _, all := read(t, out.Bytes())
		require.Len(t, all, int(requests))
	})
}

type broken struct{}

var errBroken = errors.New("nobody reads")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestARecordingEndsWithItsReader(t *testing.T) {
	r := record.New(time.Now)
	_, _, err := r.Stream(t.Context(), broken{}, "")
	require.ErrorIs(t, err, errBroken)
	require.False(t, r.Recording())
}
