// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// unlocked finds out whether what leaves the process is done by a goroutine that holds the scheduler's lock: another one could not take it.
type unlocked struct {
	t      *testing.T
	d      atomic.Pointer[dispatch.Dispatcher]
	failed atomic.Bool
	alarms atomic.Int64
	logs   atomic.Int64
}

func (u *unlocked) check(what string) {
	d := u.d.Load()
	if d == nil || u.failed.Load() {
		return
	}
	took := make(chan struct{})
	go func() { dispatch.TakeLock(d); close(took) }()
	select {
	case <-took:
	case <-time.After(30 * time.Second):
		u.failed.Store(true)
		u.t.Error(what, "with the scheduler's lock held")
	}
}

// ticking is a clock whose alarms are set without the lock.
type ticking struct {
	clock.Clock
	u *unlocked
}

func (c ticking) Alarm(ring func()) clock.Alarm { return ringing{c.Clock.Alarm(ring), c.u} }

type ringing struct {
	clock.Alarm
	u *unlocked
}

func (a ringing) Set(at time.Time) {
	a.u.alarms.Add(1)
	a.u.check("the alarm is set")
	a.Alarm.Set(at)
}

// noting is a log that is written without the lock.
type noting struct {
	slog.Handler
	u *unlocked
}

func (h noting) Enabled(context.Context, slog.Level) bool { return true }

func (h noting) Handle(context.Context, slog.Record) error {
	h.u.logs.Add(1)
	h.u.check("a line is logged")
	return nil
}

// TestTheLockIsHeldOverNoSystemCall: alarms are set, answers given and lines logged without the scheduler's lock, also when the scheduler fails.
func TestTheLockIsHeldOverNoSystemCall(t *testing.T) {
	u := &unlocked{t: t}
	p := newTriton(t)
	p.hold = make(chan struct{})
	d, _ := newDispatcher(t, dispatch.Options{Clock: ticking{clock.System(), u}, Logger: slog.New(noting{slog.DiscardHandler, u})}, table(1, func(m *router.Model) {
		m.SLO, m.Config.MaxBatchSize = 0, 2
		m.Written = proto.CloneOf(m.Config)
		m.Written.SchedulingChoice = &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: &tritonpb.ModelDynamicBatching{
			DefaultQueuePolicy: &tritonpb.ModelQueuePolicy{AllowTimeoutOverride: true, DefaultTimeoutMicroseconds: 1e9},
		}}
	}, p))
	u.d.Store(d)
	begin := func(id int, timeout int64) <-chan error {
		answers := make(chan error, 2)
		r := request(t, fmt.Sprint(id), 1, uint32(id), func(m *tritonpb.ModelInferRequest) {
			if timeout > 0 {
				m.Parameters = map[string]*tritonpb.InferParameter{"timeout": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: timeout}}}
			}
		})
		d.Begin(t.Context(), nil, r, func(_ *wire.Turn, r *batch.Response, err error) {
			u.check("an answer is given")
			if r != nil {
				r.Free()
			}
			answers <- err
		})
		return answers
	}
	first := begin(0, 0)
	var expire, wait []<-chan error
	for i := range 8 {
		expire = append(expire, begin(1+i, int64(1000*(20+i))))
		wait = append(wait, begin(100+i, 0))
	}
	for _, answers := range expire {
		requireCode(t, codes.Unavailable, <-answers)
	}
	require.NotZero(t, u.alarms.Load())
	close(p.hold)
	require.NoError(t, <-first)
	for _, answers := range wait {
		require.NoError(t, <-answers)
	}
	dispatch.BreakScheduler(d)
	require.NoError(t, <-begin(200, 0))
	require.Error(t, d.Fault())
	require.NotZero(t, u.logs.Load())
}
