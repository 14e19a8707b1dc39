// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxIdleWorkers is how many goroutines are kept.
const maxIdleWorkers = 64

// workers do what the goroutine that reads a connection must not: what may block, and what takes long. They do it on a goroutine that has just finished
// something else, if there is one. A new goroutine would first have to grow its stack, which costs as much as the rest of the way.
type workers struct {
	ended context.Context // no worker is kept from then on
	all   tasks
	next  chan func()  // to idle workers
	idle  atomic.Int32 // workers that wait for something to do
}

func newWorkers(ended context.Context) *workers {
	return &workers{ended: ended, next: make(chan func())}
}

// start has a worker do something. After close it is done here: nothing blocks then any more.
func (w *workers) start(do func()) {
	select {
	case w.next <- do:
	default:
		if w.all.add() {
			go w.work(do)
		} else {
			do()
		}
	}
}

// work does something, and then further things. It ends when enough other workers
// are idle, or with ended.
func (w *workers) work(do func()) {
	defer w.all.running.Done()
	for {
		do()
		if w.idle.Add(1) > maxIdleWorkers {
			w.idle.Add(-1)
			return
		}
		select {
		case do = <-w.next:
			w.idle.Add(-1)
		case <-w.ended.Done():
			return
		}
	}
}

// tasks are goroutines whose end close waits for.
type tasks struct {
	mu      sync.Mutex // guards closed; running does not grow once that is set
	closed  bool
	running sync.WaitGroup
}

// add counts a goroutine in, which must call running.Done when it ends. It returns
// false after close.
func (t *tasks) add() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.running.Add(1)
	}
	return !t.closed
}

// close makes add return false from now on, and waits for the goroutines
// that run.
func (t *tasks) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.running.Wait()
}

// errFault is the answer to a request that made Conch panic.
var errFault = status.Error(codes.Internal, "internal error: the request could not be handled")

// safely answers a call with f, or with an error if that panics.
func (d *Dispatcher) safely(f func() answer) (a answer) {
	defer func() {
		if recovered(d.o.Logger, "answering a request", recover()) {
			a = answer{err: errFault}
		}
	}()
	return f()
}

// recovered logs a panic of a goroutine that a request has started, which would
// otherwise end the process, and reports whether there was one. Call it deferred
// with what recover returns.
func recovered(log *slog.Logger, doing string, fault any) bool {
	if fault == nil {
		return false
	}
	log.Error(doing+" failed: this is a fault of Conch's", "fault", fmt.Sprint(fault), "stack", string(debug.Stack()))
	return true
}
