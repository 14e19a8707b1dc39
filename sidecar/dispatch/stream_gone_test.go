// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// handClock has timers that a test fires.
type handClock struct {
	clock.Clock
	asked chan *handTimer
}

type handTimer struct {
	wait    time.Duration
	ring    func()
	stopped chan struct{}
}

func newHandClock() *handClock {
	return &handClock{Clock: clock.Timers(), asked: make(chan *handTimer, 100)}
}

func (c *handClock) After(wait time.Duration, ring func()) clock.Timer {
	t := &handTimer{wait: wait, ring: ring, stopped: make(chan struct{})}
	c.asked <- t
	return t
}

func (t *handTimer) Stop() bool {
	close(t.stopped)
	return true
}

func decoupled(m *router.Model) {
	m.Batchable, m.Config.ModelTransactionPolicy = false, &tritonpb.ModelTransactionPolicy{Decoupled: true}
}

// TestWhoGoesUnderAnswers: when the caller of a stream cancels while a decoupled model answers, the server has a second, on the dispatcher's
// clock, to end its answers; then its stream is cancelled.
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
			require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
			require.Equal(t, map[dispatch.Result]int{dispatch.Cancelled: 1}, seen.count(t))
			require.Empty(t, p.cancelled)
			require.True(t, d.Partitions()[0].Up, "nothing is wrong with the partition")
		})
	}
}

// TestAStreamFindsAnotherPartition: nothing was sent to a partition that is found lost when a stream is opened to it.
func TestAStreamFindsAnotherPartition(t *testing.T) {
	p, q := newTriton(t), newTriton(t)
	p.kill()
	d, seen, client := streamed(t, dispatch.Options{}, table(1, decoupled, p, q))
	for range 10 {
		require.Equal(t, []string{"a|m|true|"}, lines(t, openStream(t.Context(), t, client, message("a", 1, 1))))
	}
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 10}, resultsInTime(seen.count(t)))
	require.False(t, d.Partitions()[0].Up)
}

// TestASequenceStaysWhereItIs: steps that still waited when their caller cancelled were never sent, so that the sequence has not ended.
func TestASequenceStaysWhereItIs(t *testing.T) {
	p, q := newTriton(t), newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	step := func(id string, end bool) *tritonpb.ModelInferRequest {
		m := message(id, 1, 1)
		m.Parameters = map[string]*tritonpb.InferParameter{
			"sequence_id":  {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 7}},
			"sequence_end": {ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: end}},
		}
		return m
	}
	d, _, client := streamed(t, dispatch.Options{}, table(1, func(m *router.Model) {
		m.Batchable = false
		m.Config.SchedulingChoice = &tritonpb.ModelConfig_SequenceBatching{SequenceBatching: &tritonpb.ModelSequenceBatching{MaxSequenceIdleMicroseconds: 60e6}}
	}, p, q))
	ctx, cancel := context.WithCancel(t.Context())
	openStream(ctx, t, client, step("first", false), step("last", true))
	require.Equal(t, "first", <-p.started)
	require.Eventually(t, func() bool { n, _ := d.UnderWay(); return n == 3 }, 30*time.Second, time.Millisecond)
	cancel()
	require.Eventually(t, func() bool { n, _ := d.UnderWay(); return n == 0 }, 30*time.Second, time.Millisecond)
	other := make(chan error, 1)
	go func() { // the other partition has less to do
		_, err := client.ModelInfer(t.Context(), message("other", 1, 1))
		other <- err
	}()
	require.Equal(t, "other", <-p.started)
	again := openStream(t.Context(), t, client, step("last", true))
	require.Equal(t, "last", <-p.started, "where the sequence is")
	close(p.hold)
	require.Equal(t, []string{"last|m|true|"}, lines(t, again))
	require.NoError(t, <-other)
	require.Empty(t, q.executions())
}

// TestAModelWithoutPartitionsEndsNoStream: a request for a model that is out gets an error, and the stream goes on.
func TestAModelWithoutPartitionsEndsNoStream(t *testing.T) {
	p := newTriton(t)
	p.kill()
	_, seen, client := streamed(t, dispatch.Options{OutageWait: 10 * time.Millisecond}, table(1, decoupled, p))
	s := openStream(t.Context(), t, client, message("a", 1, 1))
	m, err := s.Recv()
	require.NoError(t, err)
	require.Equal(t, "a", m.InferResponse.Id)
	require.Contains(t, m.ErrorMessage, "no partition that serves model 'm' is up")
	p.restart()
	for m.ErrorMessage != "" { // until conch has found it
		require.NoError(t, s.Send(message("b", 1, 1)))
		m, err = s.Recv()
		require.NoError(t, err)
	}
	require.Empty(t, lines(t, s))
	n := resultsInTime(seen.count(t))
	require.Equal(t, 1, n[dispatch.OK])
	require.Zero(t, n[dispatch.Cancelled])
}

// TestWhoGoesBeforeThereIsAPartition: a request that waits for a partition is not a failure if its caller cancels.
func TestWhoGoesBeforeThereIsAPartition(t *testing.T) {
	p := newTriton(t)
	p.kill()
	d, seen, client := streamed(t, dispatch.Options{OutageWait: time.Hour}, table(1, decoupled, p))
	ctx, cancel := context.WithCancel(t.Context())
	openStream(ctx, t, client, message("a", 1, 1))
	require.Eventually(t, func() bool { return !d.Partitions()[0].Up }, 30*time.Second, time.Millisecond)
	cancel()
	require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
	require.Equal(t, map[dispatch.Result]int{dispatch.Cancelled: 1}, seen.count(t))
}
