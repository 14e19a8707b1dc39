// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// ErrBusy means that a recording runs already: the request path pays for one recording at a time.
var ErrBusy = errors.New("somebody records already; wait until they are done")

// buffered is how many arrivals wait for the writer: a tenth of a second at 600,000 requests per second.
const buffered = 1 << 16

// flushEvery bounds how long an arrival stays in a buffer.
const flushEvery = 200 * time.Millisecond

// Recorder gets arrivals from the request path and writes them while a recording is open. Make one with New; its methods are safe for
// concurrent use.
type Recorder struct {
	current atomic.Pointer[recording]
	now     func() time.Time
	buffer  int
}

type recording struct {
	arrivals chan dispatch.Arrival
	lost     atomic.Uint64
}

var _ dispatch.Recorder = (*Recorder)(nil)

// New makes a recorder that is off. Now is the clock of the request path.
func New(now func() time.Time) *Recorder { return &Recorder{now: now, buffer: buffered} }

// Recording implements [dispatch.Recorder].
func (r *Recorder) Recording() bool { return r.current.Load() != nil }

// Record implements [dispatch.Recorder]. It never waits: what the writer cannot take is counted as lost.
func (r *Recorder) Record(a dispatch.Arrival) {
	c := r.current.Load()
	if c == nil {
		return
	}
	select {
	case c.arrivals <- a:
	default:
		c.lost.Add(1)
	}
}

// Stream records until ctx ends, which is no error, and writes the trace to w as it grows; a w with a Flush is flushed several times a
// second. Requests is how many the trace holds, lost how many more arrived than could be written. A second recording at the same time is
// [ErrBusy]; an error of w ends the recording.
func (r *Recorder) Stream(ctx context.Context, w io.Writer, source string) (requests, lost uint64, err error) {
	c := &recording{arrivals: make(chan dispatch.Arrival, r.buffer)}
	start := r.now()
	if !r.current.CompareAndSwap(nil, c) {
		return 0, 0, ErrBusy
	}
	defer r.current.CompareAndSwap(c, nil)
	t, err := newTrace(w, workload.Header{Start: start.UTC(), Source: source})
	if err != nil {
		return 0, 0, err
	}
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case a := <-c.arrivals:
			err = t.write(a)
		case <-tick.C:
			err = t.flush()
		case <-ctx.Done():
		}
		if err != nil {
			return t.requests, c.lost.Load(), err
		}
	}
	r.current.CompareAndSwap(c, nil)
	for {
		select {
		case a := <-c.arrivals:
			if err := t.write(a); err != nil {
				return t.requests, c.lost.Load(), err
			}
		default:
			return t.requests, c.lost.Load(), t.flush()
		}
	}
}

// trace numbers models and counts requests.
type trace struct {
	w        *workload.Writer
	out      io.Writer
	start    time.Time
	models   map[string]int32
	requests uint64
}

func newTrace(w io.Writer, h workload.Header) (*trace, error) {
	t := &trace{out: w, start: h.Start, models: map[string]int32{}}
	var err error
	if t.w, err = workload.NewWriter(w, h); err != nil {
		return nil, err
	}
	return t, t.flush()
}

func (t *trace) write(a dispatch.Arrival) error {
	model, known := t.models[a.Model]
	if !known {
		var err error
		if model, err = t.w.Model(workload.TraceModel{Name: a.Model, SLO: a.SLO}); err != nil {
			return err
		}
		t.models[a.Model] = model
	}
	err := t.w.Write(workload.Arrival{
		// A request that read its clock just before the recording began.
		At:    max(0, a.At.Sub(t.start)),
		Model: model, Rows: int32(a.Rows), Bytes: a.Bytes, Deadline: a.Deadline,
	})
	if err == nil {
		t.requests++
	}
	return err
}

func (t *trace) flush() error {
	if err := t.w.Flush(); err != nil {
		return err
	}
	if f, ok := t.out.(interface{ Flush() error }); ok {
		if err := f.Flush(); err != nil {
			return fmt.Errorf("trace: %w", err)
		}
	}
	return nil
}
