// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// Right is the right of this conch to execute, where another may come to have it. It is asked before each execution, and must not block.
type Right interface {
	// Look reports whether another conch executes by now. Where unsure is not nil, that is not known, and it is closed once it may be: until then nothing is executed.
	Look() (unsure <-chan struct{}, anothers bool)
	// HandOn has the conch that executes answer an encoded request. It takes over a reference to the request; the answer is to be freed. Errors are gRPC status errors.
	HandOn(ctx context.Context, request mem.BufferSlice) (mem.BufferSlice, error)
}

// anothersError is why there is no lease of a partition: another conch executes.
type anothersError struct{}

// Error implements error.
func (anothersError) Error() string { return batch.Exiting }

// GRPCStatus is how status.FromError reads it.
func (anothersError) GRPCStatus() *status.Status { return status.New(codes.Unavailable, batch.Exiting) }

// mayExecute reports that this conch executes.
func (d *Dispatcher) mayExecute() bool {
	if d.o.Right == nil {
		return true
	}
	unsure, anothers := d.o.Right.Look()
	return unsure == nil && !anothers
}

// yields keeps an attempt of the queue back, where this conch may not execute it: until it is known that it may, or its calls are handed on. It returns false if the
// attempt may begin.
func (d *Dispatcher) yields(t *wire.Turn, a *attempt) bool {
	if d.o.Right == nil {
		return false
	}
	unsure, anothers := d.o.Right.Look()
	switch {
	case anothers:
		calls, _ := d.queues.takeBegun(a)
		d.forward(calls)
		d.queues.complete(t, a)
		d.conclude(a)
	case unsure != nil && d.background.Err() == nil:
		resume := d.queues.keepBack(a)
		d.workers.start(func() {
			select {
			case <-unsure:
			case <-d.background.Done():
			}
			resume()
			d.execute(nil, a)
		})
	default:
		return false
	}
	return true
}

// keepBack has an attempt not be taken for an execution until it resumes. For who looks how long it takes it is as if it was decided on then.
func (q *queues) keepBack(a *attempt) (resume func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a.kept = true
	since := q.now()
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		a.kept = false
		late := q.now() - since
		a.decided, a.finish = a.decided+late, a.finish+late
	}
}

// sure waits until this conch may execute the ticket's request. It returns false, and the answer, where it may not.
func (t *ticket) sure() (refused answer, ok bool) {
	for t.d.o.Right != nil {
		unsure, anothers := t.d.o.Right.Look()
		switch {
		case anothers:
			return answer{err: anothersError{}}, false
		case unsure == nil:
			return answer{}, true
		}
		if how := t.await(unsure); how != changed {
			return t.gaveUp(how, answer{err: anothersError{}}), false
		}
	}
	return answer{}, true
}

// yielded is the answer to a call that this conch may not execute, as refused says.
func (d *Dispatcher) yielded(c *call, refused answer) answer {
	if errors.Is(refused.err, anothersError{}) {
		return d.handOn(c)
	}
	return refused
}

// handOn has the conch that executes by now answer a call, unless Close comes before.
func (d *Dispatcher) handOn(c *call) answer {
	ctx, end := context.WithCancel(c.ctx)
	defer end()
	defer context.AfterFunc(d.background, end)()
	data, err := d.o.Right.HandOn(ctx, c.req.Marshal())
	if err != nil && d.background.Err() != nil && c.ctx.Err() == nil {
		return refusal(reasonDraining, errDraining)
	}
	if err != nil {
		return answer{err: err, passed: true}
	}
	resp, err := batch.ReadResponse(data)
	if err != nil {
		return answer{err: status.Errorf(codes.Internal, "the answer of the replica that owns the models cannot be read: %v", err), passed: true}
	}
	return answer{resp: resp, passed: true}
}
