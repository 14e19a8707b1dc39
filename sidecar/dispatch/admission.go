// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// admission bounds the tickets that are under way, over all models, protocols and transports, and ends that on a drain.
//
// One half of the limits is divided equally among the models of the route table: each has a share of the requests and of the bytes that no other
// can use. The other half is common. What a model has under way beyond its share takes from the common half, and so does all that is for no model:
// open streams, answers that wait for their turn on one, requests that name no model. Late requests take from their own model's share only: a model
// that has more of them than its share gets nothing of the common half. An overloaded model, whose late requests pile up, thus leaves the others their
// shares and the common half.
type admission struct {
	limit held

	mu       sync.Mutex // the last lock: nothing is called under it
	draining bool
	sharing  []*account    // the accounts of the models in the route table
	rest     account       // of what is for no model; it has no share
	all      held          // of all accounts
	streams  int64         // open streams
	common   held          // what the accounts hold beyond their shares
	room     held          // of the common half
	quiet    chan struct{} // closed when a drain has begun and no ticket is under way
	empty    chan struct{} // closed when, beside that, no stream is open
}

// held is a number of requests, and their bytes.
type held struct{ requests, bytes int64 }

func (h held) plus(o held) held  { return held{h.requests + o.requests, h.bytes + o.bytes} }
func (h held) minus(o held) held { return held{h.requests - o.requests, h.bytes - o.bytes} }

// account is what one model has under way. Guarded by admission.mu.
type account struct{ held, share held }

// beyond is what an account holds, with more, beyond its share.
func (a *account) beyond(more held) held {
	h := a.held.plus(more).minus(a.share)
	return held{max(0, h.requests), max(0, h.bytes)}
}

// Errors of admit, with the reason that an Outcome gives.
const (
	reasonDraining = "draining"
	reasonRequests = "queue_requests"
	reasonBytes    = "queue_bytes"
	// reasonLevel: the max_queue_size of the model's queue policy was met.
	reasonLevel = "max_queue_size"
)

var errDraining = status.Error(codes.Unavailable, batch.Exiting)

func (a *admission) init(limit held) {
	a.limit, a.room = limit, limit
	a.quiet, a.empty = make(chan struct{}), make(chan struct{})
}

// admit counts a request into an account, or refuses it with a reason and an error. Late is how many late requests its model has.
func (a *admission) admit(to *account, size, late int64) (reason string, err error) {
	more := held{1, size}
	a.mu.Lock()
	defer a.mu.Unlock()
	manyLate := late > to.share.requests
	largeLate := late > 0 && float64(late)*float64(to.held.bytes) > float64(to.share.bytes)*float64(max(1, to.held.requests)) // their part of its bytes
	grown := to.beyond(more).minus(to.beyond(held{}))
	taken := a.common.plus(grown)
	switch {
	case a.draining:
		return reasonDraining, errDraining
	case grown.requests > 0 && (manyLate || taken.requests > a.room.requests):
		return reasonRequests, status.Errorf(codes.Unavailable, "Exceeds maximum queue size: %d requests are under way, %d of the same model (limits.queueRequests)", a.all.requests, to.held.requests)
	case grown.bytes > 0 && (largeLate || taken.bytes > a.room.bytes) && a.all.requests > 0: // one request alone may be larger
		return reasonBytes, status.Errorf(codes.Unavailable, "Exceeds maximum queue size: %d bytes of requests are under way, %d of the same model (limits.queueBytes)", a.all.bytes, to.held.bytes)
	}
	a.add(to, more)
	return "", nil
}

// add counts something into an account, or out of it where it is negative. Guarded by mu.
func (a *admission) add(to *account, more held) {
	before := to.beyond(held{})
	to.held = to.held.plus(more)
	a.common = a.common.plus(to.beyond(held{}).minus(before))
	a.all = a.all.plus(more)
}

// move counts a request that was admitted to another account, without regard to the limits.
func (a *admission) move(from, to *account, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.add(from, held{-1, -size})
	a.add(to, held{1, size})
}

// leave counts a request out.
func (a *admission) leave(from *account, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.add(from, held{-1, -size})
	a.signal()
}

// hold is grow for bytes that are for no model.
func (a *admission) hold(n int64) { a.grow(&a.rest, n) }

// grow counts bytes that a request has come to hold into its account, or out of it where n is negative. They are not refused: what was done for the
// request would be lost.
func (a *admission) grow(of *account, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.add(of, held{0, n})
}

// open counts a stream in, or refuses it with a reason and an error. Requests on it are admitted one by one.
func (a *admission) open() (reason string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.draining:
		return reasonDraining, errDraining
	case a.common.requests >= a.room.requests:
		return reasonRequests, status.Errorf(codes.Unavailable, "Exceeds maximum queue size: %d requests and streams are under way (limits.queueRequests)", a.all.requests)
	}
	a.streams++
	a.add(&a.rest, held{1, 0})
	return "", nil
}

// close counts a stream out.
func (a *admission) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams--
	a.add(&a.rest, held{-1, 0})
	a.signal()
}

// signal closes quiet and empty when it is time. Guarded by mu.
func (a *admission) signal() {
	if !a.draining || a.all.requests > a.streams {
		return
	}
	shut(a.quiet)
	if a.streams == 0 {
		shut(a.empty)
	}
}

// shut closes a channel, unless it is closed.
func shut(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// divide gives each of these accounts an equal share of one half of the limits, and all others none.
func (a *admission) divide(among []*account) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := int64(max(1, len(among)))
	share := held{a.limit.requests / 2 / n, a.limit.bytes / 2 / n}
	for _, ac := range a.sharing {
		a.give(ac, held{})
	}
	for _, ac := range among {
		a.give(ac, share)
	}
	a.sharing = among
	a.room = a.limit.minus(held{share.requests * int64(len(among)), share.bytes * int64(len(among))})
}

// give sets an account's share. Guarded by mu.
func (a *admission) give(to *account, share held) {
	a.common = a.common.minus(to.beyond(held{}))
	to.share = share
	a.common = a.common.plus(to.beyond(held{}))
}

// startDrain refuses new requests and streams from now on.
func (a *admission) startDrain() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.draining = true
	a.signal()
}

// drain refuses new requests and streams, and waits until none is under way. A stream ends when quiet is closed.
func (a *admission) drain(ctx context.Context) error {
	a.startDrain()
	select {
	case <-a.empty:
		return nil
	case <-ctx.Done():
		n, _ := a.underWay()
		return fmt.Errorf("drain: %d requests and streams are still under way: %w", n.requests, ctx.Err())
	}
}

// underWay returns what is counted, streams included, and whether a drain has begun.
func (a *admission) underWay() (all held, draining bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all, a.draining
}
